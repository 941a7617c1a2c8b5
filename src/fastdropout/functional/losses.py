"""Losses of moments: element-wise and unreduced, and with the arguments of `torch.nn.functional`.

>>> import torch, fastdropout as fd
>>> logits = fd.Moments(torch.zeros(1), torch.full((1,), 4.0))
>>> fd.losses.bernoulli_nll(logits, torch.ones(1))  # -log E[p]
tensor([0.6931])
>>> bool(fd.losses.expected_bernoulli_nll(logits, torch.ones(1)) > 0.6931)  # E[-log p]
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.categorical import expected_logsumexp, log_expected_softmax
from fastdropout.functional.piecewise import abs as absolute
from fastdropout.functional.piecewise import piecewise
from fastdropout.functional.propagate import add_independent
from fastdropout.functional.transfer import logit_of_expected, softplus_gap
from fastdropout.moments import Moments, as_moments


def squared_error(y: Moments | Tensor, target: Tensor) -> Tensor:
    """(E[y] - target)^2: the variance does not enter.

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.squared_error(y, torch.tensor([1.0, 1.0]))
    tensor([1., 0.])
    """
    y = _with_target(y, target)
    return (y.mean - target) ** 2


def gaussian_nll(y: Moments | Tensor, target: Tensor, eps: float = 1e-6) -> Tensor:
    """Gaussian negative log-likelihood: (E[y] - target)^2 / (2 V[y]) + log sqrt(2 pi V[y]).

    A variance below `eps` counts as `eps`, since the density of a certain value is infinite; the gradient
    passes as if it were there, so that a unit can leave zero variance (as in `torch.nn.GaussianNLLLoss`).

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.gaussian_nll(y, torch.tensor([1.0, 1.0]))
    tensor([1.4189, 0.5724])
    """
    y = _with_target(y, target)
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    var = y.var + (eps - y.var).clamp(min=0).detach()
    return 0.5 * ((y.mean - target) ** 2 / var + torch.log(2 * math.pi * var))


def bernoulli_nll(
    logits: Moments | Tensor, target: Tensor, rule: Literal["fast", "paper"] = "fast"
) -> Tensor:
    """-log of the expected probability of `target`: the paper's cross entropy, with its sign corrected.

        - target log E[p] - (1 - target) log E[1 - p],   p = sigmoid(logits)

    E[p] is off by at most 6e-4, and is taken by its logit: a logit of 1e4 is as good as one of 1. With the
    rule `paper` it is the paper's, sigmoid(E[logits] / sqrt(1 + pi V[logits] / 8)), off by at most 2e-2.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]))
    >>> fd.losses.bernoulli_nll(logits, torch.tensor([1.0, 1.0]))
    tensor([0.6931, 0.4352])
    """
    logits = _with_target(logits, target)
    return F.binary_cross_entropy_with_logits(logit_of_expected(logits, rule), target, reduction="none")


def expected_bernoulli_nll(logits: Moments | Tensor, target: Tensor) -> Tensor:
    """The expected -log probability of `target`, which weighs the spread of the logits too.

    E[-target log p - (1 - target) log(1 - p)] = E[softplus(logits)] - target E[logits]

    Never below `bernoulli_nll`, by Jensen's inequality.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]))
    >>> fd.losses.expected_bernoulli_nll(logits, torch.tensor([1.0, 1.0]))
    tensor([0.8060, 0.6424])
    """
    logits = _with_target(logits, target)
    certain = F.binary_cross_entropy_with_logits(logits.mean, target, reduction="none")
    return certain if logits.is_certain else certain + softplus_gap(logits)


def categorical_nll(logits: Moments | Tensor, target: Tensor) -> Tensor:
    """-log E[softmax(logits)] at the class `target`; classes are the last dimension of `logits`.

    Error at most 6e-4 for variances up to 25 (`functional.categorical`).

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    >>> fd.losses.categorical_nll(logits, torch.tensor([0]))
    tensor([0.3569])
    """
    logits = _with_classes(logits, target)
    return -log_expected_softmax(logits, index=target)


def expected_categorical_nll(logits: Moments | Tensor, target: Tensor) -> Tensor:
    """E[-log softmax(logits)] at the class `target`: E[logsumexp(logits)] - E[logits] there.

    Never below `categorical_nll`, by Jensen's inequality; the same errors.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    >>> fd.losses.expected_categorical_nll(logits, torch.tensor([0]))
    tensor([0.4262])
    """
    logits = _with_classes(logits, target)
    return expected_logsumexp(logits) - logits.mean.gather(-1, target[..., None]).squeeze(-1)


def cross_entropy(
    logits: Moments | Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    expected: bool = False,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` of random logits: shapes, weights and reductions are torch's.

        -log E[softmax(logits)]              expected=False: of the mean probability, as the paper's loss is
        E[-log softmax(logits)]              expected=True

    `logits` (C), (N, C) or (N, C, d1, ...); `target` class indices without the dimension C, or
    probabilities of the shape of `logits`.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    >>> fd.losses.cross_entropy(logits, torch.tensor([0]))
    tensor(0.3569)
    """
    logits = as_moments(logits)
    _check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing}")
    if logits.ndim == 0:
        raise ValueError("logits must have a dimension of classes, got shape ()")
    dim = 0 if logits.ndim == 1 else 1
    x = logits.rearrange(lambda t: t.movedim(dim, -1))
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must have shape ({x.shape[-1]},), got {tuple(weight.shape)}")
    if target.is_floating_point():
        if target.shape != logits.shape:
            raise ValueError(
                f"target probabilities must have the shape of the logits, {tuple(logits.shape)}, "
                f"got {tuple(target.shape)}"
            )
        q = target.movedim(dim, -1)
        q = q * (1 - label_smoothing) + label_smoothing / x.shape[-1]
        loss = _soft_nll(x, q if weight is None else q * weight, expected)
        # torch divides by the number of rows, whatever the weights.
        return _reduce(loss, reduction, loss.numel())
    kept = target != ignore_index
    index = torch.where(kept, target, 0)
    nll = expected_categorical_nll if expected else categorical_nll
    share = kept.to(x.dtype) if weight is None else torch.where(kept, weight[index], 0)
    if label_smoothing == 0:
        loss = nll(x, index) * share
    else:
        q = torch.full_like(x.mean, label_smoothing / x.shape[-1])
        q = q if weight is None else q * weight
        hit = torch.zeros_like(x.mean).scatter(-1, index[..., None], share[..., None])
        loss = _soft_nll(x, q * kept[..., None] + (1 - label_smoothing) * hit, expected)
    return _reduce(torch.where(kept, loss, 0), reduction, share.sum())


def nll_loss(
    log_p: Moments | Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """E of torch's `nll_loss` of random log-probabilities: it is linear in them, so that of their mean.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    >>> fd.losses.nll_loss(fd.functional.log_softmax(logits), torch.tensor([0]))
    tensor(0.4110)
    """
    mean = as_moments(log_p).mean
    return F.nll_loss(mean, target, weight, ignore_index=ignore_index, reduction=reduction)


def binary_cross_entropy_with_logits(
    logits: Moments | Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
    *,
    expected: bool = False,
) -> Tensor:
    """`bernoulli_nll`, or `expected_bernoulli_nll`, with torch's weights and reductions.

    >>> import torch, fastdropout as fd
    >>> logits = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]))
    >>> fd.losses.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 1.0]))
    tensor(0.5641)
    """
    logits = as_moments(logits)
    _check_reduction(reduction)
    if not expected or logits.is_certain:
        return F.binary_cross_entropy_with_logits(
            logit_of_expected(logits), target, weight, reduction=reduction, pos_weight=pos_weight
        )
    loss = F.binary_cross_entropy_with_logits(logits.mean, target, pos_weight=pos_weight, reduction="none")
    # The loss is linear in the logit but for softplus, which has this factor.
    factor = 1.0 if pos_weight is None else 1 + (pos_weight - 1) * target
    loss = loss + factor * softplus_gap(logits)
    return _reduce(loss if weight is None else loss * weight, reduction, loss.numel())


def mse_loss(
    y: Moments | Tensor, target: Moments | Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """E[(y - target)^2] = (E[y] - E[target])^2 + V[y] + V[target], y and target independent.

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.mse_loss(y, torch.tensor([1.0, 1.0]))
    tensor(1.2500)
    """
    return _weighted(_gap(y, target), lambda d: d.mean**2 + d.var, reduction, weight)


def l1_loss(
    y: Moments | Tensor, target: Moments | Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """E[|y - target|], exact: the mean of a folded normal distribution.

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.l1_loss(y, torch.tensor([1.0, 1.0]))
    tensor(0.8654)
    """
    return _weighted(_gap(y, target), lambda d: absolute(d).mean, reduction, weight)


def huber_loss(
    y: Moments | Tensor,
    target: Moments | Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """E[h(y - target)], exact: h(d) = d^2 / 2 within `delta`, delta (|d| - delta / 2) outside (Huber).

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.huber_loss(y, torch.tensor([1.0, 1.0]))
    tensor(0.4915)
    """
    if not delta > 0:
        raise ValueError(f"delta must be positive, got {delta}")

    def plain(d: Tensor) -> Tensor:
        return F.huber_loss(d, torch.zeros_like(d), reduction="none", delta=delta)

    outside = -0.5 * delta**2
    pieces = ((outside, -delta, 0.0), (0.0, 0.0, 0.5), (outside, delta, 0.0))
    return _weighted(
        _gap(y, target), lambda d: piecewise(d, plain, (-delta, delta), pieces).mean, reduction, weight
    )


def smooth_l1_loss(
    y: Moments | Tensor,
    target: Moments | Tensor,
    reduction: str = "mean",
    beta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """E of the Huber loss of `beta` over `beta`; of `l1_loss` where beta is zero.

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.smooth_l1_loss(y, torch.tensor([1.0, 1.0]))
    tensor(0.4915)
    """
    if beta == 0:
        return l1_loss(y, target, reduction, weight)
    return huber_loss(y, target, reduction, beta, weight) / beta


def gaussian_nll_loss(
    y: Moments | Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """E of `torch.nn.functional.gaussian_nll_loss` of a random prediction, for a given variance of the noise.

        (log var + ((E[y] - target)^2 + V[y]) / var) / 2

    `gaussian_nll`, in contrast, takes V[y] itself for the variance of the target.

    >>> import torch, fastdropout as fd
    >>> y = fd.Moments(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    >>> fd.losses.gaussian_nll_loss(y, torch.tensor([1.0, 1.0]), var=0.25)
    tensor(1.8069)
    """
    y = as_moments(y)
    _check_reduction(reduction)
    certain = F.gaussian_nll_loss(y.mean, target, var, full=full, eps=eps, reduction="none")
    if not y.is_certain:
        spread = var if isinstance(var, Tensor) else y.mean.new_full((), var)
        spread = spread.unsqueeze(-1) if spread.ndim and spread.shape == y.shape[:-1] else spread
        # A variance below eps counts as eps; the gradient passes, as in torch.
        spread = spread + (eps - spread).clamp(min=0).detach()
        certain = certain + 0.5 * y.var / spread
    return _reduce(certain, reduction, certain.numel())


def _gap(y: Moments | Tensor, target: Moments | Tensor) -> Moments:
    y, target = as_moments(y), as_moments(target)
    if y.shape != target.shape:
        raise ValueError(
            f"target must have the shape of the moments, {tuple(y.shape)}, got {tuple(target.shape)}"
        )
    return add_independent(y, -target)


def _weighted(
    gap: Moments, loss: Callable[[Moments], Tensor], reduction: str, weight: Tensor | None
) -> Tensor:
    """Reduced as torch does: the mean over weights, where there are any."""
    _check_reduction(reduction)
    value = loss(gap)
    if weight is None:
        return _reduce(value, reduction, value.numel())
    return _reduce(value * weight, reduction, weight.expand_as(value).sum())


def _soft_nll(x: Moments, q: Tensor, expected: bool) -> Tensor:
    """The sum over classes of q times either loss."""
    if expected:
        return (q * (expected_logsumexp(x)[..., None] - x.mean)).sum(-1)
    return -(q * log_expected_softmax(x)).sum(-1)


def _with_classes(logits: Moments | Tensor, target: Tensor) -> Moments:
    logits = as_moments(logits)
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        got = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target must hold class indices of torch.int64, got {got}")
    if target.shape != logits.shape[:-1]:
        raise ValueError(f"target must have shape {tuple(logits.shape[:-1])}, got {tuple(target.shape)}")
    if target.device.type == "cpu" and not torch.compiler.is_compiling() and target.numel():
        low, high = target.aminmax()
        if low < 0 or high >= logits.shape[-1]:
            worst = int(low if low < 0 else high)
            raise ValueError(f"target must lie in [0, {logits.shape[-1]}), got {worst}")
    return logits


def _check_reduction(reduction: str) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be one of none, mean, sum, got {reduction!r}")


def _reduce(loss: Tensor, reduction: str, count: Tensor | int) -> Tensor:
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / count


def _with_target(y: Moments | Tensor, target: Tensor) -> Moments:
    y = as_moments(y)
    if not isinstance(target, Tensor) or target.shape != y.shape:
        got = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target must have the shape of the moments, {tuple(y.shape)}, got {got}")
    if target.dtype != y.dtype:
        raise ValueError(f"target must have the dtype of the moments, {y.dtype}, got {target.dtype}")
    return y
