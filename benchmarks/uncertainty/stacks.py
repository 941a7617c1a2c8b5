"""Networks of all splits side by side: choose a setting on validation rows, then train on all rows.

Every network method goes through the same steps with the same budget:

1. for each of six settings, train on 80 % of the training rows; keep the best epoch for the other 20 %;
2. choose the setting, and the variance of the noise, by the log-likelihood of those 20 %;
3. train on all training rows for as many epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastdropout.moments import Moments
from fastdropout.sklearn.network import Architecture, Weights, outputs
from fastdropout.sklearn.spread import predicted
from fastdropout.sklearn.training import Best, Rows, Settings, State, Trainer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Setting:
    """What is chosen on validation rows."""

    drop_input: float = 0.0
    drop_hidden: float = 0.0
    weight_decay: float = 0.0

    def __str__(self) -> str:
        return f"drop {self.drop_input} / {self.drop_hidden}, decay {self.weight_decay}"


# As many settings for each method.
DROPS = tuple(
    Setting(a, b) for a, b in ((0.0, 0.02), (0.0, 0.1), (0.02, 0.05), (0.05, 0.1), (0.1, 0.3), (0.2, 0.5))
)
DECAYS = tuple(Setting(weight_decay=w) for w in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0))


@dataclass(frozen=True)
class Budget:
    """The same for all methods."""

    units: tuple[int, ...] = (50,)
    epochs: int = 200
    batch_size: int = 32
    learning_rate: float = 0.003
    activation: str = "relu"


@dataclass(frozen=True)
class Family:
    """How networks are trained: masks drawn (`"mask"`) or integrated out (`"moments"`), and which loss."""

    name: str
    settings: tuple[Setting, ...]
    method: Any = "moments"
    expected: bool = False
    members: int = 1


@dataclass
class Trained:
    """Networks after training: one setting, weights (k, ...), the best epochs and validation losses, (k,)."""

    setting: Setting
    weights: Weights
    epochs: Tensor
    losses: Tensor


def architecture(family: Family, setting: Setting, budget: Budget, inputs: int, outs: int) -> Architecture:
    """The network of a family under a setting."""
    drops = (setting.drop_input, *[setting.drop_hidden] * len(budget.units))
    return Architecture((inputs, *budget.units, outs), drops, budget.activation, family.method)


def train(
    family: Family,
    setting: Setting,
    budget: Budget,
    head: Any,
    rows: Rows,
    seeds: Sequence[int],
    valid: Rows | None = None,
    stop_at: Tensor | None = None,
) -> Trained:
    """Train a stack; the weights are those of the best epoch on `valid`, or those of the epochs `stop_at`."""
    shape = architecture(family, setting, budget, rows.x.shape[-1], head.outputs)
    network = shape.build()
    drawn = [
        shape.draw(1, np.random.RandomState(seed), np.float32) | head.draw(1, np.float32) for seed in seeds
    ]
    first = {name: np.concatenate([d[name] for d in drawn]) for name in drawn[0]}

    def objective(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return head.objective(weights, outputs(network, weights, x), y, family.expected)

    settings = Settings(budget.learning_rate, budget.batch_size, setting.weight_decay, budget.epochs)
    rng = np.random.RandomState(seeds[0])
    torch.manual_seed(seeds[0])
    trainer = Trainer(State(first), objective, rows, settings, rng)
    best = Best()
    last = budget.epochs if stop_at is None else int(stop_at.max())
    for epoch in range(1, last + 1):
        trainer.epoch()
        if valid is not None:
            with torch.no_grad():
                network.eval()  # No masks are drawn; those that are integrated out are there in any case.
                out = outputs(network, trainer.weights, valid.x)
                score = head.loss(trainer.weights, out, valid.y, family.expected).mean(1)
                network.train()
        else:
            assert stop_at is not None
            score = (stop_at - epoch).abs().float()
        best.see(trainer.weights, score)
    assert best.epochs is not None
    assert best.score is not None
    return Trained(setting, best.weights, best.epochs, best.score)


@dataclass(frozen=True)
class Data:
    """Standardised rows of every split: (splits, rows, ...)."""

    x: Array
    y: Array

    def rows(self, splits: Sequence[int], members: int = 1) -> Rows:
        """As tensors, each split `members` times in a row."""
        index = np.repeat(np.asarray(splits), members)
        x, y = torch.from_numpy(self.x[index]), torch.from_numpy(self.y[index])
        return Rows(x, y, torch.ones(x.shape[:2]))


def tune(
    family: Family,
    budget: Budget,
    head: Any,
    fit: Data,
    valid: Data,
    score: Callable[[Trained, int], tuple[float, Any]],
) -> list[tuple[Setting, int, Any]]:
    """For each split the setting with the best score on its validation rows, its epochs, and an extra.

    `score(trained, split)` returns a score, higher is better, and e.g. the variance of the noise.
    """
    splits = range(len(fit.x))
    found: list[list[tuple[float, Setting, int, Any]]] = [[] for _ in splits]
    for setting in family.settings:
        trained = train(
            family,
            setting,
            budget,
            head,
            fit.rows(splits),
            seeds=[1000 + s for s in splits],
            valid=valid.rows(splits),
        )
        for split in splits:
            value, extra = score(trained, split)
            found[split].append((value, setting, int(trained.epochs[split]), extra))
    chosen = [max(candidates, key=lambda c: c[0]) for candidates in found]
    return [(setting, epochs, extra) for _, setting, epochs, extra in chosen]


def train_chosen(
    family: Family, budget: Budget, head: Any, data: Data, chosen: list[tuple[Setting, int, Any]]
) -> dict[int, tuple[Setting, Weights]]:
    """For each split `members` networks of its setting on all training rows, weights (members, ...)."""
    result = {}
    for setting in dict.fromkeys(setting for setting, _, _ in chosen):
        splits = [i for i, (s, _, _) in enumerate(chosen) if s == setting]
        m = family.members
        stop_at = torch.tensor([chosen[i][1] for i in splits for _ in range(m)])
        seeds = [i + 100 * j for i in splits for j in range(m)]
        trained = train(family, setting, budget, head, data.rows(splits, m), seeds, stop_at=stop_at)
        for place, split in enumerate(splits):
            own = slice(place * m, (place + 1) * m)
            result[split] = setting, {name: w[own] for name, w in trained.weights.items()}
    return result


def draws(network: torch.nn.Module, weights: Weights, x: Tensor, count: int) -> Moments:
    """Outputs under `count` drawn masks, (count, rows, outputs), of one network; weights (1, ...)."""
    many = {name: w.expand(count, *w.shape[1:]) for name, w in weights.items()}
    with torch.no_grad():
        return outputs(network, many, x.expand(count, *x.shape))


def integrated(network: torch.nn.Module, weights: Weights, x: Tensor) -> Moments:
    """Moments of the outputs of each member with the traced variance, (members, rows, outputs)."""
    return predicted(network, weights, x, trace=True)


def one(weights: Weights, index: int) -> Weights:
    """The weights of one network of a stack, still with a first dimension."""
    return {name: w[index : index + 1] for name, w in weights.items()}
