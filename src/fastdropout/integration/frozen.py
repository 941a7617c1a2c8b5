"""Softmax and norms where the variance needs no gradient: one pass, and a gradient that keeps little."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastdropout import functional
from fastdropout.integration import compiled
from fastdropout.moments import Moments, unchecked_moments


class _Given(torch.autograd.Function):
    """The value `mean` of a function of x, with the gradient that `backward` gives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
        """`mean`, which is not x."""
        ctx.by = backward
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """By the function that was given."""
        return ctx.by(grad), None, None


def _given(x: Tensor, mean: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
    if not (x.requires_grad and torch.is_grad_enabled()):
        return mean
    return _Given.apply(x, mean, backward)


def softmax(x: Moments, dim: int) -> Moments:
    """`functional.softmax`, with the gradient of a plain softmax that has these probabilities."""
    m, v = x._mean, x._var
    last = dim in (-1, m.ndim - 1)
    found = compiled.softmax(m, v) if last and isinstance(v, Tensor) else None
    if found is not None:
        mean, var = found
        return unchecked_moments(
            _given(m, mean, lambda g: torch._softmax_backward_data(g, mean, -1, mean.dtype)), var
        )
    with torch.no_grad():
        y = functional.softmax(x, dim)
    if not (m.requires_grad and torch.is_grad_enabled()):
        return y
    change = torch.where(torch.isfinite(m), m - m.detach(), 0)  # a masked score stays at -inf
    return unchecked_moments(torch.softmax(y.mean.log() + change, dim), y.var)


def norm(
    x: Moments,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    centred: bool,
) -> Moments | None:
    """Layer or RMS norm, `independent=False`; None where the compiled function does not serve."""
    m, v = x._mean, x._var
    if not isinstance(v, Tensor) or tuple(m.shape[m.ndim - len(shape) :]) != tuple(shape):
        return None
    eps = torch.finfo(m.dtype).eps if eps is None else eps
    n = math.prod(shape)
    found = compiled.norm(m, v, n, weight, bias, eps, centred)
    if found is None:
        return None
    mean, var, centre, scale = found
    return unchecked_moments(_given(m, mean, _Slope(m, n, weight, centre, scale, centred)), var)


class _Slope:
    """The gradient of a norm: r (g - mean(g) - y mean(g y)) of rows, g times the weight."""

    def __init__(
        self, m: Tensor, n: int, weight: Tensor | None, centre: Tensor, scale: Tensor, centred: bool
    ) -> None:
        self.rows = m.detach().reshape(-1, n)
        self.weight = None if weight is None else weight.detach().reshape(n)
        self.centre, self.scale, self.centred = centre.unsqueeze(1), scale.unsqueeze(1), centred

    def __call__(self, grad: Tensor) -> Tensor:
        n = self.rows.shape[1]
        g = grad.reshape(-1, n)
        if self.centred:
            out = torch.ops.aten.native_layer_norm_backward(
                g, self.rows, [n], self.centre, self.scale, self.weight, None, [True, False, False]
            )[0]
        else:
            g = g if self.weight is None else g * self.weight
            y = self.rows * self.scale
            out = (g - y * (g * y).mean(1, keepdim=True)) * self.scale
        return out.view(grad.shape)
