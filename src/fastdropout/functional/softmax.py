"""Moments of softmax and log-softmax of independent Gaussians.

A probability is the sigmoid of its log-odds l_k = a_k - log sum_{j /= k} exp(a_j), taken as Gaussian:

    V[l_k] ~ V[a_k] + sum_{j /= k} w_j^2 V[a_j],   w_j = p_j / (1 - p_k)

The rules differ in the mean. Errors against sampling, 2 to 1,000 classes of equal or mixed variance:

========== ============================ =========================== ==============================
rule       total variation of the mean, error of the summed V[p],   cost
           variance 1 / 4 / 16          the same variances
========== ============================ =========================== ==============================
fast       3 / 12 / 25 %                20 / 40 / 40 %              a few times a plain softmax
accurate   .03 / .03 / .03 %            10 / 15 / 35 %              20 nodes for every class
paper      15 / 25 / 40 %               up to 20 times              quadratic: unscented transform
========== ============================ =========================== ==============================

`python -m benchmarks.classes` measures them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.categorical import expected_logsumexp, log_expected_softmax
from fastdropout.functional.transfer import Rule, check_rule, squash
from fastdropout.moments import Moments, as_moments, unchecked_moments

# Between the delta method for small probabilities and log-normal ones; fitted to sampling.
_SPREAD = 0.15
# exp(-1e4) is zero: keeps a logit of -inf, which masks, out of the arithmetic.
_LEAST = -1e4


def softmax(x: Moments | Tensor, dim: int = -1, rule: Rule = "fast") -> Moments:
    """Moments of softmax(a) along `dim`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.softmax(x, dim=-1)
    Moments(mean=tensor([[0.0531, 0.1592, 0.7877]]), var=tensor([[0.0024, 0.0226, 0.0290]]))
    """
    x = as_moments(x)
    check_rule(rule)
    if x.is_certain:
        return Moments.certain(torch.softmax(x.mean, dim))
    if rule == "paper":
        return _unscented(x, dim)
    v = x.var
    if rule == "accurate":
        p = mean = log_expected_softmax(x, dim).exp()
        odds_var = v + _others(p, v, dim)[1]
    else:
        top = x.mean.detach().amax(dim, keepdim=True)
        m = (x.mean - top).clamp(min=_LEAST)
        log_p = torch.log_softmax(m, dim)
        p = log_p.exp()
        first, second = _others(p, v, dim)
        odds = log_p - torch.log((1 - p).clamp(min=torch.finfo(x.dtype).eps))
        odds_var = v + second
        logit = 2 * squash((odds - _jensen(first, second)) / 2, odds_var / 4)[0]
        # As a ratio to the certain probability, which is so left as it is where no logit has a variance.
        mean = torch.softmax(log_p + F.logsigmoid(logit) - F.logsigmoid(odds), dim)
    d = squash(torch.zeros_like(v), odds_var / 4)[1]
    q = 4 * mean * (1 - mean).clamp(min=0)
    n = odds_var * torch.exp(_SPREAD * odds_var.clamp(max=60 / _SPREAD))
    return unchecked_moments(mean, d * q * ((q + n * q) / (1 + n * q)) / 4)


def log_softmax(x: Moments | Tensor, dim: int = -1, rule: Rule = "fast") -> Moments:
    """Moments of log softmax(a) along `dim`.

        E[log p_k] = E[a_k] - E[log S],   V[log p_k] = V[a_k] (1 - 2 E[p_k]) + V[log S]

    The covariance of a_k and log S is exactly V[a_k] E[p_k]; log S as in `logsumexp`. The variance summed
    over the classes is within 15 % of sampling up to a variance of 4, for both rules.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.log_softmax(x, dim=-1)
    Moments(mean=tensor([[-3.2590, -2.2590, -0.2590]]), var=tensor([[0.6493, 0.9901, 0.0739]]))
    """
    x = as_moments(x)
    check_rule(rule)
    if x.is_certain:
        return Moments.certain(torch.log_softmax(x.mean, dim))
    p, log_s = _log_sum(x, dim, rule)
    # Never negative in exact arithmetic: (1 - p_k)^2 V[a_k] and what the others add.
    return unchecked_moments(x.mean - log_s.mean, (x.var * (1 - 2 * p) + log_s.var).clamp(min=0))


def logsumexp(x: Moments | Tensor, dim: int = -1, keepdim: bool = False, rule: Rule = "fast") -> Moments:
    """Moments of log S, S = sum_j exp(a_j) along `dim`.

        V[log S] ~ sum_j (E[p_j]^2 + .4 V[p_j]) V[a_j]

    The variance lies between the sums with 0 and 1 for .4. `accurate` has the mean to 6e-4; `fast`, from
    the second derivative, to .1 at variance 1 and 1 at 4.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.logsumexp(x, dim=-1)
    Moments(mean=tensor([4.2590]), var=tensor([0.6493]))
    """
    x = as_moments(x)
    check_rule(rule)
    if x.is_certain:
        return Moments.certain(torch.logsumexp(x.mean, dim, keepdim))
    log_s = _log_sum(x, dim, rule)[1]
    return log_s if keepdim else log_s.rearrange(lambda t: t.squeeze(dim))


def _log_sum(x: Moments, dim: int, rule: Rule) -> tuple[Tensor, Moments]:
    """E[p], and log S with the dimension kept."""
    if rule == "accurate":
        mean = expected_logsumexp(x, dim).unsqueeze(dim)
    else:
        p = torch.softmax(x.mean, dim)
        first, second = (p * x.var).sum(dim, keepdim=True), (p**2 * x.var).sum(dim, keepdim=True)
        mean = torch.logsumexp(x.mean, dim, keepdim=True) + _jensen(first, second)
    y = softmax(x, dim, "paper" if rule == "paper" else "fast")
    return y.mean, unchecked_moments(mean, ((y.mean**2 + 0.4 * y.var) * x.var).sum(dim, keepdim=True))


def _others(p: Tensor, v: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The sums of w_j v_j and of w_j^2 v_j over the other classes, w_j = p_j / (1 - p_k)."""
    q = (1 - p).clamp(min=torch.finfo(p.dtype).eps)
    first = ((p * v).sum(dim, keepdim=True) - p * v) / q
    second = ((p**2 * v).sum(dim, keepdim=True) - p**2 * v) / q**2
    # Averages with weights that sum to one; where p_k is almost 1, the differences above are rounding.
    first = torch.minimum(first.clamp(min=0), v.amax(dim, keepdim=True))
    return first, torch.minimum(second.clamp(min=0), first)


def _jensen(first: Tensor, second: Tensor) -> Tensor:
    """E[log S] - log S(E[a]): half the second derivative for small variances, logarithmic for large ones."""
    return 2 * torch.log1p((first - second).clamp(min=0) / 4)


def _unscented(x: Moments, dim: int) -> Moments:
    """The unscented transform (Julier & Uhlmann, 1997), which the paper mentions (sec. 2.2.1).

    Of n variables it takes the mean and, along each variable alone, the mean +- sqrt(n + 1) standard
    deviations, with weights 1 / (n + 1) and 1 / (2 (n + 1)): the two moments of the input are exact and
    no weight is negative, so no variance is. It costs 2 n + 1 evaluations.
    """
    n = x.shape[dim]
    # The root's slope is infinite at zero, where the two points of a variable coincide.
    spread = torch.where(x.var > 0, x.var, 1).sqrt() * (x.var > 0) * math.sqrt(n + 1)
    alone = torch.eye(n, dtype=x.dtype, device=x.device).view(
        n, *[n if i == dim % x.ndim else 1 for i in range(x.ndim)]
    )
    points = torch.cat([x.mean[None], x.mean + alone * spread, x.mean - alone * spread])
    weight = x.mean.new_full((2 * n + 1,), 0.5 / (n + 1))
    weight[0] = 1 / (n + 1)
    weight = weight.view(-1, *[1] * x.ndim)
    p = torch.softmax(points, dim % x.ndim + 1)
    mean = (p * weight).sum(0)
    return unchecked_moments(mean, ((p - mean) ** 2 * weight).sum(0))
