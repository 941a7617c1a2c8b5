"""What the parts of `Moments` must be."""

from __future__ import annotations

import torch
from torch import Tensor


def check_moments(mean: Tensor, var: Tensor) -> None:
    """Raise ValueError unless they are floating-point tensors of one kind, and no variance is negative."""
    for name, x in (("mean", mean), ("var", var)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, got {describe(x)}")
    for name in ("shape", "dtype", "device"):
        a, b = getattr(mean, name), getattr(var, name)
        if a != b:
            raise ValueError(f"var must have the {name} of mean, {_plain(a)}, got {_plain(b)}")
    if _has_values(var) and not bool((var >= 0).all()):  # also catches NaN
        raise ValueError(f"var must be at least 0, got {var.detach().min().item():.6g}")


def describe(x: object) -> str:
    """What was given instead of a floating-point tensor."""
    return f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _has_values(x: Tensor) -> bool:
    """Whether the elements can be looked at: not while tracing, and not on the meta device."""
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    return type(x) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _plain(x: object) -> object:
    return tuple(x) if isinstance(x, torch.Size) else x
