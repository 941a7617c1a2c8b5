"""Arguments and results of torch functions, with Moments anywhere inside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastdropout.moments import Moments, unchecked_moments


def mapped(x: Any, of: Callable[[Moments], Any]) -> Any:
    """`of` every Moments in `x` and in its lists, tuples and dicts; all else as it is."""
    if isinstance(x, Moments):
        return of(x)
    if type(x) is list or type(x) is tuple:
        return type(x)([mapped(item, of) for item in x])
    if type(x) is dict:
        return {key: mapped(value, of) for key, value in x.items()}
    return x


def fingerprint(x: Any, weights: dict[int, Tensor], factors: bool) -> Any:
    """Of arguments: shapes of random values, all values of indices and masks, all else as it is.

    With `factors` all values of plain numbers too: a matrix that is computed from data decides whose noise
    goes where. Parameters, which are large, are collected in `weights` instead.
    """
    if isinstance(x, Moments):
        if getattr(x, "is_pending", False):
            return None
        x = x._mean if x.is_certain else tuple(x.shape)
    if isinstance(x, Tensor):
        if x.is_leaf and x.requires_grad:
            weights[id(x)] = x
            return id(x)
        plain = x.is_floating_point() or x.is_complex()
        return tuple(x.shape), _content(x) if factors or not plain else None
    if isinstance(x, list | tuple):
        return tuple([fingerprint(item, weights, factors) for item in x])
    if isinstance(x, dict):
        return tuple([(key, fingerprint(value, weights, factors)) for key, value in x.items()])
    if isinstance(x, slice):
        return "slice", x.start, x.stop, x.step
    return x


def _content(x: Tensor) -> bytes:
    """All bytes of a tensor, of any type."""
    plain = x.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return plain.view(torch.uint8).numpy().tobytes()


def state_of(weights: dict[int, Tensor]) -> tuple[Any, ...]:
    """Which parameters, and that they are as they were: every change moves their norm, or their version."""
    if not weights:
        return ()
    some = list(weights.values())
    norms = torch._foreach_norm([w.detach() for w in some])
    return tuple((id(w), w._version, norm.item()) for w, norm in zip(some, norms, strict=True))


def means(x: Any) -> Any:
    """Moments replaced by their means."""
    return mapped(x, lambda m: m._mean)


def variances(x: Any) -> Any:
    """Moments replaced by their variances."""
    return mapped(x, lambda m: m.var)


def converted(x: Any, dtype: torch.dtype) -> Any:
    """Moments of another floating-point type."""
    return mapped(x, lambda m: m.rearrange(lambda t: t.to(dtype)))


def without_gradient(x: Any) -> Any:
    """Moments whose variance carries no gradient."""
    return mapped(
        x, lambda m: unchecked_moments(m._mean, m._var.detach() if isinstance(m._var, Tensor) else m._var)
    )


def wrapped(x: Any, var: Any) -> Any:
    """A result as Moments of variance `var`, which is None or a Refusal; indices and masks as they are."""
    if isinstance(x, Tensor):
        # Complex numbers have no diagonal variance, but what comes of them must not pass for certain.
        random = x.is_floating_point() or (x.is_complex() and var is not None)
        return unchecked_moments(x, var) if random else x
    if isinstance(x, list):
        return [wrapped(item, var) for item in x]
    return tuple(wrapped(item, var) for item in x) if isinstance(x, tuple) else x


def joined(mean: Any, var: Any) -> Any:
    """Two results, of means and of variances, as Moments."""
    if isinstance(mean, Tensor):
        return unchecked_moments(mean, var) if mean.is_floating_point() else mean
    if isinstance(mean, list | tuple):
        return tuple(joined(m, v) for m, v in zip(mean, var, strict=True))
    return mean


def overwrite(x: Moments, y: Moments) -> None:
    """Make `x` what `y` is: for operations in place."""
    for slot in ("_mean", "_var", "_owner", "_trail"):
        object.__setattr__(x, slot, getattr(y, slot))
