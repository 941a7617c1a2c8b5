"""The trace: every independent source of noise, and what it does to an output.

    y ~ E[y] + sum_j (dE[y] / d eps_j) eps_j,      V[y] = sum_j (dE[y] / d eps_j)^2 V[eps_j]

A source eps_j acts at one place of the mean path. Autograd finds what it does to the output on all ways at
once, so all correlations between units are included. One backward pass an output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch._vmap_internals import _vmap  # what is_grads_batched is made of; it does not warn

from fastdropout.integration.owners import Owner, owner_of, telling

log = logging.getLogger(__name__)

# Gradients of several outputs are computed at once as long as they fit into so many bytes.
MEMORY = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Source:
    """Independent noise that is added to `place`, a tensor of the mean path.

    var: the variance of each element of `place`; or, with `profile`, of one source for all elements along
        `dims`, which acts as profile * eps: a mask for a whole channel.
    name: the path of the module in which it arises; call: how many sources of that module came before.
    is_first: whether no noise was there before; a backward pass that reaches all such comes by all others.
    """

    name: str
    call: int
    kind: str
    place: Tensor
    var: Tensor
    profile: Tensor | None = None
    dims: tuple[int, ...] = ()
    is_first: bool = False

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

    @property
    def is_sure(self) -> bool:
        """Whether the owners hold for every batch that goes the same way."""
        return self.owners is not None and all(owner.is_sure for owner in self.owners)

    def restore(self, total: Tensor) -> Tensor:
        """From (examples, outputs) to the shape of the output."""
        if self.batch_dim is None:
            return total.reshape(self.like.shape)
        return total.reshape(self.like.movedim(self.batch_dim, 0).shape).movedim(0, self.batch_dim)

    def variances(self, create_graph: bool = False) -> Iterator[tuple[Source, Tensor]]:
        """The variance by each source, shape (examples, outputs)."""
        parts: list[list[Tensor]] = [[] for _ in self.live]
        if create_graph or self._only is not None or not self._on_cpu:
            for grads in self._all_gradients(create_graph):
                for i, grad in enumerate(grads):
                    parts[i].append(self._variance(i, grad))
        elif self.live:
            for swept in self._swept(self._targets()):
                for i, part in enumerate(swept):
                    parts[i].append(part)
        for source, found in zip(self.live, parts, strict=True):
            yield source, torch.cat(found, -1).view_as(self.table)

    def _variance(self, i: int, grad: Tensor) -> Tensor:
        """Of gradients by source i, shape (k, *place): (examples, k) variances, or (k) of all elements."""
        power = self.live[i].power(grad)
        if self.owners is None:
            return power.flatten(1).sum(1)
        owner = self.owners[i]
        return owner.gather(owner.slices(power).sum(-1))

    def _swept(self, targets: Tensor) -> Iterator[list[Tensor]]:
        """The variances of all targets. Each gradient is used when a backward pass has it, and let go."""

        def row(direction: Tensor) -> tuple[Tensor, ...]:
            found: list[Tensor | None] = [None for _ in self.live]

            def use(i: int, grad: Tensor) -> None:
                found[i] = self._variance(i, grad.unsqueeze(0)).squeeze(-1)

            self._visit(some, direction, use)
            zero = 0 * direction[0]  # of the pass, so that it has as many rows as the others
            zero = zero if self.owners is None else zero.expand(len(self.table))
            return tuple(zero if part is None else part for part in found)

        start = 0
        while start < len(targets):
            some = targets[start : start + self._chunk]
            eye = torch.eye(len(some), dtype=some.dtype, device=some.device)
            if len(some) > 1:
                try:
                    yield [part.movedim(0, -1) for part in _vmap(row, 0, 0)(eye)]
                except RuntimeError as error:  # a function of autograd in Python that vmap does not know
                    log.debug("batched backward passes are not possible here: %s", error)
                    self.batched = False
                    continue
            else:
                yield [part.unsqueeze(-1) for part in row(eye[0])]
            start += len(some)

    def _visit(self, targets: Tensor, direction: Tensor, use: Callable[[int, Tensor], None]) -> None:
        """One backward pass from `targets`: `use(i, grad)` for every live source that it comes by."""
        reached = set()

        def seen(i: int, grad: Tensor) -> None:
            reached.add(i)
            use(i, grad)

        roots = [i for i, source in enumerate(self.live) if source.place.is_leaf or source.is_first]
        hooks = [
            source.place.register_hook(partial(seen, i))
            for i, source in enumerate(self.live)
            if not (source.place.is_leaf or source.is_first)
        ]
        try:
            self._roots(targets, direction, roots, seen)
        finally:
            for hook in hooks:
                hook.remove()
        # Behind no other source: noise that does not matter, or of Moments that were detached on their way.
        missed = [i for i in range(len(self.live)) if i not in reached and i not in roots]
        if missed:
            self._roots(targets, direction, missed, seen)

    def _roots(
        self, targets: Tensor, direction: Tensor, which: list[int], use: Callable[[int, Tensor], None]
    ) -> None:
        if not which:
            return
        places = [self.live[i].place for i in which]
        grads = torch.autograd.grad(targets, places, direction, retain_graph=True, allow_unused=True)
        for i, grad in zip(which, grads, strict=True):
            if grad is not None:
                use(i, grad)

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
    def _on_cpu(self) -> bool:
        return self.table.is_cpu

    @cached_property
    def _sizes(self) -> list[int]:
        return [s.place.numel() * s.place.element_size() for s in self.live]

    @property
    def _chunk(self) -> int:
        """How many gradients at once: of all places, or where they are let go of the largest few.

        Then not more than the places themselves take, or what hardly counts.
        """
        if not self.batched:
            return 1
        if not self._on_cpu:
            return max(1, self.memory // max(1, sum(self._sizes)))
        most = min(self.memory, max(2**22, sum(self._sizes)))
        return max(1, most // max(1, 4 * max(self._sizes, default=1)))

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

    def _whole(self, source: Source, examples: int = 1) -> Owner:
        n = source.var.shape[0] if source.var.ndim else 1
        index = torch.zeros(n, dtype=torch.long, device=source.place.device)
        return Owner(0, index, examples, examples == 1)

    def _find_owners(self) -> list[Owner] | None:
        table = self.table
        examples, outputs = table.shape
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(outputs, generator=generator).to(table) if outputs > 1 else table.new_ones(1)
        weights = telling(examples, generator).to(table)
        plain = self._gradients((table @ mix).sum()[None], False)
        self._only = plain if outputs == 1 else None  # these are the gradients of the only output
        found: dict[int, Owner | None] = {}

        def compare(i: int, grad: Tensor) -> None:
            source = self.live[i]
            found[i] = owner_of(source.acting(plain[i]), source.acting(grad[None]), weights)

        target = (weights @ table @ mix)[None]
        self._visit(target, torch.ones_like(target), compare)
        # What has no gradient at all may be anybody's.
        owners = [found[i] if i in found else self._whole(s, examples) for i, s in enumerate(self.live)]
        if any(owner is None for owner in owners):
            self._only = None
            return None
        return [owner for owner in owners if owner is not None]
