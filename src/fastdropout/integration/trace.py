"""The trace: every independent source of noise, and what it does to an output.

    y ~ E[y] + sum_j (dE[y] / d eps_j) eps_j,      V[y] = sum_j (dE[y] / d eps_j)^2 V[eps_j]

A source eps_j acts at one place of the mean path. Autograd finds what it does to the output on all ways at
once, so all correlations between units are included. One backward pass an output.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Gradients of several outputs are computed at once as long as they fit into so many bytes.
MEMORY = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Source:
    """Independent noise that is added to `place`, a tensor of the mean path.

    var: the variance of each element of `place`; or, with `profile`, of one source for all elements along
        `dims`, which acts as profile * eps: a mask for a whole channel.
    name: the path of the module in which it arises; call: how many sources of that module came before.
    """

    name: str
    call: int
    kind: str
    place: Tensor
    var: Tensor
    profile: Tensor | None = None
    dims: tuple[int, ...] = ()

    def acting(self, grad: Tensor) -> Tensor:
        """From (k, *place), d output / d place of k outputs, to d output / d eps."""
        if self.profile is None:
            return grad
        return (grad * self.profile).sum([d + 1 for d in self.dims], keepdim=True)

    def power(self, grad: Tensor) -> Tensor:
        """The variance that each element brings to the outputs."""
        return self.acting(grad) ** 2 * self.var

    def amplitude(self, grad: Tensor) -> Tensor:
        """The change of the outputs for one standard deviation of each element."""
        return self.acting(grad) * self.var.sqrt()


@dataclass(frozen=True, eq=False)
class Owner:
    """Whose a source is: slice i along `dim` acts on example `index[i]` only."""

    dim: int
    index: Tensor
    examples: int

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


class Outputs:
    """The elements of an output as a table of (examples, outputs an example), and their gradients.

    Outputs of different examples usually share no sources. Then one backward pass for output k, summed over
    the examples, gives the gradients of all of them, each with respect to its own sources. Whether it is so,
    and whose each source is, is found by two passes: with weights r_b on the examples instead of 1, a
    gradient is r_b times as large exactly where the source belongs to example b. Where it is not so (batch
    norm in training, noisy weights, a mask for the whole batch), every element has a pass of its own. What
    was found for a batch may be given as `owners` for the next one that goes the same way.
    """

    def __init__(
        self,
        y: Tensor,
        sources: list[Source],
        batch_dim: int | None,
        memory: int = MEMORY,
        owners: list[Owner] | None = None,
    ) -> None:
        self.sources, self.memory, self.like = sources, memory, y
        self.batch_dim = None if y.ndim == 0 else batch_dim
        self.table = y.reshape(1, -1)
        if self.batch_dim is not None:
            self.table = y[:, None] if y.ndim == 1 else y.movedim(self.batch_dim, 0).flatten(1)
        self.live = [s for s in sources if y.requires_grad and s.place.requires_grad]
        self.batched = True
        self._only: list[Tensor] | None = None
        self.owners: list[Owner] | None = None
        if len(self.table) == 1:
            self.owners = [self._whole(source) for source in self.live]
        elif owners is not None and len(owners) == len(self.live):
            self.owners = owners
        elif self.live:
            self.owners = self._find_owners()
            if self.owners is None:
                log.info(
                    "the examples of the batch share sources of noise: %d backward passes instead of %d",
                    self.table.numel(),
                    self.table.shape[1],
                )

    def restore(self, total: Tensor) -> Tensor:
        """From (examples, outputs) to the shape of the output."""
        if self.batch_dim is None:
            return total.reshape(self.like.shape)
        return total.reshape(self.like.movedim(self.batch_dim, 0).shape).movedim(0, self.batch_dim)

    def variances(self, create_graph: bool = False) -> Iterator[tuple[Source, Tensor]]:
        """The variance by each source, shape (examples, outputs)."""
        parts: list[list[Tensor]] = [[] for _ in self.live]
        for grads in self._all_gradients(create_graph):
            for i, (source, grad) in enumerate(zip(self.live, grads, strict=True)):
                power = source.power(grad)
                if self.owners is None:
                    parts[i].append(power.flatten(1).sum(1))
                else:
                    owner = self.owners[i]
                    parts[i].append(owner.gather(owner.slices(power).sum(-1)))
        for source, part in zip(self.live, parts, strict=True):
            yield source, torch.cat(part, -1).view_as(self.table)

    def elements(self) -> Iterator[tuple[Source, Tensor]]:
        """The variance by each element of each source, summed over all outputs, shape of the source."""
        totals: list[Tensor | float] = [0.0 for _ in self.live]
        for grads in self._all_gradients(False):
            for i, (source, grad) in enumerate(zip(self.live, grads, strict=True)):
                totals[i] = totals[i] + source.power(grad).sum(0)
        yield from zip(self.live, totals, strict=True)

    def covariance(self) -> Tensor:
        """Between the outputs of each example, shape (examples, outputs, outputs)."""
        examples, outputs = self.table.shape
        total = self.table.new_zeros(examples, outputs, outputs)
        if not self.live:
            return total
        if self.owners is not None:
            self._add_blocks(total, self._targets(), self.owners)
        else:
            for example in range(examples):
                whole = [self._whole(source) for source in self.live]
                self._add_blocks(total[example : example + 1], self.table[example], whole)
        return total

    def _add_blocks(self, total: Tensor, targets: Tensor, owners: list[Owner]) -> None:
        size = max(1, self._chunk // 2)
        starts = range(0, len(targets), size)
        for a in starts:
            rows = self._amplitudes(targets[a : a + size], owners)
            for b in starts[a // size :]:
                columns = rows if b == a else self._amplitudes(targets[b : b + size], owners)
                for owner, u, v in zip(owners, rows, columns, strict=True):
                    block = owner.gather(u @ v.mT)
                    total[:, a : a + size, b : b + size] += block
                    if b != a:
                        total[:, b : b + size, a : a + size] += block.mT

    def _amplitudes(self, targets: Tensor, owners: list[Owner]) -> list[Tensor]:
        grads = self._gradients(targets, False)
        return [o.slices(s.amplitude(g)) for s, o, g in zip(self.live, owners, grads, strict=True)]

    def _targets(self) -> Tensor:
        """What is differentiated: sums over the examples where they share nothing, else all elements."""
        return self.table.flatten() if self.owners is None else self.table.sum(0)

    @property
    def _chunk(self) -> int:
        size = sum(s.place.numel() * s.place.element_size() for s in self.live)
        return max(1, self.memory // max(1, size)) if self.batched else 1

    def _all_gradients(self, create_graph: bool) -> Iterator[list[Tensor]]:
        """Gradients of all targets, as many at once as the memory allows and autograd can do."""
        if self._only is not None and self.owners is not None and not create_graph:
            yield self._only
            return
        targets = self._targets()
        start = 0
        while start < len(targets):
            some = targets[start : start + self._chunk]
            if len(some) > 1:
                grads = self._batched(some, create_graph)
                if grads is None:  # never again: from here on the chunk is 1
                    continue
            else:
                grads = self._gradients(some, create_graph)
            yield grads
            start += len(some)

    def _batched(self, targets: Tensor, create_graph: bool) -> list[Tensor] | None:
        """`_gradients` by one pass for all targets; None where autograd cannot."""
        places = [source.place for source in self.live]
        eye = torch.eye(len(targets), dtype=targets.dtype, device=targets.device)
        try:
            found = torch.autograd.grad(
                targets, places, eye, retain_graph=True, create_graph=create_graph, is_grads_batched=True,
                allow_unused=True,
            )  # fmt: skip
        except RuntimeError as error:  # a function of autograd in Python that vmap does not know
            log.debug("batched backward passes are not possible here, one after the other: %s", error)
            self.batched = False
            return None
        return [
            p.new_zeros(len(targets), *p.shape) if g is None else g
            for p, g in zip(places, found, strict=True)
        ]

    def _gradients(self, targets: Tensor, create_graph: bool) -> list[Tensor]:
        """d targets / d place of every live source, shape (targets, *place)."""
        places = [source.place for source in self.live]
        k = len(targets)
        if k == 0 or not places:
            return [p.new_zeros(k, *p.shape) for p in places]
        if k > 1 and self.batched:
            found = self._batched(targets, create_graph)
            if found is not None:
                return found
        rows = [
            torch.autograd.grad(
                t, places, retain_graph=True, create_graph=create_graph, materialize_grads=True
            )
            for t in targets
        ]
        return [torch.stack(grads) for grads in zip(*rows, strict=True)]

    def _whole(self, source: Source) -> Owner:
        n = source.var.shape[0] if source.var.ndim else 1
        return Owner(0, torch.zeros(n, dtype=torch.long, device=source.place.device), 1)

    def _find_owners(self) -> list[Owner] | None:
        table = self.table
        examples, outputs = table.shape
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(outputs, generator=generator).to(table) if outputs > 1 else table.new_ones(1)
        weights = _weights(examples, generator).to(table)
        plain = self._gradients((table @ mix).sum()[None], False)
        self._only = plain if outputs == 1 else None  # these are the gradients of the only output
        weighted = self._gradients((weights @ table @ mix)[None], False)
        owners = []
        for source, a, b in zip(self.live, plain, weighted, strict=True):
            owner = _owner(source.acting(a), source.acting(b), weights)
            if owner is None:
                return None
            owners.append(owner)
        return owners


def _weights(examples: int, generator: torch.Generator) -> Tensor:
    """Numbers that tell the examples apart, of which none is a mean of others.

    Their sizes lie evenly between 1 and 2, moved at random by up to a quarter of the distance; so noise that
    several examples share, as that of a bias, does not look like noise of one between them.
    """
    moved = torch.arange(examples) + 0.5 * torch.rand(examples, generator=generator)
    sign = torch.randint(2, (examples,), generator=generator) * 2 - 1
    return sign * (1 + moved / examples)


def _owner(plain: Tensor, weighted: Tensor, weights: Tensor) -> Owner | None:
    """The dimension along which every slice of `weighted` is weights[b] times that of `plain`."""
    best: tuple[float, Owner] | None = None
    # Long dimensions first: most networks keep the batch in the first, (batch * heads, ...) included.
    for dim in range(max(1, plain.ndim - 1)):
        owner = Owner(dim, torch.zeros(0), len(weights))
        a, b = owner.slices(plain)[:, 0], owner.slices(weighted)[:, 0]
        power = (a**2).sum(1)
        ratio = (a * b).sum(1) / torch.where(power > 0, power, 1)
        index = (ratio[:, None] - weights).abs().argmin(1)
        error = ((b - weights[index, None] * a) ** 2).sum()
        share = (error / torch.clamp((b**2).sum(), min=torch.finfo(b.dtype).tiny)).item()
        if best is None or share < best[0]:
            best = share, Owner(dim, index, len(weights))
        if share < 1e-8:
            break
    # A leak between examples of less than 1e-3 of the amplitude is rounding, or does no harm.
    return best[1] if best is not None and best[0] < 1e-6 else None
