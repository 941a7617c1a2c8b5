"""Which module of the network is running, read from the call stack: nothing is hooked or patched."""

from __future__ import annotations

import sys
from weakref import WeakKeyDictionary

from torch import nn

_CALL = nn.Module._call_impl.__code__
_names: WeakKeyDictionary[nn.Module, dict[int, str]] = WeakKeyDictionary()


def module_path() -> str:
    """The path of the innermost running module in the outermost one, such as `encoder.layers.0.dropout`.

    The outermost module itself goes by the name of its class; outside of modules it is the empty string.
    """
    frame = sys._getframe(1)
    inner: nn.Module | None = None
    outer: nn.Module | None = None
    while frame is not None:
        if frame.f_code is _CALL:
            outer = frame.f_locals["self"]
            inner = inner if inner is not None else outer
        frame = frame.f_back  # type: ignore[assignment]
    if inner is None or outer is None:
        return ""
    if inner is outer:
        return type(outer).__name__
    found = _names.get(outer, {})
    if id(inner) not in found:  # a network that is new, or was changed
        found = _names[outer] = {id(module): name for name, module in outer.named_modules()}
    return found.get(id(inner), type(inner).__name__)
