"""Linear layers, convolutions and products of matrices, with one random operand or two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.integration.context import active, fixed
from fastdropout.integration.registry import method, rule, words
from fastdropout.integration.rules.arithmetic import add
from fastdropout.moments import Moments, as_moments, unchecked_moments


def bilinear_moments(product: Any, a: Any, b: Any, mean: Tensor | None = None) -> Moments:
    """A product that is linear in each operand, of independent elements; `mean` where it is known.

    E = E[a] E[b]
    V = V[a] (V[b] + E[b]^2) + E[a]^2 V[b]
    """
    a, b = as_moments(a), as_moments(b)
    mean = product(a._mean, b._mean) if mean is None else mean
    if b.is_certain:
        return unchecked_moments(mean, product(a.var, fixed(b._mean).square()))
    if a.is_certain:
        return unchecked_moments(mean, product(fixed(a._mean).square(), b.var))
    squares, other = fixed(b._mean).square(), product(fixed(a._mean).square(), b.var)
    if not active().keeps_sources():
        return unchecked_moments(mean, product(a.var, squares + b.var) + other)
    both = product(a.var, b.var)
    return unchecked_moments(active().residual(mean, both), both + product(a.var, squares) + other)


@rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Moments:
    """W x + b: E = W E[x] + b, V = W^2 V[x]; noisy weights as in a product."""
    if isinstance(weight, Moments) or isinstance(bias, Moments):
        y = bilinear_moments(F.linear, input, weight)
        return y if bias is None else add(y, bias)
    return unchecked_moments(F.linear(input._mean, weight, bias), F.linear(input.var, fixed(weight).square()))


_PRODUCTS = words("matmul bmm mm mv dot outer inner kron")


@rule(
    *[getattr(torch, name) for name in _PRODUCTS],
    *[method(name) for name in (*_PRODUCTS, "__matmul__")],
    torch.linalg.matmul,
    torch.linalg.vecdot,
    generic=True,
)
def matmul(func: Any, input: Any, other: Any) -> Moments:
    """A B: E = E[A] E[B], V = V[A] (V[B] + E[B]^2) + E[A]^2 V[B], squares of elements."""
    return bilinear_moments(func, input, other)


@rule(Tensor.__rmatmul__)
def rmatmul(input: Any, other: Any) -> Moments:
    """other @ input."""
    return bilinear_moments(torch.matmul, other, input)


@rule(torch.addmm, method("addmm"), torch.baddbmm, method("baddbmm"), torch.addmv, method("addmv"))
def addmm(input: Any, first: Any, second: Any, *, beta: float = 1, alpha: float = 1) -> Moments:
    """beta input + alpha A B."""
    product = bilinear_moments(torch.matmul, first, second)
    scaled = product if alpha == 1 else product * alpha
    return scaled if beta == 0 else add(input if beta == 1 else input * beta, scaled)


@rule(torch.addbmm, method("addbmm"), kind="composite", how="composed of rules")
def addbmm(input: Any, first: Any, second: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta input + alpha sum_i A_i B_i."""
    return beta * input + alpha * torch.bmm(first, second).sum(0)


@rule(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Moments:
    """Sums over the dimensions `dims` of both."""
    if out is not None:
        raise TypeError("tensordot of Moments takes no out")
    return bilinear_moments(lambda x, y: torch.tensordot(x, y, dims), a, b)


@rule(torch.einsum)
def einsum(equation: str, *operands: Any) -> Moments:
    """Any sum of products: E = einsum(E...), V = einsum((V + E^2)...) - einsum(E^2...).

    For two operands in the form of `bilinear_moments`, in which nothing cancels.
    """
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if len(operands) == 2:
        return bilinear_moments(lambda a, b: torch.einsum(equation, a, b), *operands)
    items = [as_moments(x) for x in operands]
    mean = torch.einsum(equation, *[x.mean for x in items])
    if len(items) == 1:
        return unchecked_moments(mean, torch.einsum(equation, items[0].var))
    squares = torch.einsum(equation, *[x.mean**2 for x in items])
    second = torch.einsum(equation, *[x.mean**2 if x.is_certain else x.mean**2 + x.var for x in items])
    # Never negative in exact arithmetic.
    return unchecked_moments(mean, torch.clamp(second - squares, min=0))


@rule(torch.conv1d, torch.conv2d, torch.conv3d, F.conv1d, F.conv2d, F.conv3d, torch.conv_transpose1d,
      torch.conv_transpose2d, torch.conv_transpose3d, F.conv_transpose1d, F.conv_transpose2d,
      F.conv_transpose3d, generic=True)  # fmt: skip
def convolution(func: Any, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Moments:
    """W * x + b: E = W * E[x] + b, V = W^2 * V[x]; noisy weights as in a product."""
    product = lambda a, b: func(a, b, None, *args, **kwargs)  # noqa: E731
    if not isinstance(weight, Moments) and not isinstance(bias, Moments):
        return bilinear_moments(product, input, weight, func(input._mean, weight, bias, *args, **kwargs))
    y = bilinear_moments(product, input, weight)
    return y if bias is None else add(y, bias.reshape(-1, *[1] * int(func.__name__[-2])))
