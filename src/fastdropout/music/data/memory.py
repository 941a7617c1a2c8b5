"""A memory of the piece: what followed the last time that the last frames were heard.

Music repeats itself, over spans that a network of some hundred units cannot remember. For n in `LEVELS`, look
for the last step s < t at which the n frames up to s are those up to t, and remember frame s + 1, together
with whether there is such a step. Frame s + 1 is t or earlier: the memory never knows more than was heard.

A memory is kept as *recall*, an int32 array `[steps, levels]` of the steps s + 1, -1 where nothing is found.
As inputs of a network, each level is a frame and a feature that says whether it was found:

    frame | frame of level 1, found | frame of level 2, found | ...
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from fastdropout.music.data.rolls import Roll

LEVELS = (1, 2, 4, 8, 16)
"""How many of the last frames must be the same; each the double of the one before."""

Recalled = npt.NDArray[np.int32]


def width(features: int) -> int:
    """Features of the memory of frames of `features`."""
    return len(LEVELS) * (features + 1)


def recall(piece: Roll) -> Recalled:
    """Where to look at every step of a piece, for every level, by numbering the different windows.

    Two windows of 2 n frames are the same if their halves are: numbers of windows are made from pairs of
    numbers, so that no hash can collide.

    >>> a, b, c = np.eye(3, dtype=np.uint8)
    >>> recall(np.array([a, b, c, a, b]))[:, :3].tolist()
    [[-1, -1, -1], [-1, -1, -1], [-1, -1, -1], [1, -1, -1], [2, 2, -1]]
    """
    steps = len(piece)
    out = np.full((steps, len(LEVELS)), -1, np.int32)
    packed = np.ascontiguousarray(np.packbits(piece, axis=1))
    # As one opaque element a row, which is sorted much faster than rows of bytes.
    number = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_inverse=True)[1].astype(np.int64)
    for level, frames in enumerate(LEVELS):
        # `number[i]` is of the window that ends at step i + frames - 1.
        if not len(number):
            break
        order = np.argsort(number, kind="stable")
        same = number[order[1:]] == number[order[:-1]]
        out[order[1:][same] + frames - 1, level] = order[:-1][same] + frames
        if len(number) <= frames:
            break
        pairs = number[:-frames] * (number.max() + 1) + number[frames:]
        number = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return out


def recalled(pool: Roll, where: Recalled) -> Roll:
    """The memory as features, `[*, levels (features + 1)]`.

    `pool` are the frames that `where`, `[*, levels]`, points into, the last of them zeros for what is not
    found.
    """
    found = (where >= 0)[..., None].astype(pool.dtype)
    both = np.concatenate([pool[where], found], axis=-1)
    return both.reshape(*where.shape[:-1], -1)


class Memory:
    """The memory of a piece that is made frame by frame: what `recall` finds, without looking back.

    >>> a, b, c = np.eye(3, dtype=np.uint8)
    >>> memory = Memory(3)
    >>> [memory.hear(frame).reshape(len(LEVELS), 4)[0].tolist() for frame in (a, b, a)]
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
    """

    def __init__(self, features: int) -> None:
        self._features = features
        self._last: deque[bytes] = deque(maxlen=max(LEVELS))
        self._frames: list[Roll] = []
        self._seen: dict[tuple[bytes, ...], int] = {}

    def hear(self, frame: Roll) -> Roll:
        """The memory after one more frame, `[levels (features + 1)]`."""
        self._frames.append(np.array(frame, np.uint8))
        self._last.append(np.packbits(self._frames[-1]).tobytes())
        recent, out = tuple(self._last), np.zeros((len(LEVELS), self._features + 1), np.uint8)
        for level, frames in enumerate(LEVELS):
            if len(recent) < frames:
                break
            key = recent[-frames:]
            if key in self._seen:
                out[level, :-1], out[level, -1] = self._frames[self._seen[key]], 1
            self._seen[key] = len(self._frames)
        return out.ravel()
