"""A memory of similar moments: the average of what followed earlier in the piece, weighted by similarity.

Where `memory.py` needs the last frames to be the same to the note, this compares. Of two frames it is the
share of their notes that they have in common, 1 for two silent ones (Jaccard's index), and of two moments
s < t that of their last frames, each earlier frame counting `decay` times as much:

    J(x, y) = |x and y| / |x or y|
    S(t, s) = (1 - decay) sum_i decay^i J(x[t - i], x[s - i])

Each pair of a decay and a sharpness is a block of the memory, a frame and a feature, as in `memory.py`:

    w(s)  = exp(sharpness (S(t, s) - 1)) / sum over s < t
    frame = sum_s w(s) x[s + 1],   how similar = sum_s w(s) S(t, s)

It is a softmax attention whose keys and queries are the last frames. Moments more than `REACH` frames ago
are forgotten, so that time and memory are linear in the length of a long piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdropout.music.data.rolls import Roll

# Chosen by a linear model of MuseData and Piano-midi.de: about two frames and about ten, three sharpnesses.
DECAYS = (0.5, 0.9)
SHARPNESSES = (8.0, 16.0, 32.0)
REACH = 4000
_ROWS = 256

Averaged = npt.NDArray[np.float16]
_Floats = npt.NDArray[np.float32]


def width(features: int) -> int:
    """Features of the memory of frames of `features`."""
    return len(DECAYS) * len(SHARPNESSES) * (features + 1)


def similar(piece: Roll) -> Averaged:
    """The memory at every step of a piece, `[steps, width]`.

    >>> a, b = np.eye(2, dtype=np.uint8)
    >>> similar(np.array([a, b, a]))[:, :3].astype(float).round(2).tolist()
    [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.02, 0.98, 0.49]]
    """
    steps, features = piece.shape
    x = piece.astype(np.float32)
    out = np.zeros((steps, len(DECAYS) * len(SHARPNESSES), features + 1), np.float16)
    # Similarities of the last step by s + 1; before the first frame there is nothing to be similar to.
    last = np.zeros((len(DECAYS), steps + 1), np.float32)
    for start in range(0, steps, _ROWS):
        stop, first = min(start + _ROWS, steps), max(0, start - REACH)
        alike = _jaccard(x[start:stop], x[first:stop])
        scores = np.full((len(DECAYS), stop - start, stop - first), -np.inf, np.float32)
        for t in range(start, stop):
            low = max(0, t - REACH)
            _advance(last[:, low : t + 1], alike[t - start, low - first : t - first])
            scores[:, t - start, low - first : t - first] = last[:, low + 1 : t + 1]
        following = x[first + 1 : stop + 1]
        out[start:stop] = _averages(scores[..., : len(following)], following)
    return out.reshape(steps, -1)


class Similar:
    """The same for a piece that is made frame by frame.

    >>> a, b = np.eye(2, dtype=np.uint8)
    >>> memory = Similar(2)
    >>> [memory.hear(frame)[:3].astype(float).round(2).tolist() for frame in (a, b, a)]
    [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.02, 0.98, 0.49]]
    """

    def __init__(self, features: int) -> None:
        self._frames = np.zeros((0, features), np.float32)
        self._last = np.zeros((len(DECAYS), 1), np.float32)

    def hear(self, frame: Roll) -> Averaged:
        """The memory after one more frame, `[width]`."""
        x = frame.astype(np.float32)[None]
        _advance(self._last, _jaccard(x, self._frames)[0])
        self._frames = np.concatenate([self._frames, x])
        out = _averages(self._last[:, None, 1:], self._frames[1:]).astype(np.float16).ravel()
        # One more moment to look back at, from which nothing is known to have followed yet.
        self._last = np.pad(self._last, ((0, 0), (0, 1)))[:, -REACH - 1 :]
        self._frames = self._frames[-REACH:]
        return out


def _jaccard(x: _Floats, y: _Floats) -> _Floats:
    """J of every frame of `x` and every one of `y`."""
    common = x @ y.T
    either = x.sum(1)[:, None] + y.sum(1) - common
    return np.where(either > 0, common / np.maximum(either, 1), np.float32(1))


def _advance(last: _Floats, alike: _Floats) -> None:
    """S(t, s) from S(t - 1, s - 1) and J, in place: `last[:, s + 1]` holds S of the moment s."""
    for row, decay in zip(last, DECAYS, strict=True):
        row[1:] = decay * row[:-1] + (1 - decay) * alike


def _averages(scores: _Floats, following: _Floats) -> _Floats:
    """Frames and similarities of all blocks, `[steps, blocks, features + 1]`.

    `scores`, `[decays, steps, moments]`, is -inf for moments that do not count.
    """
    blocks = []
    for score in scores:
        known = np.where(np.isneginf(score), 0, score)
        for sharpness in SHARPNESSES:
            weights = np.exp(sharpness * (score - 1))
            # The first frame has no moment before it, and 0 / 0 would not be a number. Where there is one,
            # the sum is at least exp(-32), which this leaves as it is.
            weights /= np.maximum(weights.sum(1, keepdims=True), np.float32(1e-20))
            how_similar = (weights * known).sum(1, keepdims=True)
            blocks.append(np.concatenate([weights @ following, how_similar], 1))
    return np.stack(blocks, 1)
