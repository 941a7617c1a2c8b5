"""Transfer functions of Gaussian random variables: the paper's f_mu and f_sigma.

`tanh` and `sigmoid` have no closed form and come in three rules of accuracy:

========== ============== ============ =========================================================
rule       max error mean max error var of tanh, for mean in [-10, 10], variance in [0, 100]
========== ============== ============ =========================================================
fast       1.2e-3         1.0e-2       one tanh, one rsqrt; exact at zero variance
accurate   4.7e-5         2.4e-5       a mixture of three error functions; exact at zero variance
paper      3.5e-2         1.1e-1       Wang & Manning's fit, as used in the paper
========== ============== ============ =========================================================

`docs/rules.md` has the table that a command makes, and what the rules do inside a recurrence.
"""

from __future__ import annotations

import math
from typing import Literal, get_args, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.moments import Moments, as_moments, unchecked_moments

Rule = Literal["fast", "accurate", "paper"]
RULES: tuple[str, ...] = get_args(Rule)


def check_rule(rule: str) -> None:
    """Raise ValueError for an unknown rule."""
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")


def identity(x: Moments | Tensor) -> Moments:
    """Pass on unchanged.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.identity(x)
    Moments(mean=tensor([-1.0000,  0.5000]), var=tensor([1., 1.]))
    """
    return as_moments(x)


def tanh(x: Moments | Tensor, rule: Rule = "fast") -> Moments:
    """Moments of tanh(a) for Gaussian a, by one of three rules.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.tanh(x, rule="accurate")
    Moments(mean=tensor([-0.5504,  0.2955]), var=tensor([0.2475, 0.3507]))
    """
    x = as_moments(x)
    check_rule(rule)
    if rule == "paper":  # tanh(a) = 2 sigmoid(2 a) - 1
        z, var = _paper(x.mean * 2, x.var * 4)
        return unchecked_moments(_tanh(z / 2, *_logistic(z)), var * 4)
    if x.is_certain:
        return Moments.certain(torch.tanh(x.mean))
    if rule == "fast":
        z, p, rest, var = _fast(x.mean, x.var)
        return unchecked_moments(_tanh(z, p, rest), var)
    m, v = x.mean * 2, x.var * 4
    gap = _tanh(x.mean, *_logistic(m)) - _mixture_erf(m, 0.0)
    return unchecked_moments(_mixture_erf(m, v) + gap * _fade(v), _accurate_var(m, v) * 4)


def sigmoid(x: Moments | Tensor, rule: Rule = "fast") -> Moments:
    """Moments of the logistic sigmoid of a Gaussian a, by one of three rules.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.sigmoid(x)
    Moments(mean=tensor([0.3036, 0.6018]), var=tensor([0.0341, 0.0413]))
    """
    x = as_moments(x)
    check_rule(rule)
    m, v = x.mean, x.var
    if rule == "paper":
        z, var = _paper(m, v)
        return unchecked_moments(_logistic(z)[0], var)
    if x.is_certain:
        return Moments.certain(torch.sigmoid(m))
    if rule == "accurate":
        mean = _mixture_mean(m, v) + (_logistic(m)[0] - _mixture_mean(m, 0.0)) * _fade(v)
        return unchecked_moments(mean, _accurate_var(m, v))
    _, mean, _, var = _fast(m / 2, v / 4)  # sigmoid(a) = (1 + tanh(a / 2)) / 2
    return unchecked_moments(mean, var / 4)


def relu(x: Moments | Tensor) -> Moments:
    """Moments of max(a, 0) for Gaussian a; exact, in a form that does not cancel in float32.

    With s = sqrt(V[a]), r = E[a] / s, b = |r|, Q = Phi(-b):

        g = phi(b) - b Q                        E[max(a, 0)] = max(E[a], 0) + s g
        B = (1 + b^2) Q - b phi(b) - g^2        V[max(a, 0)] = V[a] (B + (1 - 2 Q) [r > 0])

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.relu(x)
    Moments(mean=tensor([0.0833, 0.6978]), var=tensor([0.0684, 0.5534]))
    """
    x = as_moments(x)
    if x.is_certain:
        return Moments.certain(torch.relu(x.mean))
    m, v = x.mean, x.var
    # Beyond 40 standard deviations, and for variances whose powers underflow, the unit is plainly on or off.
    # There the slopes of s and r are infinite or overflow, so the formula is given a harmless variance.
    plain = v <= torch.clamp((m / 40) ** 2, min=torch.finfo(v.dtype).tiny ** 0.6)
    s = torch.where(plain, 1, v).sqrt()
    b = torch.where(plain, 0, m).abs() / s
    phi = torch.exp(-0.5 * b**2) / math.sqrt(2 * math.pi)
    q = 0.5 * torch.erfc(b / math.sqrt(2))
    g = phi - b * q
    # Never negative in exact arithmetic; float32 rounds it to about -1e-8 where it is tiny.
    tail = torch.clamp((1 + b**2) * q - b * phi - g**2, min=0)
    on = m > 0
    share = tail + torch.where(on, 1 - 2 * q, 0)
    return unchecked_moments(
        torch.relu(m) + torch.where(plain, 0, s * g), v * torch.where(plain, on.to(v.dtype), share)
    )


def logit_of_expected(x: Moments | Tensor, rule: Literal["fast", "paper"] = "fast") -> Tensor:
    """log(E[p] / E[1 - p]) for p = sigmoid(a): the certain logit with the same expected probability.

    That of the rule `fast` lies between 0 and E[a], and tends to E[a] far out, as the exact one does: it is
    good in the probability and in its logarithm, which a loss needs. That of the rule `paper` is
    E[a] / sqrt(1 + pi V[a] / 8), which does not tend to E[a].

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.logit_of_expected(x)
    tensor([-0.8303,  0.4128])
    """
    if rule not in ("fast", "paper"):
        raise ValueError(f"rule must be fast or paper, got {rule!r}")
    x = as_moments(x)
    if x.is_certain:
        return x.mean
    return squash(x.mean / 2, x.var / 4)[0] * 2 if rule == "fast" else _paper_logit(x.mean, x.var)


# The fast rule. c is the slope of E[tanh(a)] at E[a] = 0; 2 and pi / 2 are its exact limits for small and
# for large variance, and the variance is V[a] tanh'^2 for small V[a] and 1 - E[y]^2 for large, again exactly.
# The other numbers are fitted to quadrature over mean [0, 40] x variance [0, 1000]: the first three for the
# least maximal error of the mean, the last for the least bias of the variance in recurrences (docs/rules.md).
_SLOPE, _BEND_SMALL, _BEND_LARGE, _MIX = 1.35, 0.33, 0.076, 4.0
_LARGEST_BEND = 1e18


def _fast(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of y = tanh(a): artanh(E[y]), (1 + E[y]) / 2, (1 - E[y]) / 2 and V[y].

    With z and d = 1 - c of `squash`, q = 1 - E[y]^2 and n = 4 V[a]:

        E[y] = tanh(z),   V[y] = d q^2 (1 + n) / (1 + n q)
    """
    z, d = squash(m, v)
    p, rest = _logistic(2 * z)
    q = 4 * p * rest
    n = _MIX * v
    return z, p, rest, d * q * (q + n * q) / (1 + n * q)


def _logistic(z: Tensor) -> tuple[Tensor, Tensor]:
    """sigmoid(z) and sigmoid(-z), which keep their digits far out, and so do their slopes.

    The slope that torch has for the sigmoid, y (1 - y), loses them for y near 1.
    """
    below = z < 0
    small = torch.sigmoid(torch.where(below, z, -z))
    large = 1 - small
    return torch.where(below, small, large), torch.where(below, large, small)


def _tanh(z: Tensor, p: Tensor, rest: Tensor) -> Tensor:
    """tanh(z) of `_logistic(2 z)`: keeps the digits of its slope far out, and its own near zero."""
    return torch.where(z**2 < 0.25, torch.tanh(z), p - rest)


def squash(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Artanh of E[tanh(a)], between 0 and the mean m:

    e = 1 / (1 + 1.35 v),   c = 1 / sqrt(1 + v (pi / 2 + (2 - pi / 2) e)),   d = 1 - c
    b = (.076 + .254 e) c^3 m^2,   z = m (c + b) / (1 + b)
    """
    c, b, d = _bend(m, v)
    return m * ((c + b) / (1 + b)), d


def _bend(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, b and d of `squash`."""
    e = 1 / (1 + _SLOPE * v)
    w = v * (math.pi / 2 + (2 - math.pi / 2) * e)
    c = _rsqrt(1 + w)
    d = w * c**2 / (1 + c)  # 1 - c without cancellation
    # (c m)^2, not c^2 m^2, which overflows for large means; nor does the bound show beside 1.
    largest = min(_LARGEST_BEND, torch.finfo(m.dtype).max)  # of a float16
    b = torch.clamp((_BEND_LARGE + (_BEND_SMALL - _BEND_LARGE) * e) * c * (c * m) ** 2, max=largest)
    return c, b, d


def fast_tanh_with_slope(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The fast rule of y = tanh(a) without gradients: E[y], V[y] and dE[y] / dm.

    dE[y] / dm = (1 - E[y]^2) (c + b + 2 b d / (1 + b)) / (1 + b)
    """
    c, b, d = _bend(m, v)
    g = 1 / (1 + b)
    z = m * ((c + b) * g)
    p = torch.sigmoid(-2 * z.abs())
    q, n = 4 * p * (1 - p), _MIX * v
    return torch.tanh(z), d * q * (q + n * q) / (1 + n * q), q * g * (c + b + 2 * b * d * g)


# Wang & Manning (2013): sigmoid(a)^2 ~ sigmoid(A (a - B)).
_A, _B = 4 - 2 * math.sqrt(2), -math.log(math.sqrt(2) - 1)


def _paper_logit(m: Tensor, v: Tensor) -> Tensor:
    return m * _rsqrt(1 + math.pi / 8 * v)


def _paper(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The fit of Wang & Manning (2013), which the paper uses: logit of E[y] and V[y] of y = sigmoid(a).

        E[y]   ~ sigmoid(m / sqrt(1 + pi v / 8))
        E[y^2] ~ sigmoid(A (m - B) / sqrt(1 + pi A^2 v / 8))

    A certain input comes out with a variance.
    """
    z = _paper_logit(m, v)
    p, rest = _logistic(z)
    p_square, rest_square = _logistic(_A * (m - _B) * _rsqrt(1 + math.pi / 8 * _A**2 * v))
    # V = E[y^2] - E[y]^2, for m > 0 as E[1 - y] (1 + E[y]) - (1 - E[y^2]): terms as small as V itself.
    var = torch.where(m > 0, rest * (1 + p) - rest_square, p_square - p**2)
    # The fit itself is never negative, but zero at m = B and v = 0, where float32 rounds it to about -1e-8.
    # So the bound is for the value only: it has no slope of its own.
    return z, var - torch.clamp(var.detach(), max=0)


# Monahan & Stefanski (1992): sigmoid(x) ~ sum_i P_i Phi(x / C_i), to 4.4e-5.
_P = (0.252201578, 0.585225059, 0.162573363)
_C = (1.101405480, 1.730740778, 2.746968017)
# Gauss-Legendre with three points on [0, 1].
_NODES = (0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15))
_WEIGHTS = (5 / 18, 8 / 18, 5 / 18)


def _accurate_var(m: Tensor, v: Tensor) -> Tensor:
    """V[y] of y = sigmoid(a) as a mixture of error functions Phi(a / C_i), whose moments are known.

        r_i = 1 / sqrt(C_i^2 + v),  h_i = m r_i
        E[y] = sum_i P_i Phi(h_i)
        V[y] = sum_ij P_i P_j cov_ij,
        cov_ij = 1/(2 pi) int_0^T exp(-(h_i - h_j)^2 / (2 cos^2 t) - h_i h_j / (1 + sin t)) dt,
        sin T = v r_i r_j

    The integrand is positive and T = 0 at v = 0, so the variance is never negative and vanishes with v. The
    mean is that of the mixture and, faded out, what the mixture is off by at v = 0.
    """
    h = [m * _rsqrt(c**2 + v) for c in _C]
    var = torch.zeros_like(m)
    for i in range(3):
        for j in range(i + 1):
            pair = _P[i] * _P[j] * (1 if i == j else 2)
            # asin(v r_i r_j) as an arc tangent: the slope of asin is infinite where v r_i r_j rounds to 1.
            end = torch.atan(v * _rsqrt((_C[i] * _C[j]) ** 2 + v * (_C[i] ** 2 + _C[j] ** 2)))
            for node, weight in zip(_NODES, _WEIGHTS, strict=True):
                t = end * node
                exponent = (h[i] - h[j]) ** 2 / (2 * torch.cos(t) ** 2) + h[i] * h[j] / (1 + torch.sin(t))
                var = var + pair * weight / (2 * math.pi) * end * torch.exp(-exponent)
    return var


def expected_softplus(x: Moments | Tensor) -> Tensor:
    """E[log(1 + exp(a))] for Gaussian a: error at most 1.5e-4, none at zero variance.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 1.0]))
    >>> fd.functional.expected_softplus(x)
    tensor([0.4068, 1.0816])
    """
    x = as_moments(x)
    certain = F.softplus(x.mean)
    return certain if x.is_certain else certain + softplus_gap(x)


def softplus_gap(x: Moments) -> Tensor:
    """E[softplus(a)] - softplus(E[a]), from the mixture of `accurate`.

        E[softplus(a)] = sum_i P_i (phi(h_i) / r_i + m Phi(h_i)),   h_i = m r_i,   r_i = 1 / sqrt(C_i^2 + v)

    The gap is even in m, so it is taken at -|m|, where nothing cancels.
    """
    v = x.var
    m = torch.where(x.mean > 0, -x.mean, x.mean)
    at_zero = _mixture_softplus(m, 0.0)
    own_error = (F.softplus(m) - at_zero) * (_fade(v) - 1)
    return _mixture_softplus(m, v) - at_zero + own_error


def _mixture_mean(m: Tensor, v: Tensor | float) -> Tensor:
    return sum(p * _normal_cdf(m * _rsqrt(c**2 + v)) for p, c in zip(_P, _C, strict=True))  # type: ignore[return-value]


def _mixture_erf(m: Tensor, v: Tensor | float) -> Tensor:
    """2 `_mixture_mean` - 1, with all its digits near zero."""
    terms = (p * torch.erf(m * _rsqrt(2 * (c**2 + v))) for p, c in zip(_P, _C, strict=True))
    return sum(terms)  # type: ignore[return-value]


def _mixture_softplus(m: Tensor, v: Tensor | float) -> Tensor:
    total = torch.zeros_like(m)
    for p, c in zip(_P, _C, strict=True):
        r = _rsqrt(c**2 + v)
        phi = torch.exp(-0.5 * (m * r) ** 2) / math.sqrt(2 * math.pi)
        total = total + p * (phi / r + m * _normal_cdf(m * r))
    return total


def _fade(v: Tensor) -> Tensor:
    """How much of the mixture's own error at zero variance is left when it is averaged over a Gaussian."""
    return 1 / (1 + v) ** 2


@overload
def _rsqrt(x: Tensor) -> Tensor: ...
@overload
def _rsqrt(x: float) -> float: ...
def _rsqrt(x: Tensor | float) -> Tensor | float:
    # Not torch.rsqrt, whose slope cubes the result: in float32 that is zero for x > 1e30.
    return 1 / (torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x))


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))
