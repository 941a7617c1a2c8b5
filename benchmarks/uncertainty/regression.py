"""Regression on tables: network methods that share steps and budget, and what a practitioner would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from benchmarks.uncertainty import laplace, stacks
from benchmarks.uncertainty.scores import (
    Array,
    mixture_log_density,
    regression_scores,
    sparsification_curve,
)
from benchmarks.uncertainty.stacks import DECAYS, DROPS, Budget, Data, Family, Setting
from benchmarks.uncertainty.tables import Table
from fastdropout.sklearn.heads import GaussianHead
from fastdropout.sklearn.network import Weights

SHARES = np.linspace(0, 0.95, 20)
FAMILIES = {
    "plain": Family("plain", DECAYS, members=5),
    "mask": Family("mask", DROPS, method="mask", expected=True),
    "mean": Family("mean", DROPS, members=2),
    "expected": Family("expected", DROPS, expected=True),
    "heteroscedastic": Family("heteroscedastic", DROPS),
}
MASKS = 50


@dataclass(frozen=True)
class Spread:
    """A prediction before the noise is added: components of a mixture, (t, rows), each with its variance."""

    means: Array
    vars: Array
    noise: Array  # Relative noise of each component and row; ones where it is the same everywhere.

    def moments(self, scale: float) -> tuple[Array, Array]:
        """Mean and total variance of the mixture."""
        return self.means.mean(0), (self.vars + scale * self.noise).mean(0) + self.means.var(0)

    def log_density(self, y: Array, scale: float) -> Array:
        """Of the mixture of Gaussians."""
        return mixture_log_density(y, self.means, self.vars + scale * self.noise)

    def part(self, index: slice) -> Spread:
        """Some of the components."""
        return Spread(self.means[index], self.vars[index], self.noise[index])


def fit_noise(spread: Spread, y: Array) -> tuple[float, float]:
    """The log-likelihood of the rows under the noise that suits them best, and that noise."""
    found = minimize_scalar(
        lambda a: -spread.log_density(y, float(np.exp(a))).mean(), bounds=(-10, 3), method="bounded"
    )
    return -float(found.fun), float(np.exp(found.x))


def spread_of(
    family: Family, setting: Setting, budget: Budget, head: GaussianHead, weights: Weights, x: Array
) -> Spread:
    """What the networks of a stack say of the rows x, (rows, inputs)."""
    network = stacks.architecture(family, setting, budget, x.shape[-1], head.outputs).build()
    rows = torch.from_numpy(x)
    if family.method == "mask":
        torch.manual_seed(0)
        out = stacks.draws(network, weights, rows, MASKS)
        means, variances = out.mean, out.var
        noise = torch.ones_like(means)
    else:
        out = stacks.integrated(network, weights, rows)
        f, a = head.split(weights, out)
        means, variances = f.mean, f.var
        noise = head.noise(a) if head.heteroscedastic else torch.ones_like(means)
    return Spread(*(t[..., 0].double().numpy() for t in (means, variances, noise)))


class Splits:
    """Standardised rows of all splits of a table."""

    def __init__(self, table: Table, quick: bool = False) -> None:
        self.table = table
        self.number = min(table.splits, 3) if quick else table.splits
        parts: dict[str, list[Array]] = {}
        self.scales: list[float] = []
        for seed in range(self.number):
            train, test = table.split(seed)
            cut = round(0.8 * len(train))
            for name, own, other in (
                ("fit", train[:cut], train[cut:]),
                ("all", train, test),
            ):
                x_mean, x_std = table.x[own].mean(0), table.x[own].std(0)
                x_std = np.where(x_std > 0, x_std, 1)
                y_mean, y_std = table.y[own].mean(), table.y[own].std()
                for part, index in ((name, own), (f"{name}-other", other)):
                    parts.setdefault(f"{part} x", []).append((table.x[index] - x_mean) / x_std)
                    parts.setdefault(f"{part} y", []).append(((table.y[index] - y_mean) / y_std)[:, None])
            self.scales.append(float(y_std))
        both = {key: np.stack(values).astype(np.float32) for key, values in parts.items()}
        self.fit = Data(both["fit x"], both["fit y"])
        self.valid = Data(both["fit-other x"], both["fit-other y"])
        self.train = Data(both["all x"], both["all y"])
        self.test = Data(both["all-other x"], both["all-other y"])

    def budget(self, quick: bool = False) -> Budget:
        """Epochs and batches by the size of the table."""
        n = self.fit.x.shape[1]
        epochs = 80 if n < 2000 else 40
        return Budget((self.table.units,), 5 if quick else epochs, min(256, max(32, n // 12)))

    def score(self, split: int, spread: Spread, scale: float) -> dict[str, Any]:
        """Figures of a prediction of the test rows, in the units of the targets."""
        y = self.test.y[split, :, 0].astype(np.float64)
        mean, var = spread.moments(scale)
        s = self.scales[split]
        density = spread.log_density(y, scale) - np.log(s)
        result: dict[str, Any] = dict(regression_scores(y * s, mean * s, var * s**2, density))
        result["model_share"] = float(1 - (scale * spread.noise).mean() / var.mean())
        result["curve"] = sparsification_curve(np.abs(y - mean) * s, np.sqrt(var), SHARES).tolist()
        return result


def run_family(name: str, splits: Splits, quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Figures of the methods that a family of networks gives, for each split."""
    family, budget = FAMILIES[name], splits.budget(quick)
    head = GaussianHead(1, heteroscedastic=name == "heteroscedastic")

    def score(setting: Setting, own: Weights, split: int) -> tuple[float, Any]:
        spread = spread_of(family, setting, budget, head, own, splits.valid.x[split])
        value, scale = fit_noise(spread, splits.valid.y[split, :, 0].astype(np.float64))
        return value, (scale, {key: w.clone() for key, w in own.items()})

    chosen = stacks.tune(family, budget, head, splits.fit, splits.valid, score)
    trained = stacks.train_chosen(family, budget, head, splits.train, chosen)
    results: dict[str, list[dict[str, Any]]] = {}
    for split, (setting, epochs, (scale, tuned)) in enumerate(chosen):
        _, weights = trained[split]
        spread = spread_of(family, setting, budget, head, weights, splits.test.x[split])
        for method, part in _methods(name, spread).items():
            found = splits.score(split, part, scale)
            results.setdefault(method, []).append(found | {"setting": str(setting), "epochs": epochs})
        if name == "plain" and laplace.AVAILABLE:
            found = splits.score(split, *_laplace(splits, split, tuned, weights, budget, scale))
            results.setdefault("Laplace", []).append(found | {"setting": str(setting), "epochs": epochs})
    return results


def _methods(name: str, spread: Spread) -> dict[str, Spread]:
    """The methods that the networks of a family serve, by the components that they use."""
    if name == "plain":
        return {"plain": spread.part(slice(1)), "deep ensemble 5": spread}
    if name == "mask":
        return {"MC dropout 10": spread.part(slice(10)), "MC dropout 50": spread}
    if name == "mean":
        return {"fast dropout": spread.part(slice(1)), "fast dropout ensemble 2": spread}
    return {{"expected": "fast dropout, expected loss"}.get(name, "fast dropout, heteroscedastic"): spread}


def _laplace(
    splits: Splits, split: int, tuned: Weights, weights: Weights, budget: Budget, scale: float
) -> tuple[Spread, float]:
    """Laplace approximation of the first plain network, with noise that suits the validation rows.

    `tuned` are the weights that were trained without those rows.
    """

    def spread(own: Weights, train: Data, x: Array) -> Spread:
        one = stacks.one(own, 0)
        mean, var = laplace.regression_laplace(
            one, budget.activation, train.x[split], train.y[split], x, scale
        )
        return Spread(mean[None], var[None], np.ones_like(mean[None]))

    held = spread(tuned, splits.fit, splits.valid.x[split])
    _, own_scale = fit_noise(held, splits.valid.y[split, :, 0].astype(np.float64))
    return spread(weights, splits.train, splits.test.x[split]), own_scale


def run_practitioner(name: str, splits: Splits, quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Gradient boosting with quantiles, a Gaussian process, and the estimator as it comes."""
    from benchmarks.uncertainty import practitioners

    predict: Callable[..., tuple[Array, Array, str]] = practitioners.METHODS[name]
    results = []
    for split in range(splits.number):
        flat = [part[split] for part in (splits.train.x, splits.train.y[..., 0], splits.test.x)]
        mean, var, setting = predict(*flat, seed=split, quick=quick)
        spread = Spread(mean[None], var[None], np.zeros_like(mean[None]))
        results.append(splits.score(split, spread, 1.0) | {"setting": setting})
    return {practitioners.LABELS[name]: results}
