"""What a model that knows nothing of time scores: the floor that any network must beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastdropout.music.data.rolls import Piece


def frequencies_nll(train: Sequence[Piece], test: Sequence[Piece], *, score_first: bool = True) -> float:
    """`nll_per_step` of independent features, each by how often, or where, `train` has it.

    Zeros and ones: p_k = (count of feature k + 1) / (frames + 2). The ones are Laplace's rule of succession:
    test pieces have notes that `train` never has. Real values: a Gaussian with the mean and variance of
    feature k in `train`; a feature that is constant there has the variance 1, as in the networks.

    The average is over the frames of all pieces. Boulanger-Lewandowski et al. (2012), whose "note 1-gram"
    this is, count the first frame of a piece; networks leave it out, and so does `score_first=False`.
    """
    scored = list(test) if score_first else [piece[1:] for piece in test]
    frames = sum(map(len, scored))
    if not frames:
        return float("nan")
    if train[0].dtype == np.float32:
        return _gaussian_nll(np.concatenate(train), np.concatenate(scored)) / frames
    counts, known = _counts(train), sum(map(len, train))
    p = (counts + 1) / (known + 2)
    sounded = _counts(scored)
    return float(-(sounded @ np.log(p) + (frames - sounded) @ np.log1p(-p)) / frames)


def _counts(pieces: Sequence[Piece]) -> npt.NDArray[np.float64]:
    return np.sum([piece.sum(axis=0, dtype=np.int64) for piece in pieces], axis=0).astype(np.float64)


def _gaussian_nll(known: Piece, frames: Piece) -> float:
    """Nats of all frames together."""
    mean, var = known.mean(axis=0, dtype=np.float64), known.var(axis=0, dtype=np.float64)
    var = np.where(var > 0, var, 1.0)
    return float((0.5 * (np.log(2 * np.pi * var) + (frames - mean) ** 2 / var)).sum())
