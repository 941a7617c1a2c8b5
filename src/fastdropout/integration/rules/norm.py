"""Softmax and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from fastdropout import functional
from fastdropout.integration import frozen
from fastdropout.integration.registry import method, rule
from fastdropout.integration.rules.arithmetic import add, mul
from fastdropout.moments import Moments, as_moments


def _dim(dim: int | None, x: Moments) -> int:
    """torch's choice where none is given."""
    return dim if dim is not None else 0 if x.ndim in (0, 1, 3) else 1


def _softmax_frozen(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Moments:
    """The same values, with the gradient of a plain softmax that has these probabilities."""
    return frozen.softmax(input if dtype is None else input.to(dtype), _dim(dim, input))


@rule(
    F.softmax,
    torch.softmax,
    method("softmax"),
    torch.special.softmax,
    precise=True,
    frozen=_softmax_frozen,
    how="log-odds as Gaussians",
)
def softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """The sigmoid of log-odds of variance V[a_k] + sum_j w_j^2 V[a_j], w_j = p_j / (1 - p_k)."""
    return functional.softmax(input if dtype is None else input.to(dtype), _dim(dim, input))


@rule(
    F.log_softmax,
    torch.log_softmax,
    method("log_softmax"),
    torch.special.log_softmax,
    precise=True,
    how="log-odds as Gaussians",
)
def log_softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """E = E[a_k] - E[log S], V = V[a_k] (1 - 2 E[p_k]) + V[log S], S = sum exp(a)."""
    return functional.log_softmax(input if dtype is None else input.to(dtype), _dim(dim, input))


@rule(F.softmin, precise=True, how="log-odds as Gaussians")
def softmin(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """softmax(-x)."""
    return softmax(-input, dim, _stacklevel, dtype)


@rule(
    torch.logsumexp, method("logsumexp"), torch.special.logsumexp, precise=True, how="log-odds as Gaussians"
)
def logsumexp(input: Moments, dim: Any, keepdim: bool = False) -> Moments:
    """V[log S] ~ sum_j (E[p_j]^2 + .4 V[p_j]) V[a_j], S = sum exp(a)."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(dims) > 1:
        raise TypeError(f"logsumexp of Moments takes one dimension, got {dims}")
    return functional.logsumexp(input, dims[0], keepdim)


@rule(torch.logaddexp, method("logaddexp"), precise=True, how="log-odds as Gaussians")
def logaddexp(input: Any, other: Any) -> Moments:
    """log(exp(a) + exp(b)), of independent ones."""
    pair = [as_moments(x) for x in (input, other)]
    shape = torch.broadcast_shapes(*[x.shape for x in pair])
    return functional.logsumexp(Moments.stack([x.rearrange(lambda t: t.expand(shape)) for x in pair], -1))


_STATISTICS = "statistics in expectation"


def _affine(norm: Callable[..., Moments], weight: Any, bias: Any, channels: bool = False) -> Any:
    """norm(weight, bias); where one of these is random, y w + b of the plainly normalised y."""
    if not isinstance(weight, Moments) and not isinstance(bias, Moments):
        return norm(weight, bias)
    y: Any = norm(None, None)
    shape = (-1, *(1,) * (y.ndim - 2))
    y = y.mean if y.is_certain else y
    for combine, x in ((mul, weight), (add, bias)):
        if x is not None:
            y = combine(y, x.reshape(shape) if channels else x)
    return y


def _layer_norm_frozen(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Moments:
    """The same values in one pass."""
    plain = isinstance(input, Moments) and not isinstance(weight, Moments) and not isinstance(bias, Moments)
    found = frozen.norm(input, normalized_shape, weight, bias, eps, True) if plain else None
    return layer_norm(input, normalized_shape, weight, bias, eps) if found is None else found


@rule(F.layer_norm, torch.layer_norm, precise=True, frozen=_layer_norm_frozen, how=_STATISTICS)
def layer_norm(
    input: Moments, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Moments:
    """E = r (E[x] - mean E[x]), V = r^2 V[x], r = 1 / sqrt(E[S] + eps)."""
    x = as_moments(input)
    return _affine(
        lambda w, b: functional.layer_norm(x, normalized_shape, w, b, eps, independent=False), weight, bias
    )


def _rms_norm_frozen(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Moments:
    """The same values in one pass."""
    plain = isinstance(input, Moments) and not isinstance(weight, Moments)
    found = frozen.norm(input, normalized_shape, weight, None, eps, False) if plain else None
    return rms_norm(input, normalized_shape, weight, eps) if found is None else found


@rule(F.rms_norm, torch.rms_norm, precise=True, frozen=_rms_norm_frozen, how=_STATISTICS)
def rms_norm(input: Moments, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Moments:
    """E = r E[x], V = r^2 V[x], r = 1 / sqrt(mean(E[x^2]) + eps)."""
    x = as_moments(input)
    return _affine(
        lambda w, _: functional.rms_norm(x, normalized_shape, w, eps, independent=False), weight, None
    )


@rule(F.group_norm, torch.group_norm, precise=True, how=_STATISTICS)
def group_norm(
    input: Moments, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Moments:
    """`layer_norm` over the channels of each group."""
    x = as_moments(input)
    return _affine(
        lambda w, b: functional.group_norm(x, num_groups, w, b, eps, independent=False),
        weight,
        bias,
        channels=True,
    )


@rule(F.instance_norm, precise=True, how=_STATISTICS)
def instance_norm(
    input: Moments, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """`layer_norm` over each channel of each example."""
    x, last = as_moments(input), (use_input_stats, momentum, eps)
    return _affine(
        lambda w, b: functional.instance_norm(x, running_mean, running_var, w, b, *last, independent=False),
        weight,
        bias,
        channels=True,
    )


@rule(F.batch_norm, precise=True, how=f"exact in evaluation, {_STATISTICS} in training")
def batch_norm(
    input: Moments, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """An affine map in evaluation mode; in training `layer_norm` over the batch."""
    x, last = as_moments(input), (training, momentum, eps)
    return _affine(
        lambda w, b: functional.batch_norm(x, running_mean, running_var, w, b, *last, independent=False),
        weight,
        bias,
        channels=True,
    )
