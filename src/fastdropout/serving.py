"""Who answers for torch functions of `Moments`: nobody, or the `integrate()` that this thread is in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

Serve = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Sources(Protocol):
    """Who is told where noise arises: the trace, or what draws it instead."""

    predicts: bool
    """Whether no gradients of weights are wanted, and variances carry none."""

    def mask(self, x: Any, drop: float, *, scale: bool = True) -> Any:
        """Dropout of `x`, scaled up by 1 / keep or not."""

    def gaussian(self, mean: Tensor, var: Tensor) -> Any:
        """New independent Gaussian variables."""

    def residual(self, mean: Tensor, var: Tensor) -> Tensor:
        """Noise of `mean` that arises from the noise of several others together."""

    def passes(self, *what: Any) -> None:
        """Note what the noise goes through that is no torch function."""

    def sees_steps(self) -> bool:
        """Whether every step's noise must be told: a fused loop that does not is not taken."""

    def takes_places(self) -> bool:
        """Whether a fused loop may tell the noise of all its steps by `record`."""

    def record(self, kind: str, place: Tensor, var: Tensor) -> None:
        """Noise of variance `var` that a fused loop adds at `place`, which has its gradient."""

    def module(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module that is made for Moments."""


class _Serving(threading.local):
    """by: what computes torch functions; owner: stamped on Moments that are made, so that those which come
    from outside are recognised as new noise; enter: takes such as come from outside; sources: who is told.
    """

    by: Serve | None = None
    owner: object | None = None
    enter: Callable[[Any], Any] | None = None
    sources: Sources | None = None


serving = _Serving()


def serve(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have `func` of Moments computed by the active `integrate()`."""
    if serving.by is None:
        name = getattr(func, "__name__", str(func))
        raise TypeError(
            f"{name} does not take Moments: see fastdropout.functional, take .mean and .var, or call it "
            "inside of `with fastdropout.integrate():`"
        )
    return serving.by(func, args, kwargs)


def takes_moments(forward: Callable[..., Any]) -> Callable[..., Any]:
    """For `forward` of a module that is made for Moments: inside of `integrate()` it needs no rules."""

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if serving.by is None or serving.sources is None:
            return forward(*args, **kwargs)
        return serving.sources.module(forward, args, kwargs)

    return run


class Refusal:
    """In the place of a variance for which there is no rule: who reads it is told why."""

    def __init__(self, why: str) -> None:
        self.why = why

    def raise_(self) -> NoReturn:
        """Say why there is no variance."""
        raise TypeError(self.why)


class _Readable(Tensor):
    """`x.mean` of Moments inside `integrate()`: the tensor, and also torch's method `x.mean(dim)`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _method: tuple[Callable[..., Any], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        func, owner = self._method
        return serve(func, owner, *args, **kwargs)


class _Refused:
    """`x.var` of Moments without a variance inside `integrate()`: only the method `x.var(dim)` is there."""

    def __init__(self, why: Refusal, func: Callable[..., Any], owner: Any) -> None:
        self._parts = why, func, owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, func, owner = self._parts
        return serve(func, owner, *args, **kwargs)

    def __getattr__(self, name: str) -> NoReturn:
        self._parts[0].raise_()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> NoReturn:
        next(arg for arg in args if isinstance(arg, cls))._parts[0].raise_()


def readable(value: Tensor | Refusal, func: Callable[..., Any], owner: Any) -> Any:
    """What `owner.mean` is: outside the tensor; inside of `integrate()` it can be called as a method too.

    A network that knows nothing of Moments calls `x.mean(dim)`, `x.var(dim)` and `x.std(dim)`.
    """
    if serving.by is None:
        return value.raise_() if isinstance(value, Refusal) else value
    if isinstance(value, Refusal):
        return _Refused(value, func, owner)
    if torch.compiler.is_compiling():
        return value
    out = value.as_subclass(_Readable)
    out._method = func, owner
    return out


def attribute(owner: Any, name: str) -> Any:
    """An attribute of torch.Tensor that Moments do not have of their own."""
    found = getattr(Tensor, name, None) if serving.by is not None and not name.startswith("__") else None
    if found is None:
        raise AttributeError(f"'Moments' object has no attribute {name!r}")
    if hasattr(found, "__get__") and not callable(found):  # a property, such as x.T
        return serve(found.__get__, owner)
    return lambda *args, **kwargs: serve(found, owner, *args, **kwargs)
