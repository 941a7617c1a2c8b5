"""Softmax and normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from fastdropout import functional
from fastdropout.integration.registry import method, rule
from fastdropout.moments import Moments, unchecked_moments


def _dim(dim: int | None, x: Moments) -> int:
    """torch's choice where none is given."""
    return dim if dim is not None else 0 if x.ndim in (0, 1, 3) else 1


def _softmax_frozen(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Moments:
    """The same values, with the gradient of a plain softmax that has these probabilities."""
    y = softmax(input, dim, _stacklevel, dtype)
    change = input.mean - input.mean.detach()
    change = torch.where(torch.isfinite(input.mean), change, 0)  # a masked score stays at -inf
    return unchecked_moments(torch.softmax(y.mean.detach().log() + change, _dim(dim, input)), y.var)


@rule(
    F.softmax, torch.softmax, method("softmax"), torch.special.softmax, precise=True, frozen=_softmax_frozen
)
def softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """`functional.softmax`."""
    return functional.softmax(input if dtype is None else input.to(dtype), _dim(dim, input))


@rule(F.log_softmax, torch.log_softmax, method("log_softmax"), torch.special.log_softmax, precise=True)
def log_softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """`functional.log_softmax`."""
    return functional.log_softmax(input if dtype is None else input.to(dtype), _dim(dim, input))


@rule(F.softmin, precise=True)
def softmin(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """softmax(-x)."""
    return softmax(-input, dim, _stacklevel, dtype)


@rule(F.layer_norm, torch.layer_norm, precise=True, how="moments of the statistics")
def layer_norm(
    input: Moments, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Moments:
    """Mean and variance over the features in expectation."""
    dims = list(range(-len(normalized_shape), 0))
    m, v = input.mean, input.var
    centred = m - m.mean(dims, keepdim=True)
    scale = torch.rsqrt((centred**2 + v).mean(dims, keepdim=True) + eps)
    mean, var = centred * scale, v * scale**2
    if weight is not None:
        mean, var = mean * weight, var * weight**2
    return unchecked_moments(mean if bias is None else mean + bias, var)


@rule(F.batch_norm, precise=True)
def batch_norm(
    input: Moments, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """In evaluation mode an affine map with constants."""
    shape = [1, -1, *[1] * (input.ndim - 2)]
    scale = torch.rsqrt(running_var + eps).reshape(shape)
    mean, var = (input.mean - running_mean.reshape(shape)) * scale, input.var * scale**2
    if weight is not None:
        mean, var = mean * weight.reshape(shape), var * weight.reshape(shape) ** 2
    return unchecked_moments(mean if bias is None else mean + bias.reshape(shape), var)
