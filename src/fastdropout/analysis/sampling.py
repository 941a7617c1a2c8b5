"""What masks really do: moments over many draws, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastdropout.moments import Moments, unchecked_moments


class RunningMoments:
    """Mean and variance over draws that come in batches, by the update of Chan et al. (1979).

    >>> seen = RunningMoments()
    >>> seen.add(torch.tensor([[1.0], [2.0]]))
    >>> seen.add(torch.tensor([[6.0]]))
    >>> seen.result()
    Moments(mean=tensor([3.], dtype=torch.float64), var=tensor([7.], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.square: Tensor | None = None

    def add(self, draws: Tensor) -> None:
        """Draws in the first dimension."""
        n = len(draws)
        # A deviation from the mean of float32 draws is exact enough; sums of 10,000 squares are not.
        mean = draws.mean(0, dtype=torch.float64)
        square = ((draws - mean.to(draws.dtype)) ** 2).sum(0, dtype=torch.float64)
        if self.mean is None or self.square is None:
            self.count, self.mean, self.square = n, mean, square
            return
        total = self.count + n
        gap = mean - self.mean
        self.mean = self.mean + gap * (n / total)
        self.square = self.square + square + gap**2 * (self.count * n / total)
        self.count = total

    def result(self) -> Moments:
        """The mean and the unbiased variance so far."""
        if self.mean is None or self.square is None or self.count < 2:
            raise ValueError(f"a variance needs at least 2 draws, got {self.count}")
        return unchecked_moments(self.mean, self.square / (self.count - 1))


@torch.no_grad()
def sampled_moments(draw: Callable[[int], Tensor], draws: int, batch: int = 500) -> Moments:
    """Moments of `draw(n)`, which returns n draws in its first dimension, over `draws` of them.

    >>> m = sampled_moments(lambda n: torch.randn(n, 2), 10_000)
    >>> bool((m.mean.abs() < 0.1).all() and (m.var - 1).abs().max() < 0.1)
    True
    """
    seen = RunningMoments()
    while seen.count < draws:
        seen.add(draw(min(batch, draws - seen.count)))
    return seen.result()
