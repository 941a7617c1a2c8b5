"""The band that each method draws over a function of one variable, with a gap in the data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.uncertainty import stacks
from benchmarks.uncertainty.practitioners import gaussian_process
from benchmarks.uncertainty.regression import FAMILIES, fit_noise, spread_of
from benchmarks.uncertainty.scores import Array
from benchmarks.uncertainty.stacks import Budget, Data, Setting
from fastdropout.sklearn.heads import GaussianHead

BUDGET = Budget((100, 100), 300, 32, learning_rate=0.003, activation="tanh")
SETTINGS = {"plain": Setting(), "mask": Setting(0.0, 0.1), "mean": Setting(0.0, 0.1)}
LABELS = {"plain": "deep ensemble 5", "mask": "MC dropout 50", "mean": "fast dropout"}


def data(n: int = 160) -> tuple[Array, Array]:
    """sin(4 x) + 0.3 x and noise of 0.1, for x in [-1.2, -0.3] and [0.4, 1.2]."""
    rng = np.random.RandomState(0)
    x = np.r_[rng.uniform(-1.2, -0.3, n // 2), rng.uniform(0.4, 1.2, n // 2)]
    return x, np.sin(4 * x) + 0.3 * x + 0.1 * rng.standard_normal(n)


def run(quick: bool = False) -> dict[str, Any]:
    """Means and standard deviations on a grid; the function, the data."""
    x, y = data()
    grid = np.linspace(-2, 2, 161)
    mean, std = x.mean(), x.std()
    shift, scale = y.mean(), y.std()
    xs, ys = ((x - mean) / std).astype(np.float32)[:, None], ((y - shift) / scale).astype(np.float32)
    at = ((grid - mean) / std).astype(np.float32)[:, None]
    budget = replace(BUDGET, epochs=5) if quick else BUDGET
    head = GaussianHead(1)
    bands: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        family = FAMILIES[name]
        members = 5 if name == "plain" else 1
        rows = Data(xs[None], ys[None, :, None]).rows([0], members)
        stop_at = torch.full((members,), budget.epochs)
        trained = stacks.train(
            family, [setting] * members, budget, head, rows, list(range(members)), stop_at=stop_at
        )
        _, noise = fit_noise(
            spread_of(family, setting, budget, head, trained.weights, xs), ys.astype(np.float64)
        )
        m, v = spread_of(family, setting, budget, head, trained.weights, at).moments(noise)
        bands[LABELS[name]] = {"mean": m * scale + shift, "std": np.sqrt(v) * scale}
    m, v, _ = gaussian_process(xs, ys.astype(np.float64), at, seed=0, quick=quick)
    bands["Gaussian process"] = {"mean": m * scale + shift, "std": np.sqrt(v) * scale}
    shown = {key: {part: values.tolist() for part, values in band.items()} for key, band in bands.items()}
    true = np.sin(4 * grid) + 0.3 * grid
    return {"x": x.tolist(), "y": y.tolist(), "grid": grid.tolist(), "true": true.tolist(), "bands": shown}
