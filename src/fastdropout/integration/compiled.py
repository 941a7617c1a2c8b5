"""The functions of rules.c, called with tensors; None where they do not serve and the caller does it itself.

They serve plain tensors of float32 on the CPU. Where there is no C compiler it is only slower.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastdropout.recurrent import compiler

_SIGNATURES = {
    **dict.fromkeys(("relu", "gelu", "tanh", "sigmoid", "silu"), "iaaaaa"),
    "softmax": "iiaaaa",
    "norm": "iiaaaadiaaaa",
    "mask": "iaaddaa",
}
_TYPES: dict[str, Any] = {"i": ctypes.c_int64, "a": ctypes.c_void_p, "d": ctypes.c_double}


@functools.cache
def _function(name: str) -> Callable[..., None] | None:
    library = compiler.library()
    if library is None:
        return None
    found = library[f"{name}_float32"]
    found.argtypes = [_TYPES[letter] for letter in _SIGNATURES[name]]
    found.restype = None
    return found


def _function_for(name: str, *tensors: Tensor | None) -> Callable[..., None] | None:
    for t in tensors:
        # Subclasses, such as fake tensors of a compiler, have no memory to look at.
        if t is not None and (type(t) is not Tensor or t.dtype is not torch.float32 or not t.is_cpu):
            return None
    if torch._C._are_functorch_transforms_active():
        return None
    return _function(name)


def _new(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)


def sloped(name: str, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Mean, variance and slope of an element-wise function."""
    function = _function_for(name, m, v)
    if function is None or m.shape != v.shape:
        return None
    m, v = m.contiguous(), v.contiguous()
    mean, var, slope = _new(m), _new(m), _new(m)
    function(m.numel(), *(t.data_ptr() for t in (m, v, mean, var, slope)))
    return mean, var, slope


def softmax(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of the softmax along the last dimension."""
    function = _function_for("softmax", m, v)
    if function is None or m.shape != v.shape or not m.numel():
        return None
    m, v = m.contiguous(), v.contiguous()
    mean, var = _new(m), _new(m)
    n = m.shape[-1]
    function(m.numel() // n, n, *(t.data_ptr() for t in (m, v, mean, var)))
    return mean, var


def norm(
    m: Tensor, v: Tensor, n: int, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Mean and variance of the normalised rows of n, and of each row the centre and the scale."""
    function = _function_for("norm", m, v, *_plain(weight, bias))
    if function is None or m.shape != v.shape or not m.numel():
        return None
    m, v = m.contiguous(), v.contiguous()
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    rows = m.numel() // n
    mean, var, centre, scale = _new(m), _new(m), m.new_empty(rows), m.new_empty(rows)
    addresses = [0 if t is None else t.data_ptr() for t in (m, v, weight, bias)]
    function(rows, n, *addresses, eps, centred, *(t.data_ptr() for t in (mean, var, centre, scale)))
    return mean, var, centre, scale


def mask(m: Tensor, v: Tensor | None, ratio: float, gain: float) -> tuple[Tensor, Tensor] | None:
    """ratio (m^2 + v), and that with gain v added."""
    function = _function_for("mask", m, v)
    if function is None or (v is not None and m.shape != v.shape):
        return None
    m, v = m.contiguous(), None if v is None else v.contiguous()
    added = _new(m)
    total = added if v is None else _new(m)
    addresses = [m.data_ptr(), 0 if v is None else v.data_ptr()]
    function(m.numel(), *addresses, ratio, gain, added.data_ptr(), total.data_ptr())
    return added, total


def _plain(*parameters: Any) -> list[Tensor | None]:
    """Parameters as the tensors that they are."""
    return [t.data if isinstance(t, torch.nn.Parameter) else t for t in parameters]
