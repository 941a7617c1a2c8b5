"""What of torch is told about `Moments`, so that they pass where tensors do.

================================== ===================================================================
`torch.func`, `torch.utils.pytree` `Moments` are a node with the leaves mean and variance
`torch.load(weights_only=True)`    reads them in any process that has imported `fastdropout.moments`
`default_collate`, `DataLoader`    stack them, as tensors
DDP, FSDP                          find their tensors in outputs, also with `find_unused_parameters=True`
================================== ===================================================================

Where torch knows tensors and tuples of tensors only, it offers nothing to register with:

- `register_full_backward_hook` is not called for a module that returns `Moments`: hook the tensors in a
  forward hook, `output.mean.register_hook(...)` and `output.var.register_hook(...)`.
- `torch.nn.DataParallel` and `scatter_gather.gather` cannot join the outputs of several devices: use DDP, or
  return `{"mean": y.mean, "var": y.var}` from the wrapped module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Fields:
    mean: Tensor
    var: Tensor


def register(cls: Any, build: Callable[[Any, Any], Any]) -> None:
    """Tell torch about `cls`, whose instances have `_mean` and `_var`; `build` makes one from these."""
    # torch has no public call that registers a class whose number of leaves depends on the instance.
    pytree.register_pytree_node(
        cls,
        lambda x: ([x._mean], True) if x.is_certain else ([x._mean, x._var], False),
        lambda leaves, certain: build(*leaves, None) if certain else build(*leaves),  # type: ignore[call-arg]
        serialized_type_name="fastdropout.Moments",
    )
    # It only puts two objects into a new one. The second name is its old one.
    torch.serialization.add_safe_globals([build, (build, "fastdropout.moments.moments")])
    default_collate_fn_map[cls] = lambda batch, **_: cls.stack(batch)
    # DDP and FSDP look for tensors in dataclasses.
    cls.__dataclass_fields__ = _Fields.__dataclass_fields__
    cls.__dataclass_params__ = _Fields.__dataclass_params__  # type: ignore[attr-defined]
