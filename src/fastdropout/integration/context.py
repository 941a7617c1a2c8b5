"""`integrate()`: a context in which torch functions pass on Moments and dropout is integrated out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fastdropout.integration.registry import TABLE
from fastdropout.moments import Moments
from fastdropout.serving import serving

log = logging.getLogger("fastdropout.integrate")

_noted: set[str] = set()


class _Contexts(threading.local):
    stack: tuple[Context, ...] = ()


_contexts = _Contexts()


def current() -> Context | None:
    """The innermost context of this thread that integrates noise, or draws it."""
    return _contexts.stack[-1] if _contexts.stack else None


def note_once(key: str, message: str, *args: Any) -> None:
    """Log a warning the first time that `key` comes up in this process."""
    if key not in _noted:
        _noted.add(key)
        log.warning(message, *args)


class Context(TorchFunctionMode):
    """What `integrate()` and its sampled twin share: inside, they see every torch function of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: dict[int, tuple[Moments, Any]] = {}
        self._before: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> Any:
        self._activate()
        _contexts.stack = (*_contexts.stack, self)
        return self

    def __exit__(self, *error: Any) -> None:
        _contexts.stack = _contexts.stack[:-1]
        self._deactivate(*error)

    def _activate(self) -> None:
        super().__enter__()
        self._before.append((serving.by, serving.owner, serving.enter))
        serving.by, serving.owner, serving.enter = self.serve, self, self.enter

    def _deactivate(self, *error: Any) -> None:
        serving.by, serving.owner, serving.enter = self._before.pop()
        super().__exit__(*(error or (None, None, None)))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Serve functions of Moments, and those with which noise begins; leave all others alone."""
        kwargs = kwargs or {}
        if Moments in types:
            return self.serve(func, args, kwargs)
        entry = TABLE.get(func)
        if entry is None or not entry.begins or (entry.noisy and not entry.noisy(*args, **kwargs)):
            return func(*args, **kwargs)
        return self.serve(func, args, kwargs)

    def serve(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a torch function of Moments."""
        raise NotImplementedError

    def enter(self, x: Moments) -> Any:
        """Take Moments that come from outside as new noise, each object once."""
        found = self._entered.get(id(x))
        if found is None:
            with quiet():
                found = self._entered[id(x)] = x, self.gaussian(x.mean, x.var)
        return found[1]

    def mask(
        self, x: Tensor | Moments, drop: float, *, scale: bool = True, shared: tuple[int, ...] = ()
    ) -> Any:
        """Dropout of each element, or of all elements along `shared` together."""
        raise NotImplementedError

    def multiplicative(
        self,
        x: Moments,
        mean: Tensor,
        profile: Tensor,
        ratio: float,
        gain: float,
        shared: tuple[int, ...] = (),
    ) -> Any:
        """mean + gain (x - E[x]) + (profile + x - E[x]) eps, with V[eps] = ratio."""
        raise NotImplementedError

    def gaussian(self, mean: Tensor, var: Tensor) -> Any:
        """New independent Gaussian variables: noisy weights, noisy inputs."""
        raise NotImplementedError


class quiet:
    """Inside, torch functions are plain ones: where rules do their arithmetic."""

    def __enter__(self) -> None:
        self._guard = torch._C.DisableTorchFunction()
        self._guard.__enter__()
        self._before = serving.by, serving.enter
        serving.by = serving.enter = None

    def __exit__(self, *error: Any) -> None:
        serving.by, serving.enter = self._before
        self._guard.__exit__(*error)
