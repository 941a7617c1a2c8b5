"""Less memory: what a rule computes on its way is not kept for the backward pass but computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Any], *args: Tensor) -> Any:
    """`function(*args)`; where a gradient is needed, only `args` are kept for it.

    Of some use for rules of dozens of operations: an activation then costs the memory of its input, as in
    torch.
    """
    if (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in args)
        and not torch.compiler.is_compiling()
        and not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in args)
    ):
        return checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
    return function(*args)
