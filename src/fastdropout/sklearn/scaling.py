"""Columns to mean 0 and variance 1, with weights of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Scaling:
    """x -> (x - mean) / scale, for each column."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, x: Array, weight: Array) -> Scaling:
        """From the weighted rows of `x`; a column that does not change is only shifted."""
        x64 = x.astype(np.float64, copy=False)  # Sums over 100,000 rows of float32 lose digits.
        mean = np.average(x64, axis=0, weights=weight)
        var = np.average((x64 - mean) ** 2, axis=0, weights=weight)
        # What rounding leaves of a constant column is no scale.
        constant = var <= (10 * np.finfo(x.dtype).eps * np.abs(mean)) ** 2
        return cls(mean, np.where(constant, 1.0, np.sqrt(var)))

    def apply(self, x: Array) -> Array:
        """Standardised, in the dtype of `x`."""
        return ((x - self.mean) / self.scale).astype(x.dtype, copy=False)
