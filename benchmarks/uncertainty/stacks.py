"""Networks of all splits and settings side by side: choose on validation rows, then train on all rows.

Every network method goes through the same steps with the same budget:

1. for each of four settings, train on 80 % of the training rows; keep the best epoch for the other 20 %;
2. choose the setting, and the variance of the noise, by the log-likelihood of those 20 %;
3. train on all training rows for as many epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from fastdropout.functional.propagate import linear, multiply_independent
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.sklearn.network import ACTIVATIONS, Architecture, Weights, outputs
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
DROPS = tuple(Setting(a, b) for a, b in ((0.0, 0.02), (0.0, 0.1), (0.05, 0.1), (0.1, 0.3)))
DECAYS = tuple(Setting(weight_decay=w) for w in (0.0, 0.03, 0.1, 0.3))


@dataclass(frozen=True)
class Budget:
    """The same for all methods."""

    units: tuple[int, ...] = (50,)
    epochs: int = 80
    batch_size: int = 32
    learning_rate: float = 0.01
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
    """Networks after training: their settings, weights (k, ...), best epochs and validation losses, (k,)."""

    settings: list[Setting]
    weights: Weights
    epochs: Tensor
    losses: Tensor


def architecture(family: Family, setting: Setting, budget: Budget, inputs: int, outs: int) -> Architecture:
    """The network of a family under a setting."""
    drops = (setting.drop_input, *[setting.drop_hidden] * len(budget.units))
    return Architecture((inputs, *budget.units, outs), drops, budget.activation, family.method)


def stacked_outputs(
    weights: Weights, x: Tensor, drops: Tensor, activation: str, masks: bool | None = None
) -> Moments:
    """Moments of the outputs of k networks, each with drop rates of its own: drops (k, layers).

    A mask is a random number of mean keep and variance keep drop. `masks`: None integrates them out, True
    draws them, False takes their means. Shapes: x (k, rows, inputs); the outputs (k, rows, outputs).
    """
    transfer = ACTIVATIONS[activation]()
    used = [bool(column.any()) for column in drops.mT]

    def one(own: Weights, rows: Tensor, drop: Tensor) -> Moments:
        h = Moments.certain(rows)
        for i, rate in enumerate(drop):
            keep = 1 - rate
            if used[i] and masks is None:
                h = multiply_independent(h, unchecked_moments(keep, keep * rate))
            elif used[i]:
                h = h * ((torch.rand_like(h.mean) >= rate).to(h.dtype) if masks else keep)
            h = linear(h, own[f"{2 * i}.weight"], own[f"{2 * i}.bias"])
            h = transfer(h) if i + 1 < len(drop) else h
        return h

    own = {name: w for name, w in weights.items() if name[0].isdigit()}
    return vmap(one, randomness="different")(own, x, drops)


def train(
    family: Family,
    settings: Sequence[Setting],
    budget: Budget,
    head: Any,
    rows: Rows,
    seeds: Sequence[int],
    valid: Rows | None = None,
    stop_at: Tensor | None = None,
) -> Trained:
    """Train a stack; the weights are those of the best epoch on `valid`, or those of the epochs `stop_at`.

    `settings` has one for each network; they share the weight decay.
    """
    (decay,) = {setting.weight_decay for setting in settings}
    shapes = [architecture(family, s, budget, rows.x.shape[-1], head.outputs) for s in settings]
    drawn = [
        shape.draw(1, np.random.RandomState(seed), np.float32) | head.draw(1, np.float32)
        for shape, seed in zip(shapes, seeds, strict=True)
    ]
    first = {name: np.concatenate([d[name] for d in drawn]) for name in drawn[0]}
    drops = torch.tensor([shape.drops for shape in shapes])
    drawing = family.method == "mask"

    def objective(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        out = stacked_outputs(weights, x, drops, budget.activation, True if drawing else None)
        return head.objective(weights, out, y, family.expected)

    how = Settings(budget.learning_rate, budget.batch_size, decay, budget.epochs)
    rng = np.random.RandomState(seeds[0])
    torch.manual_seed(seeds[0])
    trainer = Trainer(State(first), objective, rows, how, rng)
    best = Best()
    last = budget.epochs if stop_at is None else int(stop_at.max())
    for epoch in range(1, last + 1):
        trainer.epoch()
        if valid is not None:
            with torch.no_grad():  # No masks are drawn; those that are integrated out are there in any case.
                masks = False if drawing else None
                out = stacked_outputs(trainer.weights, valid.x, drops, budget.activation, masks)
                score = head.loss(trainer.weights, out, valid.y, family.expected).mean(1)
        else:
            assert stop_at is not None
            score = (stop_at - epoch).abs().float()
        best.see(trainer.weights, score)
    assert best.epochs is not None
    assert best.score is not None
    return Trained(list(settings), best.weights, best.epochs, best.score)


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
    score: Callable[[Setting, Weights, int], tuple[float, Any]],
) -> list[tuple[Setting, int, Any]]:
    """For each split the setting with the best score on its validation rows, its epochs, and an extra.

    `score(setting, weights, split)` returns a score, higher is better, and e.g. the variance of the noise.
    """
    splits = range(len(fit.x))
    found: list[list[tuple[float, Setting, int, Any]]] = [[] for _ in splits]
    for settings in _by_decay(family.settings):
        pairs = [(setting, split) for setting in settings for split in splits]
        index = [split for _, split in pairs]
        trained = train(
            family,
            [setting for setting, _ in pairs],
            budget,
            head,
            fit.rows(index),
            seeds=[1000 + split for split in index],
            valid=valid.rows(index),
        )
        for i, (setting, split) in enumerate(pairs):
            value, extra = score(setting, one(trained.weights, i), split)
            found[split].append((value, setting, int(trained.epochs[i]), extra))
    chosen = [max(candidates, key=lambda c: c[0]) for candidates in found]
    return [(setting, epochs, extra) for _, setting, epochs, extra in chosen]


def _by_decay(settings: Iterable[Setting]) -> list[list[Setting]]:
    """The weight decay belongs to the optimiser: one for a stack."""
    groups: dict[float, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.weight_decay, []).append(setting)
    return list(groups.values())


def train_chosen(
    family: Family, budget: Budget, head: Any, data: Data, chosen: list[tuple[Setting, int, Any]]
) -> dict[int, tuple[Setting, Weights]]:
    """For each split `members` networks of its setting on all training rows, weights (members, ...)."""
    result = {}
    m = family.members
    for settings in _by_decay(dict.fromkeys(setting for setting, _, _ in chosen)):
        splits = [i for i, (s, _, _) in enumerate(chosen) if s in settings]
        stop_at = torch.tensor([chosen[i][1] for i in splits for _ in range(m)])
        seeds = [i + 100 * j for i in splits for j in range(m)]
        own_settings = [chosen[i][0] for i in splits for _ in range(m)]
        trained = train(family, own_settings, budget, head, data.rows(splits, m), seeds, stop_at=stop_at)
        for place, split in enumerate(splits):
            own = slice(place * m, (place + 1) * m)
            result[split] = chosen[split][0], {name: w[own] for name, w in trained.weights.items()}
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
