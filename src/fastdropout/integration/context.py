"""`integrate()`: a context in which torch functions pass on Moments and dropout is integrated out."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fastdropout.integration.registry import TABLE
from fastdropout.integration.saving import keeping
from fastdropout.integration.values import mapped
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


def active() -> Context:
    """The context that asked for a rule."""
    return _contexts.stack[-1]


def fixed(x: Tensor) -> Tensor:
    """A mean in the formula of a variance: without a graph where variances carry no gradient."""
    return x.detach() if x.requires_grad and _contexts.stack[-1].cut else x


def note_once(key: str, message: str, *args: Any) -> None:
    """Log a warning the first time that `key` comes up in this process."""
    if key not in _noted:
        _noted.add(key)
        log.warning(message, *args)


class Context(TorchFunctionMode):
    """What `integrate()` and its sampled twin share: inside, they see every torch function of this thread."""

    predicts = False  # whether no gradients of weights are wanted
    trace = False  # whether sources are kept
    cut = False  # whether variances carry no gradient

    def __init__(self, weight_var: Mapping[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self._entered: dict[int, tuple[Moments, Any]] = {}
        self._before: list[tuple[Any, Any, Any, Any]] = []
        # Noisy weights by identity. They enter as new noise when first used.
        self._weights = {id(w): (w, Moments(w, v)) for w, v in (weight_var or {}).items()}

    def __enter__(self) -> Any:
        self._activate()
        _contexts.stack = (*_contexts.stack, self)
        return self

    def __exit__(self, *error: Any) -> None:
        _contexts.stack = _contexts.stack[:-1]
        self._deactivate(*error)

    @contextmanager
    def active(self) -> Iterator[None]:
        """See torch functions again inside of a rule, which is written in them."""
        self._activate()
        try:
            yield
        finally:
            self._deactivate()

    def _activate(self) -> None:
        _keep_from_compiling(type(self))
        super().__enter__()
        self._before.append((serving.by, serving.owner, serving.enter, serving.sources))
        serving.by, serving.owner, serving.enter, serving.sources = self.serve, self, self.enter, self

    def _deactivate(self, *error: Any) -> None:
        serving.by, serving.owner, serving.enter, serving.sources = self._before.pop()
        super().__exit__(*(error or (None, None, None)))

    @keeping
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Serve functions of Moments, and those with which noise begins; leave all others alone."""
        kwargs = kwargs or {}
        if self._weights:
            found = [False]
            args, kwargs = self._with_noise(args, found), self._with_noise(kwargs, found)
            if found[0]:
                return self.serve(func, args, kwargs)
        if any(issubclass(t, Moments) for t in types):
            return self.serve(func, args, kwargs)
        entry = TABLE.get(func)
        if entry is None or not entry.begins or (entry.noisy and not entry.noisy(*args, **kwargs)):
            return func(*args, **kwargs)
        return self.serve(func, args, kwargs)

    def _with_noise(self, x: Any, found: list[bool]) -> Any:
        if isinstance(x, Tensor) and id(x) in self._weights:
            found[0] = True
            return self._weights[id(x)][1]
        if type(x) is list or type(x) is tuple:
            return type(x)([self._with_noise(item, found) for item in x])
        if type(x) is dict:
            return {key: self._with_noise(value, found) for key, value in x.items()}
        return x

    def serve(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a torch function of Moments."""
        raise NotImplementedError

    @keeping
    def module(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module that is made for Moments, with plain functions inside."""
        with quiet():
            return forward(*mapped(args, self._known), **mapped(kwargs, self._known))

    def _known(self, x: Moments) -> Any:
        return x if x.is_certain or x._owner is self else self.enter(x)

    def passes(self, *what: Any) -> None:
        """Note what the noise goes through."""

    def sees_steps(self) -> bool:
        """Whether every step's noise must be told."""
        return True

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

    def residual(self, mean: Tensor, var: Tensor) -> Tensor:
        """Noise of variance `var` that arises at `mean` from the noise of several others together."""
        return mean

    def keeps_sources(self) -> bool:
        """Whether `residual` takes note of the noise that it is told."""
        return False

    def takes_places(self) -> bool:
        """Whether a fused loop may tell the noise of all its steps by `record`."""
        return False

    def record(self, kind: str, place: Tensor, var: Tensor) -> None:
        """Noise of variance `var` that a fused loop adds at `place`."""
        raise NotImplementedError

    def gaussian(self, mean: Tensor, var: Tensor) -> Any:
        """New independent Gaussian variables: noisy weights, noisy inputs."""
        raise NotImplementedError


def _keep_from_compiling(kind: type[Context]) -> None:
    """Have compiled networks call us as they are: inside of `integrate()` they run uncompiled.

    Only where the compiler is loaded; to load it takes a second.
    """
    if "torch._dynamo" in sys.modules:
        for name in ("__torch_function__", "serve", "module", "mask"):
            function = getattr(kind, name)
            if not hasattr(function, "_torchdynamo_disable"):
                setattr(kind, name, torch.compiler.disable(function))


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
