"""Embeddings, which look rows up, and interpolation, which mixes neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.integration.registry import rule
from fastdropout.moments import Moments, as_moments, unchecked_moments


@rule(F.embedding, kind="moves", how="moves elements")
def embedding(
    input: Tensor, weight: Moments, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Moments:  # fmt: skip
    """Rows of noisy weights."""
    if max_norm is not None:
        raise TypeError("embedding of noisy weights takes no max_norm: it would change them in place")
    return weight.rearrange(lambda w: F.embedding(input, w, padding_idx, None, norm_type, scale_grad_by_freq))


@rule(F.embedding_bag)
def embedding_bag(
    input: Tensor, weight: Any, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Moments:  # fmt: skip
    """Sums and means of rows: of noisy weights, or with random weights of the samples."""
    if mode == "max" or max_norm is not None:
        raise TypeError(f"embedding_bag of Moments takes mode sum or mean and no max_norm, got mode {mode!r}")

    def bag(table: Tensor, samples: Tensor | None) -> Tensor:
        return F.embedding_bag(
            input, table, offsets, mode="sum", per_sample_weights=samples,
            include_last_offset=include_last_offset, padding_idx=padding_idx,
        )  # fmt: skip

    table = as_moments(weight)
    if per_sample_weights is None:
        mean, var = bag(table.mean, None), bag(table.var, None)
        count = bag(torch.ones_like(table.mean[:, :1]), None).clamp(min=1) if mode == "mean" else 1.0
        return unchecked_moments(mean / count, var / count**2)
    w = as_moments(per_sample_weights)
    var = bag(table.var, w.var + w.mean**2) + bag(table.mean**2, w.var)
    return unchecked_moments(bag(table.mean, w.mean), var)


@rule(F.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Moments:
    """x1 W x2 + b, of independent inputs: exact for certain weights.

    With noisy weights as well, the products of the sum are taken as independent.
    """
    items = [as_moments(x) for x in (input1, input2, weight)]
    x, y, weights = (item.mean for item in items)
    mean = F.bilinear(x, y, weights, None if bias is None else as_moments(bias).mean)
    squares = [x**2, y**2, weights**2]
    a, b, w = (s if item.is_certain else s + item.var for item, s in zip(items, squares, strict=True))
    var = torch.clamp(F.bilinear(a, b, w) - F.bilinear(*squares), min=0)
    # The sum over i of a common x2_j (and over j of a common x1_i) is not one of independent terms.
    if not items[0].is_certain or not items[1].is_certain:
        var = _shared(items, var)
    return unchecked_moments(mean, var if bias is None else var + as_moments(bias).var)


def _shared(items: list[Moments], independent: Tensor) -> Tensor:
    """The variance with each input shared by the products it is in, for certain weights.

    V = sum_j V[x2_j] (sum_i E[x1_i] W_ij)^2 + sum_i V[x1_i] (sum_j W_ij E[x2_j])^2
        + sum_ij V[x1_i] W_ij^2 V[x2_j]
    """
    x, y, w = items
    if not w.is_certain:
        return independent
    left = torch.einsum("...i,oij->...oj", x.mean, w.mean)
    right = torch.einsum("oij,...j->...oi", w.mean, y.mean)
    return (
        torch.einsum("...oj,...j->...o", left**2, y.var)
        + torch.einsum("...oi,...i->...o", right**2, x.var)
        + F.bilinear(x.var, y.var, w.mean**2)
    )


@rule(F.interpolate, F.upsample, how="separable weights")
def interpolate(
    input: Moments, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Moments:  # fmt: skip
    """Nearest neighbours move elements; the other modes mix them by a matrix along each dimension, W.

    E = W E[x] W' ...,   V = W^2 V[x] W'^2 ...
    """
    options: dict[str, Any] = {"mode": mode, "align_corners": align_corners}
    if mode in ("nearest", "nearest-exact"):
        return input.rearrange(lambda t: F.interpolate(t, size, scale_factor, mode))
    mean = F.interpolate(
        input.mean, size, scale_factor, recompute_scale_factor=recompute_scale_factor, antialias=antialias,
        **options,
    )  # fmt: skip
    var = input.var
    for d in range(2, input.ndim):
        matrix = _matrix(input, d, mean.shape[d], scale_factor, recompute_scale_factor, antialias, options)
        var = torch.einsum("ab,...b->...a", matrix**2, var.movedim(d, -1)).movedim(-1, d)
    return unchecked_moments(mean, var)


def _matrix(
    x: Moments,
    dim: int,
    length: int,
    scale: Any,
    recompute: bool | None,
    antialias: bool,
    options: dict[str, Any],
) -> Tensor:
    """What interpolation along one dimension does to the unit vectors, shape (after, before)."""
    before = x.shape[dim]
    ones = [1] * (x.ndim - 3)
    # The unit vectors as channels; the other dimensions have length 1 and stay.
    units = torch.eye(before, dtype=x.dtype, device=x.device).view(1, before, before, *ones)
    if scale is None or recompute:
        out = F.interpolate(units, (length, *ones), antialias=antialias, **options)
    else:
        own = scale[dim - 2] if isinstance(scale, Sequence) else scale
        factors = (own, *[1.0] * len(ones))
        out = F.interpolate(units, None, factors, antialias=antialias, **options)
    return out.reshape(before, length).T


@rule(F.cosine_similarity, kind="composite", how="composed of rules")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """x1 . x2 / (|x1| |x2|)."""
    size = torch.sqrt((x1 * x1).sum(dim)) * torch.sqrt((x2 * x2).sum(dim))
    return (x1 * x2).sum(dim) / (size + eps)


@rule(F.normalize, kind="composite", how="composed of rules")
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """x / |x|."""
    if p != 2 or out is not None:
        raise TypeError(f"normalize of Moments takes p=2 and no out, got p={p}")
    return input / torch.sqrt((input * input).sum(dim, keepdim=True) + eps**2)


@rule(F.pairwise_distance, kind="composite", how="composed of rules")
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """|x1 - x2 + eps|."""
    if p != 2:
        raise TypeError(f"pairwise_distance of Moments takes p=2, got {p}")
    gap = x1 - x2 + eps
    return torch.sqrt((gap * gap).sum(-1, keepdim=keepdim))


@rule(F.glu, kind="composite", how="composed of rules")
def glu(input: Any, dim: int = -1) -> Any:
    """a sigmoid(b), of the two halves."""
    a, b = torch.split_with_sizes(input, [input.shape[dim] // 2] * 2, dim)
    return a * torch.sigmoid(b)


@rule(torch.var, Tensor.var, torch.std, Tensor.std, kind="composite", generic=True, how="composed of rules")
def spread(func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The variance over elements, of random elements: their mean squared deviation."""
    dim = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
    unbiased = kwargs.get("unbiased", args[0] if args and isinstance(args[0], bool) else True)
    correction = kwargs.get("correction", 1 if unbiased in (True, None) else 0)
    if len(args) > 1 and isinstance(args[1], bool):
        correction = int(args[1])
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    dims = list(range(input.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    n = math.prod(input.shape[d] for d in dims)
    centred = input - input.mean(dims, keepdim=True)
    found = (centred * centred).sum(dims, keepdim=keepdim) / max(0, n - correction)
    return torch.sqrt(found) if func in (torch.std, Tensor.std) else found


@rule(torch.var_mean, torch.std_mean, kind="composite", generic=True, how="composed of rules")
def spread_and_mean(func: Any, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Both; the mean over all elements where no dimension is given."""
    of = torch.var if func is torch.var_mean else torch.std
    if dim is None or isinstance(dim, bool):
        return of(input, *([] if dim is None else [dim]), *args, **kwargs), input.mean()
    return of(input, dim, *args, **kwargs), input.mean(dim, keepdim=kwargs.get("keepdim", False))
