"""Transfer functions: by the closed forms of `fastdropout.functional`, the others by quadrature."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional as F

from fastdropout import functional
from fastdropout.integration.registry import Entry, by_quadrature, enter, method, rule
from fastdropout.moments import Moments

# Names in torch -> the name in fastdropout.functional; where that has no closed form, quadrature serves.
_CLOSED = {
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "prelu": "prelu",
    "elu": "elu",
    "celu": "celu",
    "selu": "selu",
    "gelu": "gelu",
    "silu": "silu",
    "mish": "mish",
    "softplus": "softplus",
    "logsigmoid": "log_sigmoid",
    "hardtanh": "hardtanh",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "softsign": "softsign",
    "exp": "exp",
    "abs": "abs",
    "absolute": "abs",
    "__abs__": "abs",
    "clamp": "clamp",
    "clip": "clamp",
    "threshold": "threshold",
    "tanhshrink": "tanhshrink",
    "hardshrink": "hardshrink",
    "softshrink": "softshrink",
    "sin": "sin",
    "cos": "cos",
    "erf": "erf",
    "erfc": "erfc",
    "atan": "atan",
    "arctan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "expm1": "expm1",
    "exp2": "exp2",
    "asinh": "asinh",
    "arcsinh": "asinh",
    "expit": "sigmoid",
    "clamp_min": "clamp_min",
    "clamp_max": "clamp_max",
}


def _adapted(closed: Any) -> Any:
    """The closed form, called with torch's arguments less those which mean nothing to Moments."""

    def call(input: Moments, *args: Any, **kwargs: Any) -> Moments:
        kwargs.pop("inplace", None)
        return closed(input, *args, **kwargs)

    call.__doc__ = closed.__doc__
    return call


def _how(name: str, closed: Any) -> str:
    if name in ("tanh", "sigmoid"):
        return "fit"
    return "quadrature" if "quadrature" in (closed.__doc__ or "") else "closed form"


def _plain(name: str) -> Any:
    return getattr(torch, name, None) or getattr(F, name, None) or method(name)


@rule(F.rrelu, torch.rrelu, method("rrelu"), precise=True, elementwise=True, pointwise=True)
def rrelu(
    input: Moments, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any, **__: Any
) -> Moments:
    """`leaky_relu` with the mean slope, as torch has it in evaluation mode."""
    if training:
        raise TypeError("rrelu in training mode draws its slopes: call eval(), or use leaky_relu")
    return functional.leaky_relu(input, (lower + upper) / 2)


def _clamp_min(x: Moments, min: Any) -> Moments:
    """max(a, min)."""
    return functional.clamp(x, min=min)


def _clamp_max(x: Moments, max: Any) -> Moments:
    """min(a, max)."""
    return functional.clamp(x, max=max)


_ENTRIES: dict[str, Entry] = {}  # aliases share theirs


def _entry(name: str, closed: str) -> Entry:
    form = {"clamp_min": _clamp_min, "clamp_max": _clamp_max}.get(closed) or getattr(functional, closed, None)
    if form is None:
        return by_quadrature(_plain(name))
    return Entry(_adapted(form), precise=True, elementwise=True, pointwise=True, how=_how(closed, form))


for _name, _closed in _CLOSED.items():
    if _closed not in _ENTRIES:
        _ENTRIES[_closed] = _entry(_name, _closed)
    _functions = tuple(
        f for f in (getattr(torch, _name, None), getattr(F, _name, None), method(_name),
                    getattr(torch.special, _name, None)) if f is not None and not inspect.isclass(f)
    )  # fmt: skip
    enter(_functions, _ENTRIES[_closed])
