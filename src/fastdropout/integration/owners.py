"""Whose a source of noise is: which example of the batch it acts on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Owner:
    """Whose a source is: slice i along `dim` acts on example `index[i]` only.

    is_sure: every slice has shown it, and every example has as many of them.
    """

    dim: int
    index: Tensor
    examples: int
    is_sure: bool = True

    def slices(self, x: Tensor) -> Tensor:
        """From (k, *source) to (slices, k, rest)."""
        x = x.unsqueeze(-1) if x.ndim == 1 else x
        return x.movedim(self.dim + 1, 0).flatten(2) if x.ndim > 2 else x.movedim(1, 0).unsqueeze(-1)

    def gather(self, x: Tensor) -> Tensor:
        """Add up slices, shape (slices, *any), to the examples, shape (examples, *any)."""
        if self.in_order:
            return x
        return x.new_zeros(self.examples, *x.shape[1:]).index_add(0, self.index, x)

    @cached_property
    def in_order(self) -> bool:
        """Whether there is one slice for each example, as they come."""
        return self.index.tolist() == list(range(self.examples))


def telling(examples: int, generator: torch.Generator) -> Tensor:
    """Numbers that tell the examples apart, of which none is a mean of others.

    Their sizes lie evenly between 1 and 2, moved at random by up to a quarter of the distance; so noise that
    several examples share, as that of a bias, does not look like noise of one between them.
    """
    moved = torch.arange(examples) + 0.5 * torch.rand(examples, generator=generator)
    sign = torch.randint(2, (examples,), generator=generator) * 2 - 1
    return sign * (1 + moved / examples)


def owner_of(plain: Tensor, weighted: Tensor, weights: Tensor) -> Owner | None:
    """The dimension along which every slice of `weighted` is weights[b] times that of `plain`."""
    best: tuple[float, Owner] | None = None
    # Long dimensions first: most networks keep the batch in the first, (batch * heads, ...) included.
    for dim in range(max(1, plain.ndim - 1)):
        owner = Owner(dim, torch.zeros(0), len(weights))
        a, b = owner.slices(plain)[:, 0], owner.slices(weighted)[:, 0]
        power = (a**2).sum(1)
        ratio = (a * b).sum(1) / torch.where(power > 0, power, 1)
        index = (ratio[:, None] - weights).abs().argmin(1)
        errors = ((b - weights[index, None] * a) ** 2).sum(1)
        error = errors.sum()
        share = (error / torch.clamp((b**2).sum(), min=torch.finfo(b.dtype).tiny)).item()
        if best is None or share < best[0]:
            shown = bool(((errors <= 1e-6 * power) & (power > 0)).all())
            even = len(set(index.bincount(minlength=len(weights)).tolist())) == 1
            best = share, Owner(dim, index, len(weights), shown and even)
        if share < 1e-8:
            break
    # A leak between examples of less than 1e-3 of the amplitude is rounding, or does no harm.
    return best[1] if best is not None and best[0] < 1e-6 else None
