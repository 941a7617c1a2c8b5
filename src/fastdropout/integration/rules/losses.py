"""torch's losses of Moments: plain tensors, so that training goes on as it is.

Class losses are of the mean probability, -log E[p], as the paper's; the others are expected losses, E[loss],
which is what sampled masks average to.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional import expected_logit, losses
from fastdropout.integration.nodes import transform
from fastdropout.integration.registry import rule
from fastdropout.moments import Moments


def _reduction(reduction: str, size_average: Any = None, reduce: Any = None) -> str:
    if size_average is None and reduce is None:
        return reduction
    warnings.warn("size_average and reduce are deprecated: use reduction", FutureWarning, stacklevel=4)
    if reduce is False:
        return "none"
    return "mean" if size_average in (None, True) else "sum"


def _reduced(loss: Tensor, reduction: str, weight: Tensor | None = None) -> Tensor:
    """As torch does: the mean is weighted."""
    if weight is not None:
        total = weight.expand_as(loss).sum()
        loss = loss * weight
        return loss.sum() / total if reduction == "mean" else _reduced(loss, reduction)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@rule(F.cross_entropy, kind="loss", precise=True)
def cross_entropy(
    input: Moments, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log E[softmax(logits)] at the target: `functional.losses.cross_entropy`."""
    reduction = _reduction(reduction, size_average, reduce)
    return losses.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@rule(F.nll_loss, kind="loss")
def nll_loss(
    input: Moments, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """E[-log p] of random log-probabilities: linear in them, so it is the loss of their mean."""
    reduction = _reduction(reduction, size_average, reduce)
    return F.nll_loss(input.mean, target, weight, ignore_index=ignore_index, reduction=reduction)


@rule(F.binary_cross_entropy_with_logits, kind="loss", precise=True)
def binary_cross_entropy_with_logits(
    input: Moments, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-target log E[p] - (1 - target) log E[1 - p], p = sigmoid(logits)."""
    reduction = _reduction(reduction, size_average, reduce)
    return F.binary_cross_entropy_with_logits(
        expected_logit(input), target, weight, reduction=reduction, pos_weight=pos_weight
    )


@rule(F.binary_cross_entropy, kind="loss", precise=True)
def binary_cross_entropy(
    input: Moments, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-target log E[p] - (1 - target) log E[1 - p] of random probabilities."""
    return F.binary_cross_entropy(
        input.mean, target, weight, reduction=_reduction(reduction, size_average, reduce)
    )


@rule(F.mse_loss, kind="loss", precise=True)
def mse_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """E[(y - target)^2] = (E[y] - target)^2 + V[y]; the variance of a random target is added too."""
    a, b = (x.mean if isinstance(x, Moments) else x for x in (input, target))
    loss = F.mse_loss(a, b, reduction="none")
    for x in (input, target):
        loss = loss + x.var if isinstance(x, Moments) else loss
    return _reduced(loss, _reduction(reduction, size_average, reduce), weight)


@rule(F.gaussian_nll_loss, kind="loss", precise=True)
def gaussian_nll_loss(
    input: Moments, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """The expected loss for a given variance of the observation: V[y] counts as a squared error."""
    if isinstance(var, Moments):
        raise TypeError("gaussian_nll_loss takes a plain variance: give var.mean")
    certain = F.gaussian_nll_loss(input.mean, target, var, full=full, eps=eps, reduction="none")
    spread = var if isinstance(var, Tensor) else input.mean.new_full((), var)
    spread = spread.unsqueeze(-1) if 0 < spread.ndim < input.ndim else spread
    return _reduced(certain + 0.5 * input.var / spread.detach().clamp(min=eps), reduction)


def _expected(f: Callable[[Tensor], Tensor], input: Moments) -> Tensor:
    """E[f(y)] by quadrature."""
    return transform(f, input).mean


@rule(F.l1_loss, F.smooth_l1_loss, F.huber_loss, kind="loss", generic=True, precise=True, how="quadrature")
def robust_loss(
    func: Any, input: Moments, target: Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: Tensor | None = None, **options: Any,
) -> Tensor:  # fmt: skip
    """E[|y - target|] and its smooth kin, by quadrature."""
    loss = _expected(lambda a: func(a, target, reduction="none", **options), input)
    return _reduced(loss, _reduction(reduction, size_average, reduce), weight)
