"""Training of a stack of networks by mini-batches, an epoch a call; the caller decides when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastdropout.sklearn.network import Weights, to_arrays, to_tensors

# Loss of each row, (k, rows), from the weights, the inputs and the targets.
RowLoss = Callable[[Weights, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """Inputs, targets and weights of rows, one set for each network of the stack: (k, rows, ...)."""

    x: Tensor
    y: Tensor
    weight: Tensor

    @classmethod
    def shared(cls, k: int, x: Tensor, y: Tensor, weight: Tensor) -> Rows:
        """The same rows for all networks, without a copy."""
        return cls(*(t.expand(k, *t.shape) for t in (x, y, weight)))

    def __len__(self) -> int:
        return self.x.shape[1]

    def take(self, index: Tensor) -> Rows:
        """The rows `index`, (k, n), of each network."""
        network = torch.arange(len(index)).unsqueeze(1)
        return Rows(self.x[network, index], self.y[network, index], self.weight[network, index])

    def part(self, index: Tensor) -> Rows:
        """The same rows `index`, (n,), of all networks."""
        return Rows(self.x[:, index], self.y[:, index], self.weight[:, index])


@dataclass
class State:
    """All that changes in a training; plain arrays and numbers, so that it pickles and copies anywhere."""

    weights: dict[str, npt.NDArray[Any]]
    moments: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=dict)
    updates: int = 0


@dataclass(frozen=True)
class Settings:
    """How a training goes."""

    learning_rate: float
    batch_size: int
    weight_decay: float = 0.0
    total_epochs: int | None = None  # The learning rate falls to 0 over so many, along a cosine.
    clip: float = 10.0  # Largest norm of a network's gradient.


class Trainer:
    """Trains the weights of `state` on `rows`, an epoch a call."""

    def __init__(
        self, state: State, loss: RowLoss, rows: Rows, settings: Settings, rng: np.random.RandomState
    ) -> None:
        self.weights = to_tensors(state.weights)
        for weight in self.weights.values():
            weight.requires_grad_()
        self._optimizer = _optimizer(self.weights, state, settings)
        self._loss, self._rows, self._settings = loss, rows, settings
        self._generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        self._before, self._updates = state.updates, 0

    def epoch(self) -> Tensor:
        """Go through all rows once; returns the training loss of each network, (k,)."""
        rows, settings = self._rows, self._settings
        k, n = rows.weight.shape
        total = torch.zeros(k, dtype=rows.x.dtype)
        for index in _order(k, n, settings.batch_size, self._generator):
            batch = rows if index is None else rows.take(index)
            self._schedule(math.ceil(n / settings.batch_size))
            each = (self._loss(self.weights, batch.x, batch.y) * batch.weight).sum(1)
            self._optimizer.zero_grad()
            (each.sum() / len(batch)).backward()
            _clip(self.weights, settings.clip)
            self._optimizer.step()
            total += each.detach()
            self._updates += 1
        return total / rows.weight.sum(1)

    def state(self) -> State:
        """What it takes to go on later."""
        seen = self._optimizer.state
        moments = {
            name: (seen[w]["exp_avg"].numpy().copy(), seen[w]["exp_avg_sq"].numpy().copy())
            for name, w in self.weights.items()
            if w in seen
        }
        return State(to_arrays(self.weights), moments, self._before + self._updates)

    def _schedule(self, batches: int) -> None:
        if self._settings.total_epochs is None:
            return
        share = min(1.0, self._updates / (batches * self._settings.total_epochs))
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * (1 + math.cos(math.pi * share)) / 2


def _order(k: int, n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor | None]:
    """Indices of the rows of each batch, shuffled anew for each network; None for all rows at once."""
    if batch_size >= n:
        yield None
        return
    yield from torch.rand(k, n, generator=generator, dtype=torch.float64).argsort(1).split(batch_size, 1)


def _optimizer(weights: Weights, state: State, settings: Settings) -> torch.optim.Optimizer:
    """AdamW, of which only matrices decay, with the moments that `state` has."""
    matrices = [w for w in weights.values() if w.ndim > 2]
    others = [w for w in weights.values() if w.ndim <= 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)
    for name, arrays in state.moments.items():
        first, second = (torch.from_numpy(np.array(a)) for a in arrays)
        optimizer.state[weights[name]] = {
            "step": torch.tensor(float(state.updates)),
            "exp_avg": first,
            "exp_avg_sq": second,
        }
    return optimizer


def _clip(weights: Weights, limit: float) -> None:
    """Scale the gradient of each network to a norm of at most `limit`.

    The slope of a Gaussian likelihood is without bound where its variance is small.
    """
    grads = [w.grad for w in weights.values() if w.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
    scale = (limit / (norm + 1e-12)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))


class Best:
    """The best weights of each network so far, and how long ago the last of them improved."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tolerance = tolerance
        self.epoch, self.waited = 0, 0
        self.score: Tensor | None = None
        self.epochs: Tensor | None = None
        self.weights: Weights = {}

    def see(self, weights: Weights, score: Tensor) -> None:
        """Take note of the weights after an epoch and of their loss, (k,)."""
        self.epoch += 1
        score = torch.where(score.isfinite(), score.detach(), torch.inf)
        if self.score is None or self.epochs is None:
            self.score, self.epochs = score.clone(), torch.ones(len(score), dtype=torch.int64)
            self.weights = {name: w.detach().clone() for name, w in weights.items()}
            return
        better = score < self.score - self.tolerance
        self.waited = 0 if bool(better.any()) else self.waited + 1
        self.score = torch.where(better, score, self.score)
        self.epochs = torch.where(better, self.epoch, self.epochs)
        for name, w in weights.items():
            kept = self.weights[name]
            kept.copy_(torch.where(better.view(-1, *[1] * (w.ndim - 1)), w.detach(), kept))
