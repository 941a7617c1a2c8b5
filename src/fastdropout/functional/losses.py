"""Losses of moments, element-wise and unreduced, like `reduction="none"` of `torch.nn.functional`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.softmax import Points, log_softmax_points
from fastdropout.functional.transfer import expected_logit, softplus_gap
from fastdropout.moments import Moments, as_moments


def squared_error(y: Moments | Tensor, target: Tensor) -> Tensor:
    """(E[y] - target)^2: the variance does not enter."""
    y = _with_target(y, target)
    return (y.mean - target) ** 2


def gaussian_nll(y: Moments | Tensor, target: Tensor, eps: float = 1e-6) -> Tensor:
    """Gaussian negative log-likelihood: (E[y] - target)^2 / (2 V[y]) + log sqrt(2 pi V[y]).

    A variance below `eps` counts as `eps`, since the density of a certain value is infinite; the gradient
    passes as if it were there, so that a unit can leave zero variance (as in `torch.nn.GaussianNLLLoss`).
    """
    y = _with_target(y, target)
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    var = y.var + (eps - y.var).clamp(min=0).detach()
    return 0.5 * ((y.mean - target) ** 2 / var + torch.log(2 * math.pi * var))


def bernoulli_nll(logits: Moments | Tensor, target: Tensor) -> Tensor:
    """-log of the expected probability of `target`: the paper's cross entropy, with its sign put right.

        - target log E[p] - (1 - target) log E[1 - p],   p = sigmoid(logits)

    E[p] is off by at most 6e-4, and is taken by its logit: a logit of 1e4 is as good as one of 1.
    """
    logits = _with_target(logits, target)
    return F.binary_cross_entropy_with_logits(expected_logit(logits), target, reduction="none")


def expected_bernoulli_nll(logits: Moments | Tensor, target: Tensor) -> Tensor:
    """The expected -log probability of `target`, which weighs the spread of the logits too.

    E[-target log p - (1 - target) log(1 - p)] = E[softplus(logits)] - target E[logits]

    Never below `bernoulli_nll`, by Jensen's inequality.
    """
    logits = _with_target(logits, target)
    certain = F.binary_cross_entropy_with_logits(logits.mean, target, reduction="none")
    return certain if logits.is_certain else certain + softplus_gap(logits)


def categorical_nll(
    logits: Moments | Tensor,
    target: Tensor,
    *,
    by: Points = "unscented",
    samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """-log E[softmax(logits)] at the class `target`; classes are the last dimension of `logits`."""
    logits = as_moments(logits)
    if target.dtype != torch.int64:
        raise ValueError(f"target must hold class indices of torch.int64, got {target.dtype}")
    if target.shape != logits.shape[:-1]:
        raise ValueError(f"target must have shape {tuple(logits.shape[:-1])}, got {tuple(target.shape)}")
    log_p, log_weight = log_softmax_points(logits, by=by, samples=samples, generator=generator)
    index = target[None, ..., None].expand(log_p.shape[0], *target.shape, 1)
    picked = log_p.gather(-1, index) + log_weight
    return -picked.logsumexp(0).squeeze(-1)


def _with_target(y: Moments | Tensor, target: Tensor) -> Moments:
    y = as_moments(y)
    if not isinstance(target, Tensor) or target.shape != y.shape:
        got = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target must have the shape of the moments, {tuple(y.shape)}, got {got}")
    if target.dtype != y.dtype:
        raise ValueError(f"target must have the dtype of the moments, {y.dtype}, got {target.dtype}")
    return y
