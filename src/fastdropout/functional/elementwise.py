"""Any element-wise function of a Gaussian, by quadrature: for those without a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastdropout.functional.recompute import recomputed
from fastdropout.moments import Moments, as_moments, unchecked_moments

STEP, REACH = 0.5, 6.0


class Kink(NamedTuple):
    """Where f is continuous but its first or second derivative jumps: their values on either side.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([0.0]), torch.tensor([1.0]))
    >>> kink = fd.functional.Kink(0.0, (0.0, 1.0))
    >>> fd.functional.elementwise(torch.relu, x, [kink])
    Moments(mean=tensor([0.3988]), var=tensor([0.3409]))
    """

    at: float
    slope: tuple[float, float]
    curvature: tuple[float, float] = (0.0, 0.0)


def elementwise(f: Callable[[Tensor], Tensor], x: Moments | Tensor, kinks: Sequence[Kink] = ()) -> Moments:
    """Moments of f(a) for Gaussian a and any f that acts on every element alone.

        u(z) = f(E[a] + sqrt(V[a]) z) - f(E[a]),   z = -6, -5.5, ..., 6
        E[f(a)] = f(E[a]) + E[u],   V[f(a)] = E[u^2] - E[u]^2

    The trapezoid rule with 25 nodes; a certain input gives exactly f and no variance. Error: 1e-8 of what
    f does in six standard deviations, if f is smooth on the scale of half a standard deviation. A kink
    costs up to .8 % of a standard deviation times the change of slope, unless `kinks` tells of it.

    One node is held at a time, and for the backward pass nothing but the moments.

    >>> y = elementwise(torch.sin, Moments(torch.tensor(0.5), torch.tensor(1.0)))
    >>> round(y.mean.item(), 5)  # exp(-1/2) sin(1/2)
    0.29079
    """
    x = as_moments(x)
    if x.is_certain:
        return Moments.certain(f(x.mean))

    def moments_of(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # The root's slope is infinite at zero, where no node differs from the mean.
        positive = v > torch.finfo(v.dtype).tiny ** 0.6
        root = torch.where(positive, v, 1).sqrt()
        s = torch.where(positive, root, 0)
        middle = f(m)
        first, second = torch.zeros_like(middle), torch.zeros_like(middle)
        for z, w in NODES:  # in pairs: the slopes of two equal values then cancel exactly
            above, below = f(m + z * s) - middle, f(m - z * s) - middle
            first = first + w * (above + below)
            second = second + w * (above**2 + below**2)
        for kink in kinks:
            more = _correction(kink, f(torch.full_like(m, kink.at)) - middle, m, s, root)
            first, second = first + more[0], second + more[1]
        # Never negative in exact arithmetic.
        return middle + first, (second - first**2).clamp(min=0)

    return unchecked_moments(*recomputed(moments_of, x.mean, x.var))


def _correction(kink: Kink, u: Tensor, m: Tensor, s: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """What the trapezoid rule misses of E[u] and E[u^2] at a kink z: the Euler-Maclaurin terms.

        integral - sum = h^2 / 2 B_2(y) J_1 + h^3 / 6 B_3(y) J_2

    J_n is the jump of the n-th derivative, B_n a Bernoulli polynomial, y h the distance to the node on
    the left.
    """
    z = ((kink.at - m) / root).clamp(-50, 50)
    phi = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    y = z / STEP - torch.floor(z / STEP)
    two, three = STEP**2 / 2 * (y**2 - y + 1 / 6), -(STEP**3) / 6 * (y**3 - 1.5 * y**2 + 0.5 * y)
    rise = kink.slope[1] - kink.slope[0]
    bend = kink.curvature[1] - kink.curvature[0]
    squares = kink.slope[1] ** 2 - kink.slope[0] ** 2
    first = phi * s * (two * rise + three * (bend * s - 2 * z * rise))
    second = 2 * phi * s * (two * u * rise + three * (squares * s + u * (bend * s - 2 * z * rise)))
    return first, second


def _positive_nodes() -> tuple[tuple[float, float], ...]:
    z = [k * STEP for k in range(1, round(REACH / STEP) + 1)]
    w = [math.exp(-0.5 * t**2) for t in z]
    return tuple((t, u / (1 + 2 * sum(w))) for t, u in zip(z, w, strict=True))


# Positive nodes in standard deviations, and their weights.
NODES = _positive_nodes()
