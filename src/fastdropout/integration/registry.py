"""The table of rules: torch function -> what it does to Moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastdropout.integration.nodes import transform
from fastdropout.moments import Moments

Function = Callable[..., Any]


@dataclass(frozen=True)
class Entry:
    """How a function is served.

    call: takes the function's arguments, of which at least one is Moments; with `generic` the function itself
        comes first.
    kind: `rule` has a formula; `moves` only moves elements; `composite` is written in other torch functions;
        `plain` looks at the mean only; `loss` returns a plain tensor.
    begins: plain tensors are served too, because the noise may begin there; `noisy` says, from the arguments,
        whether it does.
    precise: computed in float32 where the elements are of half precision.
    elementwise: a function of each element of the first argument alone.
    pointwise: element by element, of any of the arguments.
    frozen: in place of `call` where only the mean needs gradients.
    shifts: a plain argument is added: its values do not change what the noise does.
    """

    call: Function
    kind: str = "rule"
    generic: bool = False
    begins: bool = False
    noisy: Function | None = None
    precise: bool = False
    elementwise: bool = False
    pointwise: bool = False
    frozen: Function | None = None
    shifts: bool = False
    how: str = "closed form"


TABLE: dict[Function, Entry] = {}


def enter(functions: tuple[Function | None, ...], entry: Entry) -> None:
    """Put functions into the table; those that this version of torch does not have are None."""
    for function in functions:
        if function is not None:
            TABLE[function] = entry


def rule(*functions: Function | None, **options: Any) -> Callable[[Function], Function]:
    """Serve `functions` by the decorated rule."""

    def decorate(call: Function) -> Function:
        enter(functions, Entry(call, **options))
        return call

    return decorate


def elementwise(function: Function) -> Function:
    """The rule of an element-wise function: E[f(a)] and V[f(a)] by the trapezoid rule."""

    def call(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        kwargs.pop("inplace", None)
        if not isinstance(x, Moments):
            raise TypeError(f"{name_of(function)} takes Moments as its first argument only")
        return transform(lambda a: function(a, *args, **kwargs), x)

    call.__doc__ = f"E and V of {name_of(function)}, by quadrature."
    return call


def by_quadrature(function: Function) -> Entry:
    """The entry of an element-wise function without a closed form."""
    return Entry(elementwise(function), precise=True, elementwise=True, pointwise=True, how="quadrature")


def register(function: Function, rule: Function | None = None) -> None:
    """Teach `integrate()` a function.

    Args:
        function: a torch function, an operator of `torch.ops`, or a function of yours that was made
            overridable by `torch.overrides.wrap_torch_function`.
        rule: takes the function's arguments with Moments instead of tensors and returns Moments.
            None for an element-wise function of its first argument, which goes by quadrature.

    >>> import torch
    >>> register(torch.sinc)
    """
    for name, value in (("function", function), ("rule", rule)):
        if not callable(value) and not (name == "rule" and value is None):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    if rule is None:
        TABLE[function] = by_quadrature(function)
    else:
        TABLE[function] = Entry(rule, how="registered")


def method(name: str) -> Function | None:
    """`torch.Tensor`'s method of that name, None where this version of torch has none."""
    return getattr(Tensor, name, None)


def words(text: str) -> list[str]:
    """Names from a text."""
    return text.split()


def name_of(function: Function) -> str:
    """How a user would call it."""
    name = getattr(function, "__name__", None) or str(function)
    owner = getattr(function, "__self__", None)
    if name == "__get__" and owner is not None:  # a property of Tensor
        return f"Tensor.{getattr(owner, '__name__', owner)}"
    part, _, rest = name.partition("_")
    if part in ("fft", "linalg", "special") and rest:  # torch.fft.rfft goes by the name fft_rfft
        return f"torch.{part}.{rest}"
    home = getattr(function, "__module__", None)
    if getattr(function, "__objclass__", None) is not None:
        return f"Tensor.{name}"
    return f"{home}.{name}" if home and home.startswith("torch.nn") else f"torch.{name}"
