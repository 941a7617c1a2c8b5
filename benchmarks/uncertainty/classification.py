"""Classes of small pictures: how good, how calibrated, and whether foreign pictures are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.uncertainty import laplace, stacks
from benchmarks.uncertainty.images import FOREIGN, SETS, WORSE, foreign, worse
from benchmarks.uncertainty.scores import (
    Array,
    auroc,
    class_scores,
    entropy,
    reliability,
    risk_coverage_curve,
)
from benchmarks.uncertainty.stacks import Budget, Data, Family, Setting
from fastdropout.sklearn.heads import CategoricalHead
from fastdropout.sklearn.network import Weights
from fastdropout.sklearn.spread import predicted_covariance

DROPS = tuple(Setting(a, b) for a, b in ((0.0, 0.05), (0.0, 0.2), (0.1, 0.3)))
DECAYS = tuple(Setting(weight_decay=w) for w in (0.0, 0.1, 1.0))
FAMILIES = {
    "plain": Family("plain", DECAYS, members=5),
    "mask": Family("mask", DROPS, method="mask", expected=True),
    "mean": Family("mean", DROPS, members=2),
    "expected": Family("expected", DROPS, expected=True),
}
MASKS = 50
Answer = Callable[[Array], dict[str, Array]]


class Splits:
    """Standardised pictures of all splits of a set: the same shift and scale for all pixels."""

    def __init__(self, name: str, quick: bool = False) -> None:
        self.images = SETS[name]()
        self.number = 2 if quick else self.images.splits
        self.quick = quick
        parts: dict[str, list[Array]] = {}
        for seed in range(self.number):
            train, test = self.images.split(seed)
            cut = round(0.8 * len(train))
            for key, index in (
                ("fit", train[:cut]),
                ("valid", train[cut:]),
                ("train", train),
                ("test", test),
            ):
                parts.setdefault(f"{key} x", []).append(self.scaled(self.images.x[index]))
                parts.setdefault(f"{key} y", []).append(self.images.y[index])
        self.fit, self.valid, self.train, self.test = (
            Data(np.stack(parts[f"{key} x"]), np.stack(parts[f"{key} y"]))
            for key in ("fit", "valid", "train", "test")
        )

    def scaled(self, x: Array) -> Array:
        """Rows of pixels, of mean about 0 and variance about 1."""
        flat = x.reshape(len(x), -1)
        mean, std = self.images.x.mean(), self.images.x.std()
        return ((flat - mean) / std).astype(np.float32)

    def budget(self) -> Budget:
        """Two hidden layers of 100."""
        epochs = 2 if self.quick else self.images.epochs
        return Budget((100, 100), epochs, 128, learning_rate=0.003)

    def score(self, split: int, answers: Answer) -> dict[str, dict[str, Any]]:
        """Figures of each method that `answers` gives probabilities for."""
        _, index = self.images.split(split)
        pictures, y = self.images.x[index], self.test.y[split]
        results: dict[str, dict[str, Any]] = {}
        inside = answers(self.scaled(pictures))
        for method, p in inside.items():
            results[method] = class_scores(p, y)
        for kind in WORSE:
            for method, p in answers(self.scaled(worse(pictures, kind, split))).items():
                results[method][kind] = class_scores(p, y)
                if kind == "rotated":
                    results[method] |= _curves(p, y)
        for kind in FOREIGN:
            for method, p in answers(self.scaled(foreign(kind, self.images.side))).items():
                results[method][f"auroc {kind}"] = auroc(entropy(inside[method]), entropy(p))
        return results


def _curves(p: Array, y: Array) -> dict[str, Any]:
    """What the pictures show."""
    confidence, right = p.max(1), p.argmax(1) == y
    said, was, count = reliability(confidence, right)
    risk = np.interp(np.linspace(0.1, 1, 19), *risk_coverage_curve(confidence, right))
    return {
        "rotated reliability": [said.tolist(), was.tolist(), count.tolist()],
        "rotated risk": risk.tolist(),
    }


def family_probabilities(
    family: Family, setting: Setting, budget: Budget, weights: Weights, x: Array
) -> Array:
    """Probabilities of each member or mask, (t, rows, classes)."""
    classes = weights[f"{2 * len(budget.units)}.bias"].shape[-1]
    network = stacks.architecture(family, setting, budget, x.shape[-1], classes).build()
    rows = torch.from_numpy(x)
    if family.method == "mask":
        torch.manual_seed(0)
        parts = [stacks.draws(network, weights, r, MASKS).mean.softmax(-1) for r in rows.split(256)]
        return torch.cat(parts, 1).double().numpy()
    mean, covariance = predicted_covariance(network, weights, rows)
    head = CategoricalHead(classes)
    parts = [head.probabilities(m, c) for m, c in zip(mean, covariance, strict=True)]
    return torch.stack(parts).double().numpy()


def run_family(name: str, splits: Splits) -> dict[str, list[dict[str, Any]]]:
    """Figures of the methods that a family of networks gives, for each split."""
    family, budget = FAMILIES[name], splits.budget()
    head = CategoricalHead(10)

    def score(setting: Setting, own: Weights, split: int) -> tuple[float, None]:
        p = family_probabilities(family, setting, budget, own, splits.valid.x[split]).mean(0)
        return class_scores(p, splits.valid.y[split])["log_likelihood"], None

    chosen = stacks.tune(family, budget, head, splits.fit, splits.valid, score)
    trained = stacks.train_chosen(family, budget, head, splits.train, chosen)
    results: dict[str, list[dict[str, Any]]] = {}
    for split, (setting, epochs, _) in enumerate(chosen):
        _, weights = trained[split]
        answers = _answers(name, family, setting, budget, weights, splits, split)
        for method, found in splits.score(split, answers).items():
            results.setdefault(method, []).append(found | {"setting": str(setting), "epochs": epochs})
    return results


def _answers(
    name: str, family: Family, setting: Setting, budget: Budget, weights: Weights, splits: Splits, split: int
) -> Answer:
    """The methods that the networks of a family serve."""
    approximate = None
    if name == "plain" and laplace.AVAILABLE:
        first, data = stacks.one(weights, 0), splits.train
        approximate = laplace.class_laplace(first, budget.activation, data.x[split], data.y[split])

    def answers(x: Array) -> dict[str, Array]:
        p = family_probabilities(family, setting, budget, weights, x)
        if name == "plain":
            found = {"plain": p[0], "deep ensemble 5": p.mean(0)}
            return found | ({"Laplace": approximate(x)} if approximate is not None else {})
        if name == "mask":
            return {"MC dropout 10": p[:10].mean(0), "MC dropout 50": p.mean(0)}
        if name == "mean":
            return {"fast dropout": p[0], "fast dropout ensemble 2": p.mean(0)}
        return {"fast dropout, expected loss": p.mean(0)}

    return answers
