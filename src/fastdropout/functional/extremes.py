"""The larger of independent Gaussians: maximum, minimum, maxima along a dimension and max pooling.

Of two (Clark, 1961), exact. With s^2 = V[a] + V[b], d = (E[a] - E[b]) / s, P = Phi(d), g(t) = phi(t) - t
Phi(-t):

    E[max(a, b)] = max(E[a], E[b]) + s g(|d|)
    V[max(a, b)] = V[a] P + V[b] (1 - P) + s^2 (d^2 P (1 - P) - d phi(d) (2 P - 1) - phi(d)^2)

Of more, one after the other, each maximum taken as Gaussian again. Error of 4 / 9 / 16 / 64 variables of
variance 1: mean 2e-3 / 6e-3 / 2e-2 / 2e-2, standard deviation 3 / 6 / 9 / 13 % too small
(`tests/functional/test_extremes.py`); less where one of them leads. A tree of pairs is worse: mean 3e-2,
standard deviation 15 % for 16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.normal import density, upper
from fastdropout.moments import Moments, as_moments, unchecked_moments


def maximum(a: Moments | Tensor, b: Moments | Tensor) -> Moments:
    """max(a, b) of independent variables, element by element; shapes broadcast.

    >>> import torch, fastdropout as fd
    >>> a = fd.Moments(torch.tensor(1.0), torch.tensor(0.5))
    >>> b = fd.Moments(torch.tensor(2.0), torch.tensor(1.5))
    >>> fd.functional.maximum(a, b)
    Moments(mean=tensor(2.1996), var=tensor(1.0208))
    """
    a, b = as_moments(a), as_moments(b)
    if a.is_certain and b.is_certain:
        return Moments.certain(torch.maximum(a.mean, b.mean))
    m_a, v_a, m_b, v_b = torch.broadcast_tensors(a.mean, a.var, b.mean, b.var)
    gap, total = m_a - m_b, v_a + v_b
    # As in `relu`: when they are 40 deviations apart one is larger, and the slopes of s and d overflow.
    # So does the difference of a value that pads, -inf, which is never the larger one.
    gap = torch.where(torch.isfinite(gap), gap, torch.where(m_a > m_b, 1.0, -1.0).to(gap.dtype))
    apart = (total <= torch.clamp((gap / 40) ** 2, min=torch.finfo(gap.dtype).tiny ** 0.6)) | ~(
        torch.isfinite(m_a) & torch.isfinite(m_b)
    )
    s = torch.where(apart, 1, total).sqrt()
    d = torch.where(apart, 0, gap) / s
    phi, beyond = density(d), upper(d.abs())
    p = torch.where(d > 0, 1 - beyond, beyond)
    shape = d**2 * p * (1 - p) - d * phi * (2 * p - 1) - phi**2
    first = m_a > m_b
    mean = torch.maximum(m_a, m_b) + torch.where(apart, 0, s * (phi - d.abs() * beyond))
    # Never negative in exact arithmetic.
    var = (v_a * p + v_b * (1 - p) + total * shape).clamp(min=0)
    return unchecked_moments(mean, torch.where(apart, torch.where(first, v_a, v_b), var))


def minimum(a: Moments | Tensor, b: Moments | Tensor) -> Moments:
    """min(a, b) = -max(-a, -b) of independent variables.

    >>> import torch, fastdropout as fd
    >>> a = fd.Moments(torch.tensor(1.0), torch.tensor(0.5))
    >>> b = fd.Moments(torch.tensor(2.0), torch.tensor(1.5))
    >>> fd.functional.minimum(a, b)
    Moments(mean=tensor(0.8004), var=tensor(0.5003))
    """
    return -maximum(-as_moments(a), -as_moments(b))


def amax(x: Moments | Tensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """The maximum along one dimension or several; all of them by default.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.amax(x, dim=-1)
    Moments(mean=tensor([4.0248]), var=tensor([0.9224]))
    """
    x = as_moments(x)
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.ndim))
    dims = tuple(sorted(d % x.ndim for d in dims))
    if x.is_certain:
        return Moments.certain(torch.amax(x.mean, dims, keepdim))
    shape = [1 if i in dims else size for i, size in enumerate(x.shape)]
    rest = [size for i, size in enumerate(x.shape) if i not in dims]
    y = x.rearrange(lambda t: t.movedim(dims, tuple(range(len(dims)))).reshape(-1, *rest))
    return _fold([y[i] for i in range(len(y))]).reshape(shape if keepdim else rest)


def amin(x: Moments | Tensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> Moments:
    """The minimum along one dimension or several; all of them by default.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.amin(x, dim=-1)
    Moments(mean=tensor([0.9745]), var=tensor([0.0137]))
    """
    return -amax(-as_moments(x), dim, keepdim)


def max_pool(
    x: Moments | Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    dims: int,
) -> Moments:
    """`torch.nn.functional.max_pool1d`, `2d` and `3d`: over the last `dims` dimensions.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
    >>> fd.functional.max_pool(x, 2, dims=1).mean  # of two standard Gaussians 1 / sqrt(pi)
    tensor([[[0.5642, 0.5642]]])
    """
    x = as_moments(x)
    kernel, step = _each(kernel_size, dims), _each(kernel_size if stride is None else stride, dims)
    pad, gap = _each(padding, dims), _each(dilation, dims)
    plain: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    if x.is_certain:
        return Moments.certain(plain(x.mean, kernel, step, pad, gap, ceil_mode))
    # torch's own arithmetic says how many windows there are.
    count = plain(x.mean.detach()[:1], kernel, step, pad, gap, ceil_mode).shape[-dims:]
    border: list[int] = []
    for size, k, s, p, g, n in zip(x.shape[-dims:], kernel, step, pad, gap, count, strict=True):
        border = [p, max(0, (n - 1) * s + (k - 1) * g + 1 - size - p), *border]
    wide = unchecked_moments(F.pad(x.mean, border, value=-torch.inf), F.pad(x.var, border))
    windows = []
    for offset in _offsets(kernel):
        index: tuple[Any, ...] = (...,)
        for o, s, g, n in zip(offset, step, gap, count, strict=True):
            index = (*index, slice(o * g, o * g + (n - 1) * s + 1, s))
        windows.append(wide[index])
    return _fold(windows)


def adaptive_max_pool(x: Moments | Tensor, output_size: int | Sequence[int | None], *, dims: int) -> Moments:
    """`torch.nn.functional.adaptive_max_pool1d`, `2d` and `3d`; windows as torch chooses them.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
    >>> fd.functional.adaptive_max_pool(x, 2, dims=1).mean  # 1 / sqrt(pi)
    tensor([[[0.5642, 0.5642]]])
    """
    x = as_moments(x)
    sizes = (output_size,) * dims if isinstance(output_size, int) else tuple(output_size)
    for i in range(dims):
        axis, wanted = x.ndim - dims + i, sizes[i]
        n = x.shape[axis]
        wanted = n if wanted is None else wanted
        parts = [(k * n // wanted, -(-(k + 1) * n // wanted)) for k in range(wanted)]
        windows = [x[(slice(None),) * axis + (slice(first, last),)] for first, last in parts]
        x = Moments.stack([amax(window, axis) for window in windows], axis)
    return x


def _fold(items: list[Moments]) -> Moments:
    return functools.reduce(maximum, items)


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)


def _offsets(kernel: tuple[int, ...]) -> list[tuple[int, ...]]:
    offsets: list[tuple[int, ...]] = [()]
    for size in kernel:
        offsets = [(*o, i) for o in offsets for i in range(size)]
    return offsets
