"""Curved activations: gelu, exp and glu by closed forms, the others by the quadrature of `elementwise`.

Largest errors of mean / variance against fine quadrature, for mean in [-10, 10] (the laws of
`tests/functional/laws.py` check them over all variances from 0 to 100):

================== ================= ================= ==================
function           variance <= 4     variance <= 16    variance <= 100
================== ================= ================= ==================
gelu               0 / 1e-4          0 / 6e-4          0 / 4e-3
gelu, tanh         2e-4 / 4e-4       2e-4 / 6e-4       2e-4 / 4e-3
softplus           6e-9 / 6e-8       3e-5 / 3e-4       9e-3 / 2e-1
silu               1e-7 / 2e-6       3e-4 / 4e-3       4e-2 / 5e-1
mish               4e-6 / 4e-5       2e-3 / 2e-2       5e-2 / 7e-1
elu, celu, selu    8e-4 / 5e-3       5e-3 / 3e-2       5e-2 / 6e-1
softsign           6e-3 / 4e-3       2e-2 / 2e-2       5e-2 / 6e-2
tanhshrink         2e-4 / 5e-4       1e-2 / 4e-2       8e-2 / 9e-1
================== ================= ================= ==================

A variance of 100 through one of these has a standard deviation of about 6: the last column is 1 % of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.elementwise import Kink, elementwise
from fastdropout.functional.normal import density, upper
from fastdropout.functional.propagate import multiply_independent
from fastdropout.functional.recompute import recomputed
from fastdropout.functional.transfer import Rule, sigmoid
from fastdropout.moments import Moments, as_moments, unchecked_moments

# Of SELU (Klambauer et al., 2017), as torch has them.
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805
# Nodes t and weights for int_0^1 (1 - t) g(t) dt: Gauss-Legendre with four points in y, t = 1 - y^2.
_LEGENDRE = (
    (0.0694318442029737, 0.1739274225687269),
    (0.3300094782075719, 0.3260725774312731),
    (0.6699905217924281, 0.3260725774312731),
    (0.9305681557970263, 0.1739274225687269),
)
_NODES = tuple((1 - y**2, 2 * y**3 * w) for y, w in _LEGENDRE)


def gelu(x: Moments | Tensor, approximate: str = "none") -> Moments:
    """a Phi(a), or its approximation by a tanh. With r = 1 / sqrt(1 + v), h = m r:

        E[f] = m Phi(h) + v r phi(h),   E[f'] = Phi(h) + m r^3 phi(h)
        V[f] = v E[f']^2 + v^2 int_0^1 (1 - t) E[f''(a) f''(a')] dt,   f''(a) = (2 - a^2) phi(a)

    with a and a' of correlation t (Price's theorem, twice): the second term is positive, of second order
    in v, and its integrand has a closed form; four nodes do the integral.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.gelu(x)
    Moments(mean=tensor([-0.0201,  0.5841]), var=tensor([0.0667, 0.5775]))
    """
    x = as_moments(x)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be one of none, tanh, got {approximate!r}")
    if x.is_certain:
        return Moments.certain(F.gelu(x.mean, approximate=approximate))
    rule = _gelu_tanh if approximate == "tanh" else _gelu
    return unchecked_moments(*recomputed(rule, x.mean, x.var))


def _gelu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return gelu_with_slope(m, v)[:2]


def gelu_with_slope(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and E[f'] of a Phi(a)."""
    r = torch.rsqrt(1 + v)
    h = m * r
    below, phi = upper(-h), density(h)
    push = r * phi
    mean = torch.addcmul(m * below, v, push)
    slope = torch.addcmul(below, push * h, r)
    rest = torch.zeros_like(m)
    square = m**2
    for t, weight in _NODES:
        # (a + a') / sqrt 2 and (a - a') / sqrt 2 are independent; under phi(a) phi(a') their variances are
        # 1 - p and 1 - q, and the squared mean of the first is k. Their moments, sorted by powers of these:
        p, q = 1 / (1 + v * (1 + t)), 1 / (1 + v * (1 - t))
        both, e = p + q, square * p
        k = 2 * e * p
        # (3 p^2 + 3 q^2 - 2 p q) / 4 = (3 (p + q)^2 - 8 p q) / 4
        product = p * q
        powers = torch.addcmul(1 + both, both, both, value=0.75).sub(product, alpha=2)
        powers = torch.addcmul(powers, k, k / 4 - 1 - 2 * p + both / 2)
        rest = rest + (weight * torch.sqrt(product) * torch.exp(-e)) * powers
    # Positive in exact arithmetic; the nodes leave as little as -1e-7 of v where it is nearly zero.
    return mean, v * (slope**2 + (v / (2 * math.pi) * rest).clamp(min=0)), slope


def _gelu_tanh(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean, var = _gelu(m, v)
    return mean + gelu_tanh_gap(m, v), var


def gelu_tanh_gap(m: Tensor, v: Tensor) -> Tensor:
    """What the mean of the approximation by a tanh is more than that of gelu."""
    # The two functions differ by up to 5e-4, which averages out over a larger variance.
    return (F.gelu(m, approximate="tanh") - F.gelu(m)) / (1 + v) ** 2


def exp(x: Moments | Tensor) -> Moments:
    """exp(a), log-normal: E = exp(m + v / 2), V = E^2 (exp(v) - 1); infinite where that overflows.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.exp(x)
    Moments(mean=tensor([0.6065, 2.7183]), var=tensor([ 0.6321, 12.6965]))
    """
    x = as_moments(x)
    if x.is_certain:
        return Moments.certain(torch.exp(x.mean))
    mean = torch.exp(x.mean + x.var / 2)
    return unchecked_moments(mean, torch.exp(2 * x.mean + x.var) * torch.expm1(x.var))


def glu(x: Moments | Tensor, dim: int = -1, rule: Rule = "fast") -> Moments:
    """a sigmoid(b), a and b the halves of `x` along `dim`, independent.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 1.0]))
    >>> fd.functional.glu(x)
    Moments(mean=tensor([0.5000]), var=tensor([0.1910]))
    """
    x = as_moments(x)
    size = x.shape[dim]
    if size % 2:
        raise ValueError(f"glu needs an even size along dim {dim}, got {size}")
    a = x.rearrange(lambda t: t.narrow(dim, 0, size // 2))
    b = x.rearrange(lambda t: t.narrow(dim, size // 2, size // 2))
    return multiply_independent(a, sigmoid(b, rule))


def softplus(x: Moments | Tensor, beta: float = 1.0, threshold: float = 20.0) -> Moments:
    """log(1 + exp(beta a)) / beta, by quadrature; linear above `threshold` / beta, as torch has it.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.softplus(x)
    Moments(mean=tensor([0.4069, 1.0817]), var=tensor([0.1083, 0.3825]))
    """
    return elementwise(lambda a: F.softplus(a, beta, threshold), x)


def log_sigmoid(x: Moments | Tensor) -> Moments:
    """-log(1 + exp(-a)), by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.log_sigmoid(x)
    Moments(mean=tensor([-1.4069, -0.5817]), var=tensor([0.5018, 0.1785]))
    """
    return elementwise(F.logsigmoid, x)


def silu(x: Moments | Tensor) -> Moments:
    """a sigmoid(a), by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.silu(x)
    Moments(mean=tensor([-0.1253,  0.5000]), var=tensor([0.0718, 0.5074]))
    """
    return elementwise(F.silu, x)


def mish(x: Moments | Tensor) -> Moments:
    """a tanh(softplus(a)), by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.mish(x)
    Moments(mean=tensor([-0.1346,  0.5684]), var=tensor([0.0937, 0.6133]))
    """
    return elementwise(F.mish, x)


def elu(x: Moments | Tensor, alpha: float = 1.0) -> Moments:
    """a above zero, alpha (exp(a) - 1) below; by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.elu(x)
    Moments(mean=tensor([-0.4547,  0.5708]), var=tensor([0.2619, 0.7845]))
    """
    return elementwise(lambda a: F.elu(a, alpha), x, [Kink(0.0, (alpha, 1.0), (alpha, 0.0))])


def celu(x: Moments | Tensor, alpha: float = 1.0) -> Moments:
    """a above zero, alpha (exp(a / alpha) - 1) below; by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.celu(x)
    Moments(mean=tensor([-0.4547,  0.5708]), var=tensor([0.2619, 0.7845]))
    """
    return elementwise(lambda a: F.celu(a, alpha), x, [Kink(0.0, (1.0, 1.0), (1 / alpha, 0.0))])


def selu(x: Moments | Tensor) -> Moments:
    """1.0507 elu(a, 1.6733), which normalises itself (Klambauer et al., 2017); by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.selu(x)
    Moments(mean=tensor([-0.8584,  0.5099]), var=tensor([0.5624, 1.1043]))
    """
    return elementwise(F.selu, x, [Kink(0.0, (_SCALE * _ALPHA, _SCALE), (_SCALE * _ALPHA, 0.0))])


def softsign(x: Moments | Tensor) -> Moments:
    """a / (1 + |a|), by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.softsign(x)
    Moments(mean=tensor([-0.3780,  0.2015]), var=tensor([0.1173, 0.1629]))
    """
    return elementwise(F.softsign, x)


def tanhshrink(x: Moments | Tensor) -> Moments:
    """a - tanh(a), by quadrature.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.tanhshrink(x)
    Moments(mean=tensor([-0.4496,  0.2045]), var=tensor([0.3483, 0.2267]))
    """
    return elementwise(F.tanhshrink, x)
