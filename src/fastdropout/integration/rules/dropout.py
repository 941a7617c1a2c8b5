"""Where noise begins: dropout of elements and of channels, in training and in evaluation mode alike."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.integration.context import active
from fastdropout.integration.registry import rule
from fastdropout.moments import Moments, as_moments

# The value that alpha dropout gives to a dropped unit: -scale * alpha of SELU.
_ALPHA = -1.7580993408473766


def _checked(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability must lie in [0, 1], got {p}")
    return p


@rule(F.dropout, begins=True)
def dropout(input: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """x d / keep: `torch.nn.Dropout` scales what is kept, so that the mean stays."""
    return active().mask(input, _checked(p))


@rule(torch.dropout, torch.dropout_, begins=True)
def native_dropout(input: Tensor | Moments, p: float, train: bool) -> Any:
    """`torch.dropout`."""
    return active().mask(input, _checked(p))


@rule(F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, begins=True, generic=True)
def channel_dropout(
    func: Any, input: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any
) -> Any:
    """One mask for a whole channel: the trace knows that its elements are zeroed together."""
    return active().mask(input, _checked(p), shared=_channel(func, input.ndim))


@rule(F.alpha_dropout, torch.alpha_dropout, begins=True)
def alpha_dropout(
    input: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """A dropped unit becomes alpha' = -1.758, then all are scaled and shifted (Klambauer et al., 2017).

    y = a (x d + alpha' (1 - d)) + b,   a = 1 / sqrt(keep (1 + drop alpha'^2)),   b = -a drop alpha'
    E[y] = a keep E[x]
    """
    return _alpha(input, p)


@rule(F.feature_alpha_dropout, torch.feature_alpha_dropout, begins=True)
def feature_alpha_dropout(
    input: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """`alpha_dropout` of whole channels."""
    return _alpha(input, p, tuple(range(2, input.ndim)))


def _alpha(input: Tensor | Moments, p: float, shared: tuple[int, ...] = ()) -> Any:
    x = as_moments(input)
    if _checked(p) == 0:
        return x
    if p == 1:
        return Moments.certain(torch.zeros_like(x._mean))
    keep = 1 - p
    a = 1 / math.sqrt(keep * (1 + p * _ALPHA**2))
    return active().multiplicative(x, a * keep * x._mean, x._mean - _ALPHA, a**2 * keep * p, a * keep, shared)


def _channel(func: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions that one mask covers: all but the batch and the channel."""
    unbatched = {F.dropout1d: 2, F.dropout3d: 4}.get(func)
    first = 1 if ndim == unbatched else 2
    return tuple(range(first, ndim))
