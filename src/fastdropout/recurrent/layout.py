"""How the steps of pieces of any lengths lie one below the other, and in which order they are walked."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastdropout.moments import Moments


@dataclass(frozen=True)
class Steps:
    """As in a `PackedSequence`: `sizes` are the pieces of each step, never growing."""

    sizes: tuple[int, ...]
    reverse: bool

    order: range = field(init=False, repr=False, compare=False)
    """The steps as they are walked."""
    starts: list[int] = field(init=False, repr=False, compare=False)
    """The first row of each step, and the number of rows."""

    def __post_init__(self) -> None:
        # Not cached properties, whose lock `torch.compile` cannot follow.
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        object.__setattr__(self, "order", range(len(self.sizes))[:: -1 if self.reverse else 1])
        object.__setattr__(self, "starts", starts)

    def rows(self, t: int) -> slice:
        """Of step t."""
        return slice(self.starts[t], self.starts[t + 1])

    def before(self, t: int) -> int:
        """The step that is walked before t."""
        return t - self.order.step

    def entering_units(self, units: Moments, beginning: Moments) -> Moments:
        """What enters each step, row by row: `units` of the step before, or what a piece begins with."""
        parts = []
        for t in range(len(self.sizes)):
            common, size = self.common(t, -1), self.sizes[t]
            if common:
                start = self.starts[self.before(t)]
                parts.append(units[start : start + common])
            if common < size:
                parts.append(beginning[common:size])
        return Moments.cat(parts)

    def common(self, t: int, way: int) -> int:
        """The number of pieces that step t shares with the step walked before (-1) or after (+1) it."""
        other = t + way * self.order.step
        return min(self.sizes[t], self.sizes[other]) if 0 <= other < len(self.sizes) else 0
