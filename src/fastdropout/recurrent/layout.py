"""How the steps of pieces of any lengths lie one below the other, and in which order they are walked."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """As in a `PackedSequence`: `sizes` are the pieces of each step, never growing."""

    sizes: tuple[int, ...]
    reverse: bool

    @functools.cached_property
    def order(self) -> range:
        """The steps as they are walked."""
        return range(len(self.sizes))[:: -1 if self.reverse else 1]

    @functools.cached_property
    def starts(self) -> list[int]:
        """The first row of each step, and the number of rows."""
        return [0, *itertools.accumulate(self.sizes)]

    def rows(self, t: int) -> slice:
        """Of step t."""
        return slice(self.starts[t], self.starts[t + 1])

    def before(self, t: int) -> int:
        """The step that is walked before t."""
        return t - self.order.step

    def common(self, t: int, way: int) -> int:
        """The number of pieces that step t shares with the step walked before (-1) or after (+1) it."""
        other = t + way * self.order.step
        return min(self.sizes[t], self.sizes[other]) if 0 <= other < len(self.sizes) else 0
