"""Checkpointed parts of a network under a trace: their noise cannot be computed again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


def keeping(call: Callable[..., Any]) -> Callable[..., Any]:
    """For a method of a context: what it saves for a backward pass stays saved under a trace.

    `torch.utils.checkpoint` would compute it again when gradients are taken. The trace does so after the
    `with`, where dropout is not integrated, and its sources are those of the first time.
    """

    @wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.trace or not _checkpointed():
            return call(self, *args, **kwargs)
        with saved_tensors_hooks(_same, _same):
            return call(self, *args, **kwargs)

    return run


def _checkpointed() -> bool:
    """Whether this is inside of `checkpoint(..., use_reentrant=False)`, the innermost of such hooks."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__qualname__.startswith("_checkpoint_hook")


def _same(x: torch.Tensor) -> torch.Tensor:
    return x
