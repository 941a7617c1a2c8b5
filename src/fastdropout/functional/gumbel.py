"""exp(-exp(b)) averaged over Gaussian b: the Laplace transform of a log-normal variable.

    F(x, v) = E[exp(-exp(b))],   b ~ N(x, v);   f = 1 - F

F has no closed form. Here its integrand is a mixture whose average over a Gaussian is known,

    1 - exp(-exp(b)) ~ Phi((b - MU) / C) + exp(b) Phi(-(b - NU) / D) + sum_k A_k exp(-((b - B_k) / G_k)^2 / 2)

and, below a variance of about 0.05, F is its Taylor series in v. Error of f: at most 3e-4 relative to f, for
all x and v, and none at v = 0. f tends to exp(x + v / 2) on the left as the exact one does: sums over many
classes live there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastdropout.functional.normal import FAR, mills

# Fitted by `python -m benchmarks.classes --fit`: least maximal error relative to f / (1 + exp(b)).
_MU, _C = 0.162514104, 0.809450061
_NU, _D = -1.263020590, 0.972405921
_A = (-0.001459729, 0.019486079, 0.120633165)
_B = (-0.933239891, 1.066298789, -0.318601268)
_G = (1.415487159, 0.553343814, 0.873512208)
# Where the mixture takes over from the Taylor series, and the largest variance that the series is given.
_TAKEOVER, _SERIES_MAX = 0.05, 0.2
_ROOT_HALF, _PHI0 = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)


def complement(x: Tensor, v: Tensor) -> Tensor:
    """f = 1 - E[exp(-exp(b))] for b ~ N(x, v)."""
    share = _share_of_series(v)
    e, g = _exponentials(x)
    return share * _series(e, g, v) + (1 - share) * _mixture(x, v)


def complement_and_slopes(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f with its derivatives in x and in v; written out, since autograd would keep every term."""
    share = _share_of_series(v)
    # d share / d v; where `_share_of_series` is flat, the slope is 4e-6 and multiplies a difference below 1.
    share_v = -4 / _TAKEOVER * (v / _TAKEOVER).clamp(max=100) ** 3 * share**2
    e, g = _exponentials(x)
    w = v.clamp(max=_SERIES_MAX)
    series = _series(e, g, v)
    series_x = g * e * (1 + w / 2 * ((e - 3) * e + 1) + w**2 / 8 * ((((e - 10) * e + 25) * e - 15) * e + 1))
    series_v = -g * e * (0.5 * (e - 1) + w / 4 * (((e - 6) * e + 7) * e - 1)) * (v < _SERIES_MAX)

    r = torch.rsqrt(_C**2 + v)
    z = (x - _MU) * r
    value = 0.5 * torch.erfc(z * -_ROOT_HALF)
    slope = _PHI0 * r * torch.exp(-0.5 * z**2)
    second = -slope * z * r
    tail, density, z, r = _tilted_tail(x, v)
    value = value + tail
    slope = slope + tail - density * r
    second = second + tail + density * r * (z * r - 2)
    for a, b, width in zip(_A, _B, _G, strict=True):
        r = torch.rsqrt(width**2 + v)
        z = (x - b) * r
        bump = a * width * r * torch.exp(-0.5 * z**2)
        value = value + bump
        slope = slope - bump * z * r
        second = second + bump * r**2 * (z**2 - 1)
    # A Gaussian average obeys the heat equation: d / d v = d^2 / d x^2 / 2.
    return (
        share * series + (1 - share) * value,
        share * series_x + (1 - share) * slope,
        share_v * (series - value) + share * series_v + (1 - share) * second / 2,
    )


def log_slope(x: Tensor, v: Tensor) -> Tensor:
    """log(d f / d x) = log E[exp(b - exp(b))], finite however small: for x of -1e4 as for 1."""
    share = _share_of_series(v)
    e, _ = _exponentials(x)
    r = torch.rsqrt(_D**2 + v)
    w = x - (_NU + _D**2)
    z = w * r + 1 / r
    right = z > 0
    # The scale that all terms share: exp(x + v / 2) left of the bend, a Gaussian right of it.
    scale = torch.where(right, _NU + _D**2 / 2 - 0.5 * (w * r) ** 2, x + v / 2)
    near = z.clamp(max=FAR)
    near = torch.exp(0.5 * near.clamp(min=0) ** 2) * (0.5 * torch.erfc(near * _ROOT_HALF))
    tail = torch.where(z < FAR, near, _PHI0 * mills(z))
    total = tail - _PHI0 * r * torch.exp(_NU + _D**2 / 2 - 0.5 * (w * r) ** 2 - scale)
    r = torch.rsqrt(_C**2 + v)
    total = total + _PHI0 * r * torch.exp((-0.5 * ((x - _MU) * r) ** 2 - scale).clamp(max=60))
    for a, b, width in zip(_A, _B, _G, strict=True):
        r = torch.rsqrt(width**2 + v)
        z = (x - b) * r
        total = total - a * width * r**2 * z * torch.exp((-0.5 * z**2 - scale).clamp(max=60))
    w = v.clamp(max=_SERIES_MAX)
    factor = 1 + w / 2 * ((e - 3) * e + 1) + w**2 / 8 * ((((e - 10) * e + 25) * e - 15) * e + 1)
    series = torch.exp(x - scale - torch.exp(x.clamp(max=60))) * factor
    # Both clamps act far to the right, where f is 1 and its slope no longer matters.
    return scale + torch.log(torch.clamp(share * series + (1 - share) * total, min=1e-12))


def _share_of_series(v: Tensor) -> Tensor:
    """1 at v = 0, flat there, and 1 / 2 at the take-over; capped, since powers of a large v overflow."""
    return 1 / (1 + (v / _TAKEOVER).clamp(max=100) ** 4)


def _exponentials(x: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x) and exp(-exp(x)); beyond x = 5, where the second is 3e-65, both stay."""
    e = torch.exp(x.clamp(max=5))
    return e, torch.exp(-e)


def _series(e: Tensor, g: Tensor, v: Tensor) -> Tensor:
    """1 - (G + v / 2 G'' + v^2 / 8 G''''), G = exp(-exp(x)), for small v."""
    v = v.clamp(max=_SERIES_MAX)
    return -torch.expm1(-e) - g * e * (v / 2 * (e - 1) + v**2 / 8 * (((e - 6) * e + 7) * e - 1))


def _mixture(x: Tensor, v: Tensor) -> Tensor:
    value = 0.5 * torch.erfc((x - _MU) * (torch.rsqrt(_C**2 + v) * -_ROOT_HALF))
    value = value + _tilted_tail(x, v)[0]
    for a, b, width in zip(_A, _B, _G, strict=True):
        r = torch.rsqrt(width**2 + v)
        value = value + a * width * r * torch.exp(-0.5 * ((x - b) * r) ** 2)
    return value


def _tilted_tail(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[exp(b) Phi(-(b - NU) / D)] = exp(x + v / 2) Phi(-z),  z = (x + v - NU) r,  r = 1 / sqrt(D^2 + v).

    Also exp(x + v / 2) phi(z), in a form that does not cancel for large v, then z and r.
    """
    r = torch.rsqrt(_D**2 + v)
    w = (x - (_NU + _D**2)) * r
    z = w + 1 / r
    density = _PHI0 * math.exp(_NU + _D**2 / 2) * torch.exp(-0.5 * w**2)
    near = torch.exp((x + v / 2).clamp(max=40)) * (0.5 * torch.erfc(z * _ROOT_HALF))
    return torch.where(z < FAR, near, density * mills(z)), density, z, r
