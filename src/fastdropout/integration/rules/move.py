"""Functions that only move, copy or drop elements: the same for mean and variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.integration.context import note_once
from fastdropout.integration.registry import method, name_of, rule, words
from fastdropout.integration.values import joined, means, overwrite, variances
from fastdropout.moments import Moments, as_moments, unchecked_moments

_NAMES = words(
    """
    reshape view view_as reshape_as permute transpose t swapaxes swapdims movedim moveaxis flatten
    unflatten squeeze unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave roll flip
    fliplr flipud rot90 chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind select
    narrow index_select gather take_along_dim take __getitem__ masked_select diagonal diag diag_embed
    contiguous clone detach to type float double half bfloat16 cpu cuda type_as unfold tril triu
    pixel_shuffle pixel_unshuffle channel_shuffle adjoint ravel atleast_1d atleast_2d atleast_3d
    unsafe_chunk unsafe_split requires_grad_ positive as_strided real squeeze_copy resolve_conj
    resolve_neg
    """
)


@rule(
    *[method(name) for name in _NAMES],
    *[getattr(torch, name, None) for name in _NAMES],
    *[getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real")],
    F.pixel_shuffle,
    F.pixel_unshuffle,
    F.unfold,
    F.channel_shuffle,
    torch.broadcast_tensors,
    torch._VF._pack_padded_sequence,
    kind="moves",
    generic=True,
    how="moves elements",
)
def move(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the function to the mean and to the variance."""
    mean = func(*means(args), **kwargs)
    return joined(mean, func(*variances(args), **kwargs))


_JOINS = words(
    """
    cat stack hstack vstack dstack concat concatenate column_stack row_stack
    """
)


@rule(*[getattr(torch, name, None) for name in _JOINS], kind="moves", generic=True, how="moves elements")
def join(func: Any, tensors: Sequence[Tensor | Moments], *args: Any, **kwargs: Any) -> Moments:
    """Join means and variances; a plain tensor has variance zero."""
    items = [as_moments(x) for x in tensors]
    mean = func([x.mean for x in items], *args, **kwargs)
    return unchecked_moments(mean, func([x.var.to(mean.dtype) for x in items], *args, **kwargs))


@rule(torch.where, method("where"), kind="moves", how="moves elements")
def where(condition: Any, input: Any = None, other: Any = None, **kwargs: Any) -> Moments:
    """Choose; the condition is certain."""
    if (
        not isinstance(condition, Tensor) or condition.dtype != torch.bool
    ):  # Tensor.where(self, condition, other)
        condition, input = input, condition
    other = kwargs.get("y", other)
    pair = [(x.mean, x.var) if isinstance(x, Moments) else (x, _zero_like(x)) for x in (input, other)]
    return unchecked_moments(
        torch.where(condition, pair[0][0], pair[1][0]), torch.where(condition, pair[0][1], pair[1][1])
    )


def _zero_like(x: Any) -> Any:
    return torch.zeros_like(x) if isinstance(x, Tensor) else 0.0


@rule(torch.masked_fill, method("masked_fill"), torch.index_fill, method("index_fill"), kind="moves",
      generic=True, how="moves elements")  # fmt: skip
def fill(func: Any, input: Moments, *args: Any) -> Moments:
    """What is filled in is certain."""
    *place, value = args
    x = as_moments(input)
    mean, var = (value.mean, value.var) if isinstance(value, Moments) else (value, 0.0)
    return unchecked_moments(func(x.mean, *place, mean), func(x.var, *place, var))


@rule(F.pad, torch.constant_pad_nd, kind="moves", generic=True, how="moves elements")
def pad(func: Any, input: Moments, pad: Sequence[int], *args: Any, **kwargs: Any) -> Moments:
    """Constant padding is certain; the other modes copy elements."""
    mean = func(input.mean, pad, *args, **kwargs)
    if func is F.pad:
        mode = args[0] if args else kwargs.get("mode", "constant")
        return unchecked_moments(mean, F.pad(input.var, pad, mode=mode))
    return unchecked_moments(mean, func(input.var, pad))


_SCATTERS = words(
    """
    scatter index_copy masked_scatter slice_scatter select_scatter index_put
    """
)


@rule(
    *[method(name) for name in _SCATTERS], *[getattr(torch, name, None) for name in _SCATTERS],
    kind="moves", generic=True, how="moves elements",
)  # fmt: skip
def scatter(func: Any, *args: Any, **kwargs: Any) -> Moments:
    """Put elements in the places of others; plain tensors have variance zero."""

    def of_var(x: Any) -> Any:
        if isinstance(x, Moments):
            return x.var
        if isinstance(x, Tensor) and x.is_floating_point():
            return torch.zeros_like(x)
        if type(x) is list or type(x) is tuple:
            return type(x)([of_var(item) for item in x])
        return 0.0 if isinstance(x, float) else x

    values = [of_var(x) for x in args]
    if func in (torch.scatter, Tensor.scatter) and not isinstance(args[3], Moments | Tensor):
        values[3] = 0.0
    return unchecked_moments(func(*means(args), **kwargs), func(*values, **kwargs))


@rule(
    torch.topk, method("topk"), torch.sort, method("sort"), torch.msort, torch.kthvalue, method("kthvalue"),
    kind="moves", generic=True, how="order of the means",
)  # fmt: skip
def order(func: Any, input: Moments, *args: Any, **kwargs: Any) -> Any:
    """The order is that of the means; the chosen elements keep their variance."""
    note_once(name_of(func), "%s of random values takes the order of their means.", name_of(func))
    if func is torch.msort:
        func, args = torch.sort, (0,)
    values, index = func(input.mean, *args, **kwargs)
    dim = kwargs.get("dim", -1 if func in (torch.sort, Tensor.sort) and not args else None)
    if dim is None:
        at = 0 if func in (torch.sort, Tensor.sort) else 1
        dim = args[at] if len(args) > at else -1
    keep = index if index.ndim == input.ndim else index.unsqueeze(dim)
    var = input.var.gather(dim, keep)
    return unchecked_moments(values, var.view_as(values)), index


@rule(torch._VF._pad_packed_sequence, kind="moves", how="moves elements")
def pad_packed_sequence(
    data: Moments, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Moments, Tensor]:
    """Padding is certain."""
    padded = torch._VF._pad_packed_sequence
    mean, lengths = padded(data.mean, batch_sizes, batch_first, padding_value, total_length)
    var, _ = padded(data.var, batch_sizes, batch_first, 0.0, total_length)
    return unchecked_moments(mean, var), lengths


@rule(Tensor.__setitem__, kind="plain", how="moves elements")
def set_item(x: Any, index: Any, value: Any) -> None:
    """x[index] = value, in the Moments x; a plain tensor cannot hold Moments."""
    if not isinstance(x, Moments):
        raise TypeError(
            "a plain tensor cannot hold Moments, so x[...] = y is not possible: collect the parts in a list "
            "and use torch.stack or torch.cat"
        )
    y = value if isinstance(value, Moments) else None
    mean, var = x.mean.clone(), x.var.clone()
    mean[index] = value if y is None else y.mean
    var[index] = 0.0 if y is None else y.var
    overwrite(x, unchecked_moments(mean, var))
