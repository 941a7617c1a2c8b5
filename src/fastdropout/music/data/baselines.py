"""What a model that knows nothing of time scores: the floor that any network must beat.

Both count every frame, the first of a piece too, and average over the frames of the split: so did
Boulanger-Lewandowski et al. (2012), whose first two table rows these are. (The networks' `nll_per_step`
leaves the first frame of a piece out, which has no input.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastdropout.music.data.rolls import KEYS, Roll


def marginals_nll(train: Sequence[Roll], test: Sequence[Roll]) -> float:
    """`nll_per_step` of independent notes, each with its own frequency in `train`.

        p_k = (count of key k + 1) / (frames + 2)

    The ones are Laplace's rule of succession: test pieces have notes that `train` never has.
    """
    counts, frames = _counts(train)
    return _nll((counts + 1) / (frames + 2), test)


def shared_nll(train: Sequence[Roll], test: Sequence[Roll]) -> float:
    """`nll_per_step` of independent notes that all have the same probability, the mean of `train`."""
    counts, frames = _counts(train)
    return _nll(np.full(KEYS, counts.sum() / (frames * KEYS)), test)


def _counts(pieces: Sequence[Roll]) -> tuple[npt.NDArray[np.float64], int]:
    counts = np.zeros(KEYS)
    for piece in pieces:
        counts += piece.sum(axis=0)
    return counts, sum(map(len, pieces))


def _nll(p: npt.NDArray[np.float64], pieces: Sequence[Roll]) -> float:
    counts, frames = _counts(pieces)
    return float(-(counts @ np.log(p) + (frames - counts) @ np.log1p(-p)) / frames)
