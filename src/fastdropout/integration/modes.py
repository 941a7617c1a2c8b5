"""Modules that pass on their dropout rate in training mode only, such as the attention of `transformers`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_lock = threading.Lock()
_users: dict[nn.Module, int] = {}  # modules in training mode because of us, and how many calls want them so


@contextmanager
def rates_passed_on(model: Any) -> Iterator[None]:
    """Put the modules of `model` that hide their rate in `eval()` into training mode.

    `rate if self.training else 0.0` is what they hand to a function, which then cannot know the rate. Only
    they change, not their children: batch norm, layer drop and all else stay as they are. Afterwards, also
    after an exception, they are in the mode in which they were; with several threads, after the last of them.
    """
    hiding = [m for m in model.modules() if _hides_rate(m)] if isinstance(model, nn.Module) else []
    taken = []
    with _lock:
        for module in hiding:
            if module in _users or not module.training:
                _users[module] = _users.get(module, 0) + 1
                module.training = True
                taken.append(module)
    try:
        yield
    finally:
        with _lock:
            for module in taken:
                _users[module] -= 1
                if not _users[module]:
                    del _users[module]
                    module.training = False


def _hides_rate(module: nn.Module) -> bool:
    """Whether a module may hand on a rate by hand.

    It has a positive number of its own whose name contains "dropout"; or it is called attention, and its
    configuration or an `nn.Dropout` of its own holds the rate. Modules of torch have rules, which read no
    mode. A module that skips layers in training mode stays as it is.
    """
    if type(module).__module__.startswith("torch.nn."):
        return False
    own, config = vars(module), getattr(vars(module).get("config"), "__dict__", {})
    if "attention" in type(module).__name__.lower():
        dropouts = [m for m in module.children() if isinstance(m, nn.modules.dropout._DropoutNd)]
        return _has_rate(own, "dropout") or _has_rate(config, "dropout") or any(m.p > 0 for m in dropouts)
    skips = _has_rate(own, "layerdrop") or _has_rate(config, "layerdrop")
    return _has_rate(own, "dropout") and not skips


def _has_rate(values: dict[str, Any], word: str) -> bool:
    return any(word in name and isinstance(p, float) and p > 0 for name, p in values.items())
