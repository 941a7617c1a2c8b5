"""Average and maximum pooling, maxima and minima."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout import functional
from fastdropout.integration.registry import method, rule
from fastdropout.moments import Moments, unchecked_moments


@rule(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.avg_pool1d, generic=True)
def avg_pool(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """The mean of n independent elements: V = mean(V[x]) / n, where padding counts if torch counts it."""
    ones = torch.ones_like(input.mean[:1])
    # The mean of ones is count / n, where `count` leaves padding out and n is what torch divides by.
    inverse = func(ones, *args, **kwargs) / _count(func, ones, *args, **kwargs)
    return unchecked_moments(func(input.mean, *args, **kwargs), func(input.var, *args, **kwargs) * inverse)


def _count(
    func: Any, ones: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    """The elements of each window, without the padding."""
    if func is not F.avg_pool1d:
        return func(ones, kernel_size, stride, padding, ceil_mode, True, 1)

    def wide(x: Any, other: int) -> tuple[int, int]:
        return other, x if isinstance(x, int) else x[0]

    kernel, step, pad = wide(kernel_size, 1), wide(stride or kernel_size, 1), wide(padding, 0)
    return F.avg_pool2d(ones.unsqueeze(-2), kernel, step, pad, ceil_mode, True, 1).squeeze(-2)


@rule(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, torch.adaptive_avg_pool1d,
      generic=True)  # fmt: skip
def adaptive_avg_pool(func: Any, input: Moments, output_size: Any) -> Moments:
    """The mean of the n elements of each window: V = mean(V[x]) / n."""
    mean, var = func(input.mean, output_size), func(input.var, output_size)
    dims = int(func.__name__[-2])
    for d in range(-dims, 0):
        before, after = input.shape[d], mean.shape[d]
        sizes = [-(-(k + 1) * before // after) - k * before // after for k in range(after)]
        shape = [-1, *[1] * (-d - 1)]
        var = var / torch.tensor(sizes, dtype=var.dtype, device=var.device).view(shape)
    return unchecked_moments(mean, var)


_MAX: dict[Any, int] = {
    torch.max_pool1d: 1, torch.max_pool2d: 2, torch.max_pool3d: 3,
    F.max_pool1d: 1, F.max_pool2d: 2, F.max_pool3d: 3,
}  # fmt: skip


@rule(*_MAX, generic=True, how="one after the other, as Gaussians")
def max_pool(
    func: Any, input: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Moments:  # fmt: skip
    """The largest element: standard deviation 3 / 6 % too small for windows of 4 / 9 equal elements."""
    stride = stride if stride is None or isinstance(stride, int) or len(stride) else None
    return functional.max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, dims=_MAX[func])


_ADAPTIVE: dict[Any, int] = {F.adaptive_max_pool1d: 1, F.adaptive_max_pool2d: 2, F.adaptive_max_pool3d: 3}


@rule(*_ADAPTIVE, generic=True, how="one after the other, as Gaussians")
def adaptive_max_pool(func: Any, input: Moments, output_size: Any, return_indices: bool = False) -> Moments:
    """The largest element of each window, as in `max_pool`."""
    return functional.adaptive_max_pool(input, output_size, dims=_ADAPTIVE[func])


@rule(torch.maximum, method("maximum"), torch.fmax, method("fmax"))
def maximum(input: Any, other: Any) -> Moments:
    """The larger of two independent Gaussians, exact (Clark, 1961); of an object and itself, itself."""
    return input if input is other else functional.maximum(input, other)


@rule(torch.minimum, method("minimum"), torch.fmin, method("fmin"))
def minimum(input: Any, other: Any) -> Moments:
    """The smaller of two independent Gaussians."""
    return input if input is other else functional.minimum(input, other)


@rule(torch.amax, method("amax"), torch.amin, method("amin"), generic=True,
      how="one after the other, as Gaussians")  # fmt: skip
def extreme(func: Any, input: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """The largest or smallest: standard deviation 3 to 13 % too small for 4 to 64 equal elements."""
    return _extreme(func)(input, dim, keepdim)


@rule(torch.max, method("max"), torch.min, method("min"), generic=True,
      how="one after the other, as Gaussians")  # fmt: skip
def largest(func: Any, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """Of all elements, of two tensors, or along a dimension; then with the index of the largest mean."""
    top = func.__name__ == "max"
    other = dim if isinstance(dim, Tensor | Moments) else other
    if other is not None:
        return (maximum if top else minimum)(input, other)
    if dim is None:
        return _extreme(func)(input)
    index = (torch.argmax if top else torch.argmin)(input.mean, dim, keepdim)
    kind = torch.return_types.max if top else torch.return_types.min
    return kind((_extreme(func)(input, dim, keepdim), index))


def _extreme(func: Any) -> Any:
    return functional.amax if func.__name__.endswith("max") else functional.amin


@rule(torch.prod, method("prod"), generic=True)
def product(
    func: Any, input: Moments, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Moments:
    """E = prod E[x], V = prod (V[x] + E[x]^2) - prod E[x]^2, of independent elements."""
    x = input if dtype is None else input.to(dtype)
    of = (lambda t: torch.prod(t)) if dim is None else (lambda t: torch.prod(t, dim, keepdim))
    squares = x.mean**2
    # Never negative in exact arithmetic.
    return unchecked_moments(of(x.mean), (of(squares + x.var) - of(squares)).clamp(min=0))


@rule(F.fold, torch.diff, method("diff"), generic=True)
def sums(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Sums and differences of independent elements."""
    mean = func(input.mean, *args, **kwargs)
    if func is F.fold:
        return unchecked_moments(mean, F.fold(input.var, *args, **kwargs))
    if args[:1] not in ((), (1,)) or kwargs.get("n", 1) != 1 or set(kwargs) - {"n", "dim"}:
        raise TypeError("diff of Moments takes n=1, no prepend and no append: others would be correlated")
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    n = input.shape[dim]
    return unchecked_moments(mean, input.var.narrow(dim, 1, n - 1) + input.var.narrow(dim, 0, n - 1))
