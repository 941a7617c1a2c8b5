"""Times of predictions and updates, contestants interleaved, and of whole fits of the estimators.

`python -m benchmarks.uncertainty times`, and `fits`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification, make_friedman1
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.timing import medians
from benchmarks.uncertainty import store
from benchmarks.uncertainty.forecasting import Forecaster
from benchmarks.uncertainty.forecasting import Setting as SeriesSetting
from fastdropout.sklearn import FastDropoutClassifier, FastDropoutRegressor
from fastdropout.sklearn.heads import CategoricalHead, GaussianHead
from fastdropout.sklearn.network import Architecture, outputs, to_tensors
from fastdropout.sklearn.spread import predicted, predicted_covariance
from fastdropout.sklearn.training import Rows, Settings, State, Trainer

MASKS, MEMBERS = 50, 5
# Name, sizes, drops, rows.
NETWORKS: tuple[tuple[str, tuple[int, ...], tuple[float, ...], int], ...] = (
    ("Boston, 13-50-1, 51 rows", (13, 50, 1), (0.05, 0.1), 51),
    ("13-50-1, 1 row", (13, 50, 1), (0.05, 0.1), 1),
    ("computers, 9-100-1, 626 rows", (9, 100, 1), (0.05, 0.1), 626),
    ("20-200-200-1, 1,000 rows", (20, 200, 200, 1), (0.05, 0.1, 0.1), 1000),
    ("digits, 64-200-200-10, 360 rows", (64, 200, 200, 10), (0.1, 0.3, 0.3), 360),
    ("MNIST, 784-200-200-10, 1,000 rows", (784, 200, 200, 10), (0.1, 0.3, 0.3), 1000),
)


def stock(sizes: tuple[int, ...], drops: tuple[float, ...]) -> nn.Sequential:
    """The network of torch's modules that Monte-Carlo dropout runs."""
    layers: list[nn.Module] = []
    for i, drop in enumerate(drops):
        layers += [nn.Dropout(drop), nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def prediction(rounds: int) -> list[dict[str, Any]]:
    """Seconds of a prediction with its uncertainty."""
    rows = []
    for what, sizes, drops, n in NETWORKS:
        x = torch.randn(n, sizes[0], generator=torch.Generator().manual_seed(0))
        shape = Architecture(sizes, drops)
        weights, network = to_tensors(shape.draw(1, np.random.RandomState(0), np.float32)), shape.build()
        plain = [stock(sizes, drops).requires_grad_(False) for _ in range(MEMBERS)]
        contestants = _contestants(plain, x, sizes[-1] > 1)
        contestants["fast dropout"] = _ours(network, weights, x, sizes[-1])
        contestants["fast dropout, diagonal"] = lambda n=network, w=weights, x=x: predicted(
            n, w, x, trace=False
        )
        rows.append({"what": what, "seconds": medians(contestants, rounds)})
        print(rows[-1], flush=True)
    return rows + [_forecast(cell, rounds) for cell in ("rnn", "lstm")]


def _contestants(networks: list[nn.Sequential], x: Tensor, classes: bool) -> dict[str, Callable[[], object]]:
    def answer(out: Tensor) -> Tensor:
        return out.softmax(-1) if classes else out

    @torch.no_grad()
    def masks(count: int) -> tuple[Tensor, Tensor]:
        networks[0].train()
        draws = torch.stack([answer(networks[0](x)) for _ in range(count)])
        return draws.mean(0), draws.var(0)

    @torch.no_grad()
    def batch() -> tuple[Tensor, Tensor]:
        draws = answer(networks[0].train()(x.repeat(MASKS, 1))).view(MASKS, len(x), -1)
        return draws.mean(0), draws.var(0)

    @torch.no_grad()
    def ensemble(count: int) -> tuple[Tensor, Tensor]:
        draws = torch.stack([answer(network.eval()(x)) for network in networks[:count]])
        return draws.mean(0), draws.var(0, correction=0)

    return {
        "plain": lambda: ensemble(1),
        "deep ensemble 5": lambda: ensemble(MEMBERS),
        "MC dropout 10": lambda: masks(10),
        "MC dropout 50": lambda: masks(MASKS),
        "MC dropout 50, one batch": batch,
    }


def _ours(network: nn.Module, weights: dict[str, Tensor], x: Tensor, outs: int) -> Callable[[], object]:
    if outs == 1:
        return lambda: predicted(network, weights, x, trace=True)
    head = CategoricalHead(outs)

    def classes() -> Tensor:
        mean, covariance = predicted_covariance(network, weights, x)
        return head.probabilities(mean[0], covariance[0])

    return classes


def _forecast(cell: str, rounds: int) -> dict[str, Any]:
    """Eight values ahead from windows of 44; masks of recurrent units are drawn by our own layers."""
    x = torch.randn(64, 44, generator=torch.Generator().manual_seed(0))
    setting = SeriesSetting(0.0, 0.1, 0.2)
    ours, drawn = (Forecaster(cell, 8, setting, method) for method in ("moments", "mask"))

    def fast() -> Tensor:
        with fd.integrate(train_variance=False) as noise:
            return noise.var(ours(x))

    @torch.no_grad()
    def masks(count: int) -> Tensor:
        return torch.stack([drawn.train()(x).mean for _ in range(count)]).var(0)

    @torch.no_grad()
    def batch() -> Tensor:
        return drawn.train()(x.repeat(MASKS, 1)).mean.view(MASKS, len(x), -1).var(0)

    @torch.no_grad()
    def plain(count: int) -> Tensor:
        return torch.stack([drawn.eval()(x).mean for _ in range(count)]).mean(0)

    @torch.no_grad()
    def diagonal() -> Tensor:
        return ours(x).var

    contestants: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(1),
        "deep ensemble 5": lambda: plain(MEMBERS),
        "MC dropout 10": lambda: masks(10),
        "MC dropout 50": lambda: masks(MASKS),
        "MC dropout 50, one batch": batch,
        "fast dropout": fast,
        "fast dropout, diagonal": diagonal,
    }
    row = {
        "what": f"{cell.upper()} of 32 units, 44 steps, 8 outputs, 64 windows",
        "seconds": medians(contestants, rounds),
    }
    print(row, flush=True)
    return row


def update(rounds: int) -> list[dict[str, Any]]:
    """Seconds of an update of one network."""
    rows = []
    for what, sizes, drops, _ in (NETWORKS[0], NETWORKS[5]):
        contestants: dict[str, Callable[[], object]] = {}
        head: Any = GaussianHead(1) if sizes[-1] == 1 else CategoricalHead(sizes[-1])
        for name, method, own, expected in (
            ("plain", "moments", (0.0,) * len(drops), True),
            ("MC dropout", "mask", drops, True),
            ("fast dropout", "moments", drops, False),
            ("fast dropout, expected loss", "moments", drops, True),
        ):
            contestants[name] = _trainer(Architecture(sizes, own, method=method), head, expected).epoch  # type: ignore[arg-type]
        batch = what.split(",")[0]
        found = medians(contestants, rounds)
        rows.append({"what": f"{batch}, 64 rows", "seconds": {k: v / 20 for k, v in found.items()}})
        print(rows[-1], flush=True)
    return rows


def _trainer(shape: Architecture, head: Any, expected: bool, updates: int = 20) -> Trainer:
    """An epoch of it is `updates` updates of 64 rows."""
    network = shape.build()
    rng = np.random.RandomState(0)
    x = torch.randn(updates * 64, shape.sizes[0])
    y = torch.randn(len(x), 1) if isinstance(head, GaussianHead) else torch.randint(head.classes, (len(x),))
    rows = Rows.shared(1, x, y, torch.ones(len(x)))
    first = shape.draw(1, rng, np.float32) | head.draw(1, np.float32)

    def loss(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        return head.objective(weights, outputs(network, weights, x), y, expected)

    return Trainer(State(first), loss, rows, Settings(0.001, 64), rng)


def fit(quick: bool) -> Iterator[dict[str, Any]]:
    """Seconds of a whole fit of the estimators with their defaults, one after the other."""
    for n, d in ((1000, 20),) if quick else ((1000, 20), (100_000, 50)):
        x, y = make_friedman1(n + 2000, d, noise=1.0, random_state=0)
        z, c = make_classification(n + 2000, d, n_informative=10, n_classes=3, random_state=0)
        for model, features, target in ((FastDropoutRegressor, x, y), (FastDropoutClassifier, z, c)):
            parts = train_test_split(features.astype(np.float32), target, test_size=2000, random_state=0)
            began = time.perf_counter()
            fitted = model(random_state=0).fit(parts[0], parts[2])
            seconds = time.perf_counter() - began
            row = {
                "what": f"{model.__name__}, {n:,} x {d}, float32",
                "seconds": seconds,
                "epochs": fitted.n_iter_,
                "score": fitted.score(parts[1], parts[3]),
            }
            print(row, flush=True)
            yield row


def main(what: str, quick: bool = False, threads: int = 2) -> None:
    """Measure `"times"` or `"fits"`; let nothing else run meanwhile."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    rounds = 2 if quick else 7
    found: Any
    if what == "times":
        config = {"rounds": rounds, "threads": threads, "masks": MASKS}
        found = {"prediction": prediction(rounds), "update": update(rounds)}
        _keep(what, found, config, quick)
        return
    found = []
    for row in fit(quick):
        found.append(row)
        _keep(what, found, {"threads": threads, "seed": 0}, quick)


def _keep(what: str, found: Any, config: dict[str, Any], quick: bool) -> None:
    if not quick:
        store.run(what, lambda: found, config, command=what)
