"""What one would take for a table without thinking of dropout, and the estimator with its defaults."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.uncertainty.scores import Z90, gaussian_log_density
from fastdropout.sklearn import FastDropoutRegressor

Array = npt.NDArray[Any]
GP_ROWS = 500  # A Gaussian process costs the cube of the rows.


def boosting(x: Array, y: Array, x_test: Array, seed: int, quick: bool) -> tuple[Array, Array, str]:
    """Mean by squared error, spread by the quantiles 5 % and 95 %; setting chosen on 20 % of the rows."""
    cut = round(0.8 * len(x))
    grid = [{"learning_rate": a, "max_leaf_nodes": b} for a, b in ((0.05, 5), (0.1, 5), (0.1, 15))]

    def fitted(setting: dict[str, Any], rows: slice, at: Array) -> tuple[Array, Array]:
        def one(**kwargs: Any) -> Array:
            model = HistGradientBoostingRegressor(
                max_iter=20 if quick else 100, random_state=seed, **setting, **kwargs
            )
            return model.fit(x[rows], y[rows]).predict(at)

        low, high = (one(loss="quantile", quantile=q) for q in (0.05, 0.95))
        # Quantiles that cross or touch would be a certainty that nobody has.
        std = np.maximum((high - low) / (2 * Z90), 0.02)
        return one(), std**2

    scores = []
    for setting in grid:
        mean, var = fitted(setting, slice(cut), x[cut:])
        scores.append(gaussian_log_density(y[cut:], mean, var).mean())
    best = grid[int(np.argmax(scores))]
    return *fitted(best, slice(None), x_test), str(best)


def gaussian_process(x: Array, y: Array, x_test: Array, seed: int, quick: bool) -> tuple[Array, Array, str]:
    """Matern 5/2 with a length for each input and white noise, by marginal likelihood; 500 rows at most."""
    rows = np.random.RandomState(seed).permutation(len(x))[: 100 if quick else GP_ROWS]
    kernel = ConstantKernel(1.0) * Matern(np.full(x.shape[1], 3.0), (0.05, 1e3), nu=2.5) + WhiteKernel(
        0.1, (1e-4, 2)
    )

    def optimizer(objective: Callable[..., Any], initial: Array, bounds: Array) -> tuple[Array, float]:
        from scipy.optimize import minimize

        options = {"maxiter": 5 if quick else 30}
        found = minimize(objective, initial, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        return found.x, found.fun

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, optimizer=optimizer, random_state=seed)
        model.fit(x[rows].astype(np.float64), y[rows])
    mean, std = model.predict(x_test.astype(np.float64), return_std=True)
    return mean, std**2, f"{len(rows)} rows"


def estimator(x: Array, y: Array, x_test: Array, seed: int, quick: bool) -> tuple[Array, Array, str]:
    """`FastDropoutRegressor` with its defaults: nothing tuned."""
    model = FastDropoutRegressor(random_state=seed, **({"max_iter": 5} if quick else {})).fit(x, y)
    mean, std = model.predict(x_test, return_std=True)
    return mean.astype(np.float64), std.astype(np.float64) ** 2, "defaults"


METHODS: dict[str, Callable[..., tuple[Array, Array, str]]] = {
    "boosting": boosting,
    "gaussian-process": gaussian_process,
    "estimator": estimator,
}
LABELS = {
    "boosting": "gradient boosting, quantiles",
    "gaussian-process": "Gaussian process",
    "estimator": "FastDropoutRegressor(), defaults",
}
