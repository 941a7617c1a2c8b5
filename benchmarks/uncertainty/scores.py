"""How good a prediction with its uncertainty is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

Array = npt.NDArray[Any]
Z90 = 1.6448536269514722  # Half the width of a central 90 % interval of a Gaussian, in standard deviations.


def gaussian_log_density(y: Array, mean: Array, var: Array) -> Array:
    """log N(y; mean, var), element-wise."""
    return -0.5 * ((y - mean) ** 2 / var + np.log(2 * math.pi * var))


def mixture_log_density(y: Array, means: Array, var: Array) -> Array:
    """log of the mean over the first dimension of N(y; means, var)."""
    return logsumexp(gaussian_log_density(y, means, var), axis=0) - math.log(len(means))


def regression_scores(y: Array, mean: Array, var: Array, log_density: Array) -> dict[str, float]:
    """RMSE, log-likelihood, coverage and width of 90 % intervals, and how well the spread sorts errors."""
    error, std = np.abs(y - mean), np.sqrt(var)
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "log_likelihood": float(log_density.mean()),
        "coverage": float(np.mean(error <= Z90 * std)),
        "width": float(np.mean(2 * Z90 * std)),
        "calibration": calibration_error(error / std),
        "sparsification": sparsification_error(error, std),
    }


def calibration_error(z: Array) -> float:
    """Mean gap between the level of central intervals, 5 % to 95 %, and the share of |z| inside of them."""
    from scipy.stats import norm

    levels = np.linspace(0.05, 0.95, 19)
    inside = [np.mean(z <= norm.ppf(0.5 + level / 2)) for level in levels]
    return float(np.mean(np.abs(inside - levels)))


def sparsification_curve(error: Array, spread: Array, shares: Array) -> Array:
    """RMSE of what is left when the shares of rows of the largest spread are removed."""
    ordered = np.sort(error**2) if spread is error else (error**2)[np.argsort(spread, kind="stable")]
    left = [max(1, round(len(error) * (1 - share))) for share in shares]
    return np.array([math.sqrt(ordered[:n].mean()) for n in left])


def sparsification_error(error: Array, spread: Array) -> float:
    """Area between the curve and that of an oracle which knows the errors, over the RMSE (AUSE)."""
    shares = np.linspace(0, 0.95, 20)
    gap = sparsification_curve(error, spread, shares) - sparsification_curve(error, error, shares)
    return float(gap.mean() / np.sqrt(np.mean(error**2)))


def class_scores(p: Array, y: Array) -> dict[str, float]:
    """Accuracy, log-likelihood, expected calibration error, Brier score, area under risk-coverage."""
    chosen = p[np.arange(len(y)), y]
    right = p.argmax(1) == y
    return {
        "accuracy": float(right.mean()),
        "log_likelihood": float(np.log(np.maximum(chosen, 1e-12)).mean()),
        "ece": expected_calibration_error(p.max(1), right),
        "brier": float(np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(1))),
        "risk_coverage": float(risk_coverage_curve(p.max(1), right)[1].mean()),
    }


def reliability(confidence: Array, right: Array, bins: int = 15) -> tuple[Array, Array, Array]:
    """Mean confidence, share that was right and number of rows, in bins of equal width that are not empty."""
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    used = count > 0
    sums = [np.bincount(index, weights=w, minlength=bins)[used] / count[used] for w in (confidence, right)]
    return sums[0], sums[1], count[used]


def expected_calibration_error(confidence: Array, right: Array) -> float:
    """Mean gap between confidence and accuracy over 15 bins (Guo et al., 2017)."""
    said, was, count = reliability(confidence, right)
    return float(np.average(np.abs(said - was), weights=count))


def risk_coverage_curve(confidence: Array, right: Array) -> tuple[Array, Array]:
    """Share of rows that are answered, the surest first, and the error among them."""
    wrong = 1.0 - right[np.argsort(-confidence, kind="stable")]
    answered = np.arange(1, len(wrong) + 1)
    return answered / len(wrong), np.cumsum(wrong) / answered


def entropy(p: Array) -> Array:
    """Of each row of probabilities, in nats."""
    return -(p * np.log(np.maximum(p, 1e-12))).sum(1)


def auroc(inside: Array, outside: Array) -> float:
    """How often a score is higher outside of the distribution than inside."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean, and the standard error of it."""
    n = len(values)
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
