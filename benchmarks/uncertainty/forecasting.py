"""Forecasts by a recurrent network with rolling origin, in the same steps as for tables."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.uncertainty import laplace
from benchmarks.uncertainty.regression import Spread, fit_noise
from benchmarks.uncertainty.scores import Array, regression_scores
from benchmarks.uncertainty.series import SETS
from fastdropout.moments import Moments
from fastdropout.sklearn.heads import GaussianHead

UNITS, BATCH, RATE, MASKS = 32, 64, 0.01, 50


@dataclass(frozen=True)
class Setting:
    """What is chosen on validation windows."""

    drop_input: float = 0.0
    drop_hidden: float = 0.0
    drop_output: float = 0.0
    weight_decay: float = 0.0

    def __str__(self) -> str:
        drops = f"{self.drop_input} / {self.drop_hidden} / {self.drop_output}"
        return f"drop {drops}, decay {self.weight_decay}"


DROPS = tuple(Setting(*d) for d in ((0.0, 0.02, 0.05), (0.0, 0.1, 0.2)))
DECAYS = tuple(Setting(weight_decay=w) for w in (0.0, 0.1))


@dataclass(frozen=True)
class Family:
    """Masks drawn or integrated out, and which loss."""

    settings: tuple[Setting, ...]
    method: str = "moments"
    expected: bool = False
    members: int = 1


FAMILIES = {
    "plain": Family(DECAYS, members=5),
    "mask": Family(DROPS, method="mask", expected=True),
    "mean": Family(DROPS, members=2),
    "expected": Family(DROPS, expected=True),
}


class Forecaster(nn.Module):
    """A recurrent layer over the window; the forecast from its last state, relative to the last value."""

    def __init__(self, cell: str, horizon: int, setting: Setting, method: str) -> None:
        super().__init__()
        drops = {"drop_input": setting.drop_input, "drop_hidden": setting.drop_hidden}
        self.rnn = {"rnn": fd.nn.RNN, "lstm": fd.nn.LSTM}[cell](1, UNITS, method=method, **drops)
        self.out = fd.nn.Linear(UNITS, horizon, drop=setting.drop_output, method=method)
        self.log_noise = nn.Parameter(torch.full((1, horizon), -1.0))

    def forward(self, x: Tensor) -> Moments:
        """Windows (rows, window) to forecasts (rows, horizon)."""
        states, _ = self.rnn(x.mT.unsqueeze(-1))
        return self.out(states[-1]) + x[:, -1:]


class Plain(nn.Module):
    """The same network of torch's modules, for `laplace-torch`."""

    def __init__(self, cell: str, model: Forecaster) -> None:
        super().__init__()
        self.rnn = {"rnn": nn.RNN, "lstm": nn.LSTM}[cell](1, UNITS)
        self.rnn.load_state_dict(model.rnn.state_dict())
        self.out = nn.Linear(UNITS, model.out.out_features)
        self.out.load_state_dict(model.out.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts relative to the last value."""
        states, _ = self.rnn(x.mT.unsqueeze(-1))
        return self.out(states[-1])


def train(
    cell: str,
    family: Family,
    setting: Setting,
    data: tuple[Array, Array],
    epochs: int,
    seed: int,
    valid: tuple[Array, Array] | None = None,
    stop_at: int | None = None,
) -> tuple[Forecaster, int]:
    """The network at its best epoch on `valid`, or after `stop_at` epochs of the same schedule."""
    torch.manual_seed(seed)
    x, y = (torch.from_numpy(a) for a in data)
    model = Forecaster(cell, y.shape[1], setting, family.method)
    head = GaussianHead(y.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=setting.weight_decay)
    total = epochs * math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        weights = {"log_noise": model.log_noise}
        return head.loss(weights, model(x).unsqueeze(0), y[None], family.expected).mean()

    best: tuple[float, int, Any] = (math.inf, 0, None)
    for epoch in range(1, (stop_at or epochs) + 1):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss(x[index], y[index]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        if valid is not None:
            model.eval()
            with torch.no_grad():
                score = float(loss(*(torch.from_numpy(a) for a in valid)))
            model.train()
            if score < best[0]:
                best = score, epoch, copy.deepcopy(model.state_dict())
    if valid is not None and best[2] is not None:
        model.load_state_dict(best[2])
    return model, best[1]


def spread_of(models: list[Forecaster], x: Array) -> Spread:
    """What the networks say: components, each with its variance and relative noise, (t, rows * horizon)."""
    rows = torch.from_numpy(x)
    means, variances, noises = [], [], []
    for model in models:
        noise = model.log_noise.detach().exp().expand(len(x), -1)
        if model.rnn.method == "mask":
            torch.manual_seed(0)
            with torch.no_grad():
                draws = [model(rows).mean for _ in range(MASKS)]
            means += draws
            variances += [torch.zeros_like(d) for d in draws]
            noises += [noise] * MASKS
            continue
        parts = []
        for part in rows.split(256):
            with fd.integrate(train_variance=False) as trace:
                out = model(part)
                parts.append((out.mean.detach(), trace.var(out).detach()))
        means.append(torch.cat([m for m, _ in parts]))
        variances.append(torch.cat([v for _, v in parts]))
        noises.append(noise)
    flat = (torch.stack(part).flatten(1).double().numpy() for part in (means, variances, noises))
    return Spread(*flat)


class Task:
    """One series, one cell."""

    def __init__(self, name: str, cell: str, quick: bool = False) -> None:
        self.series, self.cell = SETS[name](), cell
        self.epochs = 2 if quick else self.series.epochs
        self.cuts = self.series.cuts[:1] if quick else self.series.cuts

    def parts(self, cut: float) -> tuple[dict[str, tuple[Array, Array]], float]:
        """Standardised windows to fit, to validate, both, and to test; and the scale of a value."""
        s, n = self.series, len(self.series.values)
        end, middle = round(cut * n), round(0.8 * cut * n)
        mean, std = s.values[:end].mean(), float(s.values[:end].std())
        ranges = {
            "fit": (0, middle),
            "valid": (middle, end),
            "train": (0, end),
            "test": (end, round((cut + 0.1) * n)),
        }
        # Targets of the test begin at its first value, and may reach past its end where the series goes on.
        first, last = ranges["test"]
        ranges["test"] = first, min(n, max(last, first + s.horizon + 2))
        scaled = {
            key: tuple(((a - mean) / std).astype(np.float32) for a in s.windows(*r))
            for key, r in ranges.items()
        }
        return scaled, std  # type: ignore[return-value]

    def run(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Figures of the methods that a family gives, for each cut."""
        results: dict[str, list[dict[str, Any]]] = {}
        for number, cut in enumerate(self.cuts):
            data, std = self.parts(cut)
            for method, found in self._one(FAMILIES[name], name, data, std, number).items():
                results.setdefault(method, []).append(found)
        return results

    def _one(
        self, family: Family, name: str, data: dict[str, Any], std: float, seed: int
    ) -> dict[str, dict[str, Any]]:
        held = data["valid"][1].ravel().astype(np.float64)
        tried = []
        for setting in family.settings:
            model, epochs = train(
                self.cell, family, setting, data["fit"], self.epochs, 1000 + seed, valid=data["valid"]
            )
            value, scale = fit_noise(spread_of([model], data["valid"][0]), held)
            tried.append((value, setting, epochs, scale, model))
        _, setting, epochs, scale, tuned = max(tried, key=lambda t: t[0])
        models = [
            train(self.cell, family, setting, data["train"], self.epochs, seed + 100 * i, stop_at=epochs)[0]
            for i in range(family.members)
        ]
        spread = spread_of(models, data["test"][0])
        methods = {"plain": ("plain", "deep ensemble 5"), "mask": ("MC dropout 10", "MC dropout 50")}
        methods["mean"] = "fast dropout", "fast dropout ensemble 2"
        if name == "expected":
            found = {"fast dropout, expected loss": (spread, scale)}
        else:
            first, both = methods[name]
            found = {first: (spread.part(slice(10 if name == "mask" else 1)), scale), both: (spread, scale)}
        if name == "plain" and laplace.AVAILABLE:
            valid = self._laplace(tuned, data["fit"], data["valid"][0], scale)
            found["Laplace"] = (
                self._laplace(models[0], data["train"], data["test"][0], scale),
                fit_noise(valid, held)[1],
            )
        more = {"setting": str(setting), "epochs": epochs}
        return {key: self._score(*value, data["test"][1], std) | more for key, value in found.items()}

    def _laplace(self, model: Forecaster, data: tuple[Array, Array], x: Array, scale: float) -> Spread:
        noise = model.log_noise.detach().exp()
        mean, var = laplace.last_layer(Plain(self.cell, model), *data, x, float(noise.mean()) * scale)
        relative = noise.expand(len(x), -1).double().numpy()
        return Spread((mean + x[:, -1:])[None].reshape(1, -1), var.reshape(1, -1), relative.reshape(1, -1))

    def _score(self, spread: Spread, scale: float, y: Array, std: float) -> dict[str, Any]:
        target = y.ravel().astype(np.float64)
        mean, var = spread.moments(scale)
        density = spread.log_density(target, scale) - math.log(std)
        return dict(regression_scores(target * std, mean * std, var * std**2, density))
