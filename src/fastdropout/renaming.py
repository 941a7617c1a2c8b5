"""Old public names: they work for one version, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module that answers to old names: `names` has the new one of each.

    >>> answer = renamed("math", {"square_root": "sqrt"})
    >>> answer("root")
    Traceback (most recent call last):
    AttributeError: module 'math' has no attribute 'root'
    """

    def answer(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return answer
