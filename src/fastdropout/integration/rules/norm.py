"""Softmax and normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from fastdropout.integration.registry import method, rule
from fastdropout.moments import Moments, unchecked_moments


@rule(F.softmax, torch.softmax, method("softmax"), torch.special.softmax, precise=True, how="delta method")
def softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """To first order: V[p_i] = p_i^2 ((1 - 2 p_i) V[a_i] + sum_j p_j^2 V[a_j])."""
    dim = -1 if dim is None else dim
    p = torch.softmax(input.mean, dim, dtype=dtype)
    v = input.var
    spread = (p**2 * v).sum(dim, keepdim=True)
    return unchecked_moments(p, torch.clamp(p**2 * ((1 - 2 * p) * v + spread), min=0))


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
