"""Attributes of modules that are checked whenever they are set, in `__init__` and later alike.

>>> from torch import nn
>>> class Layer(nn.Module):
...     drop = Drop()
...     method = Choice(("moments", "mask"))
...     def __init__(self, drop, method="moments"):
...         super().__init__()
...         self.drop, self.method = drop, method
>>> layer = Layer(0.5)
>>> layer.drop = 2.0
Traceback (most recent call last):
...
ValueError: drop must lie in [0, 1), got 2.0
>>> layer.method = "typo"
Traceback (most recent call last):
...
ValueError: method must be one of moments, mask, got 'typo'
>>> layer
Layer()
>>> layer.drop, layer.method
(0.5, 'moments')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastdropout.functional.propagate import check_drop

T = TypeVar("T")


class Checked(Generic[T]):
    """An attribute whose values go through `check` when they are set.

    They are kept in the instance under the same name, where Python finds them by itself: reading costs
    nothing, `torch.compile` and pickle see plain attributes.
    """

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: object, value: Any) -> None:
        vars(instance)[self.name] = self.check(value)

    if TYPE_CHECKING:  # A `__get__` at run time would be called instead of the look into the instance.

        def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def check(self, value: Any) -> T:
        """The value to keep, or a ValueError that names the attribute."""
        raise NotImplementedError


class Drop(Checked[float]):
    """A probability that a unit is zeroed, in [0, 1)."""

    def check(self, value: Any) -> float:
        """The probability as a float."""
        return check_drop(value, self.name)


class Choice(Checked[T]):
    """One of a few words."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)

    def check(self, value: Any) -> T:
        """The word."""
        if value not in self.allowed:
            raise ValueError(f"{self.name} must be one of {', '.join(self.allowed)}, got {value!r}")
        return value


class Variance(Checked[float]):
    """A variance: finite, at least 0."""

    def check(self, value: Any) -> float:
        """The variance as a float."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{self.name} must be finite and at least 0, got {value!r}")
        return float(value)
