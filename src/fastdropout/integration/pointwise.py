"""Element-wise expressions of one random value, such as x * sigmoid(x) written out in a network.

Two factors that are functions of the same Gaussian are not independent. Moments made by element-wise
functions therefore remember their trail, (base, function). Where two with one base meet, the whole
expression is integrated over the base by the trapezoid rule, once, when its moments are first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fastdropout.integration.context import quiet
from fastdropout.integration.nodes import transform
from fastdropout.moments import Moments, unchecked_moments

Trail = tuple[Moments, Callable[[Tensor], Tensor]]


# The slots of the base class, which the properties below hide.
_MEAN: Any = Moments.__dict__["_mean"]
_VAR: Any = Moments.__dict__["_var"]


class LazyMoments(Moments):
    """Moments of an expression that may go on: computed when first read."""

    __slots__ = ("_make",)
    _make: tuple[Callable[[], Moments], bool] | None

    def _read(self, slot: Any) -> Any:
        if self._make is not None:
            make, grad = self._make
            object.__setattr__(self, "_make", None)
            with quiet(), torch.set_grad_enabled(grad):
                y = make()
            _MEAN.__set__(self, y._mean)
            _VAR.__set__(self, y._var)
        return slot.__get__(self)

    _mean = property(lambda self: self._read(_MEAN))
    _var = property(lambda self: self._read(_VAR))

    @property
    def is_pending(self) -> bool:
        """Whether nobody has read it yet."""
        return self._make is not None

    @property
    def is_certain(self) -> bool:
        """Never: what is certain is not put off."""
        return False


pytree.register_pytree_node(
    LazyMoments,
    lambda x: ([x._mean, x._var], None),
    lambda leaves, _: unchecked_moments(*leaves),
    serialized_type_name="fastdropout.LazyMoments",
)


def lazy(make: Callable[[], Moments], owner: object, trail: Trail) -> Moments:
    """Moments that `make` will compute, of the shape of the trail's base."""
    out = object.__new__(LazyMoments)
    for slot, value in (("_owner", owner), ("_trail", trail), ("_make", (make, torch.is_grad_enabled()))):
        object.__setattr__(out, slot, value)
    return out


def is_pending(x: Any) -> bool:
    """Whether `x` is an expression that was not computed yet."""
    return isinstance(x, LazyMoments) and x.is_pending


def common_trail(func: Callable[..., Any], args: Any, kwargs: Any, found: list[Moments]) -> Trail | None:
    """The trail of func(*args), if all random arguments are functions of one Moments, and of its shape."""
    random = [x for x in found if not x.is_certain]
    trails = {id(x): x._trail if x._trail is not None else (x, _itself) for x in random}
    if len({id(base) for base, _ in trails.values()}) != 1:
        return None
    base = next(iter(trails.values()))[0]
    others = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor | Moments) and id(x) not in trails]
    if not others:  # the usual case: an activation of one value
        return _trail(func, args, kwargs, trails, base) if isinstance(base._var, Tensor) else None
    try:
        shape = torch.broadcast_shapes(
            base.shape, *[x.shape for x in others if isinstance(x, Tensor | Moments)]
        )
    except RuntimeError:  # the function will say so itself
        return None
    if not isinstance(base._var, Tensor) or shape != base.shape:
        return None
    return _trail(func, args, kwargs, trails, base)


def _trail(
    func: Callable[..., Any], args: Any, kwargs: Any, trails: dict[int, Trail], base: Moments
) -> Trail:
    def of(a: Tensor) -> Tensor:
        def value(x: Any) -> Any:
            if isinstance(x, Moments):
                return trails[id(x)][1](a) if id(x) in trails else x._mean
            return x

        return func(*(value(x) for x in args), **{name: value(x) for name, x in kwargs.items()})

    return base, of


def integrate_trail(x: Moments, f: Callable[[Tensor], Tensor]) -> Moments:
    """The moments of f(a), a Gaussian, of 13 points: expressions are long."""
    return transform(f, x, step=0.75, count=6)


def with_trail(x: Moments, trail: Trail) -> Moments:
    """`x`, remembering what it is a function of."""
    object.__setattr__(x, "_trail", trail)
    return x


def _itself(a: Tensor) -> Tensor:
    return a
