"""Sums, products and powers. Two random values are taken as independent, except where they are one object."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastdropout.functional.propagate import add_independent, multiply_independent
from fastdropout.integration.context import active, fixed
from fastdropout.integration.registry import elementwise, method, rule
from fastdropout.moments import Moments, as_moments, unchecked_moments


def _both(name: str) -> list[Any]:
    return [getattr(torch, name, None), method(name)]


def _scaled(x: Any, factor: Any) -> Any:
    return x if isinstance(factor, int | float) and factor == 1 else x * factor


@rule(*_both("add"), Tensor.__add__, Tensor.__radd__, pointwise=True, shifts=True)
def add(input: Any, other: Any, *, alpha: float = 1) -> Moments:
    """E[a + b] = E[a] + E[b], V[a + b] = V[a] + V[b]; x + x is 2 x."""
    if input is other:
        return input * (1 + alpha)
    other = _scaled(other, alpha)
    if isinstance(input, Moments) and isinstance(other, Moments):
        return _broadcast(add_independent(input, other))
    return input + other


@rule(*_both("sub"), *_both("subtract"), Tensor.__sub__, pointwise=True, shifts=True)
def sub(input: Any, other: Any, *, alpha: float = 1) -> Moments:
    """E[a - b] = E[a] - E[b], V[a - b] = V[a] + V[b]; x - x is 0."""
    if input is other:
        return input * (1 - alpha)
    return add(input, -_scaled(other, alpha))


@rule(*_both("rsub"), Tensor.__rsub__, pointwise=True, shifts=True)
def rsub(input: Any, other: Any, *, alpha: float = 1) -> Moments:
    """other - input."""
    return add(other, -_scaled(input, alpha))


@rule(*_both("mul"), *_both("multiply"), Tensor.__mul__, Tensor.__rmul__, pointwise=True)
def mul(input: Any, other: Any) -> Moments:
    """V[a b] = V[a] V[b] + V[a] E[b]^2 + E[a]^2 V[b]; x x is the square of x."""
    if input is other:
        return square(input)
    if isinstance(input, Moments) and isinstance(other, Moments):
        a, b = input, other
        if a.is_certain or b.is_certain:
            return multiply_independent(a, b)
        mean, (p, q) = a._mean * b._mean, (fixed(a._mean).square(), fixed(b._mean).square())
        if active().keeps_sources():
            both = a.var * b.var
            mean = active().residual(mean, both)
            var = both.addcmul(a.var, q).addcmul(p, b.var)
        else:
            var = torch.addcmul(a.var * (q + b.var), p, b.var)
        return unchecked_moments(mean, var)
    product = input * other
    return _broadcast(product) if isinstance(product, Moments) else product


@rule(*_both("neg"), *_both("negative"), Tensor.__neg__, pointwise=True)
def neg(input: Moments) -> Moments:
    """-x."""
    return -input


@rule(*_both("div"), *_both("divide"), *_both("true_divide"), Tensor.__truediv__, pointwise=True,
      how="delta method")  # fmt: skip
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Moments:
    """a / b as a times 1 / b, the latter by the delta method where b is random."""
    if rounding_mode is not None:
        raise TypeError(f"division of Moments takes no rounding_mode, got {rounding_mode!r}")
    if not isinstance(other, Moments):
        return _broadcast(input / other)
    return mul(input, reciprocal(other))


@rule(Tensor.__rtruediv__, Tensor.__rdiv__, pointwise=True, how="delta method")
def rdiv(input: Moments, other: Any) -> Moments:
    """other / input."""
    return mul(other, reciprocal(input))


@rule(*_both("reciprocal"), how="delta method", pointwise=True)
def reciprocal(input: Moments) -> Moments:
    """1 / a, whose moments are infinite for a Gaussian: to second order in V[a] / E[a]^2.

    E[1/a] ~ 1/m,   V[1/a] ~ V[a] / m^4
    """
    inverse = 1 / input.mean
    return unchecked_moments(inverse, input.var * inverse**4)


@rule(Tensor.__rpow__, pointwise=True, how="quadrature")
def rpow(input: Moments, other: Any) -> Moments:
    """other ** input, by quadrature."""
    return power(other, input)


@rule(*_both("square"), pointwise=True)
def square(input: Moments) -> Moments:
    """E[x^2] = m^2 + v, V[x^2] = 2 v^2 + 4 m^2 v."""
    m, v = input.mean, input.var
    return unchecked_moments(m**2 + v, 2 * v * (v + 2 * m**2))


def cube(x: Moments) -> Moments:
    """E[x^3] = m^3 + 3 m v, V[x^3] = 9 m^4 v + 36 m^2 v^2 + 15 v^3."""
    m, v = x.mean, x.var
    s = m**2
    return unchecked_moments(m * (s + 3 * v), v * (9 * s**2 + 3 * v * (12 * s + 5 * v)))


@rule(*_both("pow"), *_both("float_power"), Tensor.__pow__, pointwise=True, how="quadrature")
def power(input: Any, exponent: Any) -> Moments:
    """Squares exactly, other powers by quadrature, negative ones by the delta method."""
    if isinstance(exponent, Moments):
        if isinstance(input, Moments):
            raise TypeError("a random base with a random exponent has no moment rule")
        return elementwise(lambda a: torch.pow(input, a))(exponent)
    if isinstance(exponent, int | float):
        if exponent == 1:
            return input
        if exponent == 2:
            return square(input)
        if exponent == 3:
            return cube(input)
        if exponent == int(exponent) and exponent > 0:
            return elementwise(torch.pow)(input, exponent)
    return delta(lambda m: torch.pow(m, exponent), input)


@rule(*_both("sqrt"), *_both("rsqrt"), *_both("log"), *_both("log2"), *_both("log10"), *_both("log1p"),
      *_both("logit"), *_both("tan"), *_both("acos"), *_both("asin"), *_both("atanh"),
      generic=True, how="delta method")  # fmt: skip
def root(func: Any, input: Moments) -> Moments:
    """Functions that a Gaussian leaves the domain of, to first order: f(m), f'(m)^2 v."""
    return delta(func, input)


def delta(func: Any, x: Moments) -> Moments:
    """f(m) and f'(m)^2 v: the delta method, for functions that are not defined on the whole line."""
    with torch.enable_grad():
        m = x.mean if x.mean.requires_grad else x.mean.detach().requires_grad_()
        y = func(m)
        (slope,) = torch.autograd.grad(y.sum(), m, create_graph=torch.is_grad_enabled() and x.requires_grad)
    return unchecked_moments(func(x.mean), slope**2 * x.var)


@rule(*_both("sum"), generic=True)
def total(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Sums of independent elements."""
    return unchecked_moments(func(input.mean, *args, **kwargs), func(input.var, *args, **kwargs))


@rule(*_both("mean"), generic=True)
def average(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """V of the mean of n independent elements: the mean variance over n."""
    mean = func(input.mean, *args, **kwargs)
    n = max(1, input.mean.numel() // max(1, mean.numel()))
    return unchecked_moments(mean, func(input.var, *args, **kwargs) / n)


@rule(*_both("cumsum"), generic=True)
def running_sum(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Running sums of independent elements."""
    return unchecked_moments(func(input.mean, *args, **kwargs), func(input.var, *args, **kwargs))


@rule(*_both("addcmul"))
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Moments:
    """input + value tensor1 tensor2."""
    return add(input, _scaled(mul(tensor1, tensor2), value))


@rule(*_both("addcdiv"), kind="composite", how="composed of rules")
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """input + value tensor1 / tensor2."""
    return input + value * (tensor1 / tensor2)


@rule(*_both("index_add"), *_both("scatter_add"), generic=True)
def scattered_sum(
    func: Any, input: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1
) -> Moments:
    """Add elements to others, all independent."""
    a, b = as_moments(input), _scaled(as_moments(source), alpha)
    return unchecked_moments(func(a.mean, dim, index, b.mean), func(a.var, dim, index, b.var))


@rule(*_both("norm"), torch.linalg.vector_norm, torch.linalg.norm, kind="composite", generic=True,
      how="composed of rules")  # fmt: skip
def norm(func: Any, input: Any, p: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """sqrt(sum x^2), the Euclidean norm of vectors; of absolute values their sum."""
    order = kwargs.pop("ord", p)
    kind = 2 if order in (None, "fro") else order
    flat = func in (torch.linalg.norm,) and order is not None and not isinstance(dim, int)
    if kind not in (1, 2) or kwargs.pop("dtype", None) is not None or kwargs or (flat and input.ndim > 1):
        raise TypeError(f"norms of Moments are those of vectors with order 1 or 2, got {order!r}")
    terms = input.abs() if kind == 1 else input * input
    total = terms.sum() if dim is None else terms.sum(dim, keepdim=keepdim)
    return total if kind == 1 else torch.sqrt(total)


@rule(*_both("lerp"))
def lerp(input: Any, end: Any, weight: Any) -> Moments:
    """(1 - w) a + w b, with a, b and w independent.

    V = ((1 - E[w])^2 + V[w]) V[a] + (E[w]^2 + V[w]) V[b] + V[w] (E[b] - E[a])^2
    """
    a, b = as_moments(input), as_moments(end)
    if not isinstance(weight, Moments):
        return add(a * (1 - weight), b * weight)
    w, v = weight.mean, weight.var
    var = ((1 - w) ** 2 + v) * a.var + (w**2 + v) * b.var + v * (b.mean - a.mean) ** 2
    return unchecked_moments(torch.lerp(a.mean, b.mean, w), var)


def _broadcast(x: Moments) -> Moments:
    """A factor that broadcasts makes the mean larger; the variance follows."""
    return x if x.var.shape == x.mean.shape else unchecked_moments(x.mean, x.var.expand(x.mean.shape))
