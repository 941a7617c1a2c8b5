"""torch's losses of Moments: plain tensors, so that training loops need no change.

Class losses are of the mean probability, -log E[p], as the paper's; the others are expected losses, E[loss],
which is what sampled masks average to.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional import logit_of_expected, losses
from fastdropout.integration.registry import rule
from fastdropout.moments import Moments


def _reduction(reduction: str, size_average: Any = None, reduce: Any = None) -> str:
    if size_average is None and reduce is None:
        return reduction
    warnings.warn("size_average and reduce are deprecated: use reduction", FutureWarning, stacklevel=4)
    if reduce is False:
        return "none"
    return "mean" if size_average in (None, True) else "sum"


@rule(F.cross_entropy, kind="loss", precise=True, how="quadrature, 20 nodes for all classes")
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


@rule(F.binary_cross_entropy_with_logits, kind="loss", precise=True, how="fit")
def binary_cross_entropy_with_logits(
    input: Moments, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-target log E[p] - (1 - target) log E[1 - p], p = sigmoid(logits)."""
    reduction = _reduction(reduction, size_average, reduce)
    return F.binary_cross_entropy_with_logits(
        logit_of_expected(input), target, weight, reduction=reduction, pos_weight=pos_weight
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
    return losses.mse_loss(input, target, _reduction(reduction, size_average, reduce), weight)


@rule(F.gaussian_nll_loss, kind="loss", precise=True)
def gaussian_nll_loss(
    input: Moments, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """The expected loss for a given variance of the observation: V[y] counts as a squared error."""
    if isinstance(var, Moments):
        raise TypeError("gaussian_nll_loss takes a plain variance: give var.mean")
    return losses.gaussian_nll_loss(input, target, var, full, eps, reduction)


@rule(F.l1_loss, kind="loss", precise=True)
def l1_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """E[|y - target|]."""
    return losses.l1_loss(input, target, _reduction(reduction, size_average, reduce), weight)


@rule(F.smooth_l1_loss, kind="loss", precise=True)
def smooth_l1_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """E of the smooth L1 loss of y and target."""
    return losses.smooth_l1_loss(input, target, _reduction(reduction, size_average, reduce), beta)


@rule(F.huber_loss, kind="loss", precise=True)
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """E of the Huber loss."""
    return losses.huber_loss(input, target, reduction, delta, weight)
