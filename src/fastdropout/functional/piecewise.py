"""Functions that are linear or quadratic between knots: exact moments of f(a) for Gaussian a.

Every function here is `piecewise` with its knots and polynomials. With s = sqrt(V[a]), a = E[a] + s z,
the knots z_k = (k - E[a]) / s and the partial moments I_n = int z^n phi(z) dz between two knots, the
deviation u = f(a) - f(E[a]) is a polynomial in z on every piece, and

    E[f(a)] = f(E[a]) + E[u],   V[f(a)] = E[u^2] - E[u]^2

Taken around f(E[a]), neither cancels: a small variance far from a knot is V[a] f'(E[a])^2 to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.normal import density, upper
from fastdropout.moments import Moments, as_moments, unchecked_moments

Number = float | Tensor
# c0 + c1 a + c2 a^2
Polynomial = tuple[Number, Number, Number]


def piecewise(
    x: Moments | Tensor,
    plain: Callable[[Tensor], Tensor],
    knots: Sequence[Number],
    pieces: Sequence[Polynomial],
) -> Moments:
    """Moments of the function that is `pieces[i]` between the knots i - 1 and i, and `plain` of a tensor.

    Knots ascend; there is one piece more. Numbers and tensors that broadcast to `x` may be mixed.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.piecewise(x, torch.relu, (0.0,), ((0.0, 0.0, 0.0), (0.0, 1.0, 0.0)))  # the rectifier
    Moments(mean=tensor([0.0833, 0.6978]), var=tensor([0.0684, 0.5534]))
    """
    x = as_moments(x)
    if x.is_certain:
        return Moments.certain(plain(x.mean))
    m, v = x.mean, x.var
    if not knots:
        knots = (0.0,)
        pieces = (pieces[0], pieces[0])
    # Farther than 40 standard deviations from every knot, and for variances whose powers underflow, a
    # single piece counts. There the slopes of s and z are infinite or overflow, so the formula is given a
    # harmless variance.
    gap = torch.stack([(m - k).abs() for k in knots]).amin(0)
    single = v <= torch.clamp((gap / 40) ** 2, min=torch.finfo(v.dtype).tiny ** 0.6)
    s = torch.where(single, 1, v).sqrt()
    at = _at(m, knots, pieces)
    value = _value(at, m)
    first, second = _partial_sums(m, s, value, knots, pieces)
    slope = at[1] + 2 * at[2] * m
    # Never negative in exact arithmetic; float32 rounds it to about -1e-8 of its terms.
    spread = torch.clamp(second - first**2, min=0)
    return unchecked_moments(
        torch.where(single, plain(m) + at[2] * v, value + first),
        torch.where(single, v * (slope**2 + 2 * at[2] ** 2 * v), spread),
    )


def _partial_sums(
    m: Tensor, s: Tensor, value: Tensor, knots: Sequence[Number], pieces: Sequence[Polynomial]
) -> tuple[Tensor, Tensor]:
    """E[u] and E[u^2], piece by piece."""
    curved = any(isinstance(c2, Tensor) or c2 != 0 for _, _, c2 in pieces)
    # What lies beyond 50 standard deviations is nothing, and its cube would overflow.
    z = [((k - m) / s).clamp(-50, 50) for k in knots]
    above, below, phi = [upper(t) for t in z], [upper(-t) for t in z], [density(t) for t in z]
    first, second = torch.zeros_like(m), torch.zeros_like(m)
    for i, piece in enumerate(pieces):
        left, right = i - 1, i if i < len(z) else None
        if i == 0:
            mass = below[0]
        elif right is None:
            mass = above[left]
        else:
            mass = torch.where(z[left] > 0, above[left] - above[right], below[right] - below[left])

        def between(f: Callable[[Tensor], Tensor], i: int = i, right: int | None = right) -> Tensor:
            """f(z) phi(z) at the left knot less that at the right one."""
            total = torch.zeros_like(m) if i == 0 else f(z[i - 1]) * phi[i - 1]
            return total if right is None else total - f(z[right]) * phi[right]

        one, two = between(torch.ones_like), mass + between(lambda t: t)
        a = _value(piece, m) - value
        b = (piece[1] + 2 * piece[2] * m) * s
        first = first + a * mass + b * one
        second = second + a**2 * mass + 2 * a * b * one + b**2 * two
        if curved:
            three = between(lambda t: t**2 + 2)
            four = 3 * mass + between(lambda t: t**3 + 3 * t)
            c = piece[2] * s**2
            first = first + c * two
            second = second + 2 * a * c * two + 2 * b * c * three + c**2 * four
    return first, second


def _at(m: Tensor, knots: Sequence[Number], pieces: Sequence[Polynomial]) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of the piece that m lies on."""
    out = [torch.zeros_like(m) + c for c in pieces[0]]
    for knot, piece in zip(knots, pieces[1:], strict=True):
        out = [torch.where(m > knot, c, o) for c, o in zip(piece, out, strict=True)]
    return out[0], out[1], out[2]


def _value(p: Polynomial, m: Tensor) -> Tensor:
    return p[0] + p[1] * m + p[2] * m**2


def leaky_relu(x: Moments | Tensor, negative_slope: float = 0.01) -> Moments:
    """max(a, 0) + negative_slope min(a, 0).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.leaky_relu(x)
    Moments(mean=tensor([0.0725, 0.6958]), var=tensor([0.0703, 0.5562]))
    """
    return piecewise(
        x, lambda a: F.leaky_relu(a, negative_slope), (0.0,), ((0.0, negative_slope, 0.0), (0.0, 1.0, 0.0))
    )


def prelu(x: Moments | Tensor, weight: Tensor) -> Moments:
    """`leaky_relu` with a slope that is learnt: one, or one for each channel (dimension 1).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.prelu(x, torch.tensor([0.25]))
    Moments(mean=tensor([-0.1875,  0.6483]), var=tensor([0.1605, 0.6331]))
    """
    x = as_moments(x)
    if weight.numel() == 1:
        slope = weight.reshape(())
    else:
        channels = x.shape[1] if x.ndim > 1 else 1
        if weight.numel() != channels:
            raise ValueError(f"weight must have 1 or {channels} elements, got {weight.numel()}")
        slope = weight.view(-1, *[1] * (x.ndim - 2))
    return piecewise(x, lambda a: F.prelu(a, weight), (0.0,), ((0.0, slope, 0.0), (0.0, 1.0, 0.0)))


def clamp(x: Moments | Tensor, min: Number | None = None, max: Number | None = None) -> Moments:
    """min(max(a, min), max); either bound may be left out.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.clamp(x, min=-0.5)
    Moments(mean=tensor([-0.3022,  0.5833]), var=tensor([0.1705, 0.7511]))
    """
    if min is None and max is None:
        raise ValueError("clamp needs min or max, got neither")
    flat_below = [(min, 0.0, 0.0)] if min is not None else []
    flat_above = [(max, 0.0, 0.0)] if max is not None else []
    return piecewise(
        x,
        lambda a: torch.clamp(a, min, max),  # type: ignore[arg-type]
        [k for k in (min, max) if k is not None],
        [*flat_below, (0.0, 1.0, 0.0), *flat_above],
    )


def hardtanh(x: Moments | Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Moments:
    """a between `min_val` and `max_val`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.hardtanh(x)
    Moments(mean=tensor([-0.6095,  0.3315]), var=tensor([0.3078, 0.4534]))
    """
    return clamp(x, min_val, max_val)


def relu6(x: Moments | Tensor) -> Moments:
    """min(max(a, 0), 6).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.relu6(x)
    Moments(mean=tensor([0.0833, 0.6978]), var=tensor([0.0684, 0.5534]))
    """
    return clamp(x, 0.0, 6.0)


def hardsigmoid(x: Moments | Tensor) -> Moments:
    """relu6(a + 3) / 6.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.hardsigmoid(x)
    Moments(mean=tensor([0.3347, 0.5830]), var=tensor([0.0267, 0.0275]))
    """
    # torch's own has no second derivative.
    return piecewise(
        x, lambda a: F.relu6(a + 3) / 6, (-3.0, 3.0), ((0.0, 0.0, 0.0), (0.5, 1 / 6, 0.0), (1.0, 0.0, 0.0))
    )


def hardswish(x: Moments | Tensor) -> Moments:
    """a relu6(a + 3) / 6.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.hardswish(x)
    Moments(mean=tensor([-0.1719,  0.4571]), var=tensor([0.0790, 0.4919]))
    """
    return piecewise(x, F.hardswish, (-3.0, 3.0), ((0.0, 0.0, 0.0), (0.0, 0.5, 1 / 6), (0.0, 1.0, 0.0)))


def abs(x: Moments | Tensor) -> Moments:
    """|a|: the folded normal distribution.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.abs(x)
    Moments(mean=tensor([1.1666, 0.8956]), var=tensor([0.6390, 0.4479]))
    """
    return piecewise(x, torch.abs, (0.0,), ((0.0, -1.0, 0.0), (0.0, 1.0, 0.0)))


def square(x: Moments | Tensor) -> Moments:
    """a^2: E = m^2 + v, V = 2 v (v + 2 m^2).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.square(x)
    Moments(mean=tensor([2.0000, 1.2500]), var=tensor([6., 3.]))
    """
    x = as_moments(x)
    if x.is_certain:
        return Moments.certain(x.mean**2)
    m, v = x.mean, x.var
    return unchecked_moments(m**2 + v, 2 * v * (v + 2 * m**2))


def threshold(x: Moments | Tensor, threshold: float, value: float) -> Moments:
    """a above `threshold`, else `value`: a jump, unless they are the same.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.threshold(x, 0.5, 0.5)
    Moments(mean=tensor([0.5293, 0.8989]), var=tensor([0.0220, 0.3408]))
    """
    return piecewise(
        x, lambda a: F.threshold(a, threshold, value), (threshold,), ((value, 0.0, 0.0), (0.0, 1.0, 0.0))
    )


def softshrink(x: Moments | Tensor, lambd: float = 0.5) -> Moments:
    """a moved towards zero by `lambd`, zero within it.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.softshrink(x)
    Moments(mean=tensor([-0.6685,  0.3156]), var=tensor([0.6163, 0.4757]))
    """
    pieces = ((lambd, 1.0, 0.0), (0.0, 0.0, 0.0), (-lambd, 1.0, 0.0))
    return piecewise(x, lambda a: F.softshrink(a, lambd), (-lambd, lambd), pieces)


def hardshrink(x: Moments | Tensor, lambd: float = 0.5) -> Moments:
    """a outside of [-lambd, lambd], zero within it.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.hardshrink(x)
    Moments(mean=tensor([-0.9808,  0.4863]), var=tensor([1.0179, 0.9858]))
    """
    pieces = ((0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    return piecewise(x, lambda a: F.hardshrink(a, lambd), (-lambd, lambd), pieces)
