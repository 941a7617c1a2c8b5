"""Pieces to batches, in the protocol of the paper.

A network reads frame t and predicts frame t + 1: inputs are `x[:-1]`, targets `x[1:]`. What is scored:

- **chunks** (training): a piece is cut into chunks of 100 frames; a shorter rest gets zeros in front, as in
  the paper, or with `pad="end"` behind it, where no frame can notice them. Each chunk stands alone, so its
  first frame is an input only: of 100 frames 99 are scored, and a rest of one frame is lost.
- **chunks with `carry`** (truncated back-propagation): a chunk begins with the frame the last one ended
  with, and its row goes on from the state of the same row in the batch before, except where `fresh`.
  Every frame but a piece's first is scored once. The zeros stand before the first chunk of a piece, or
  behind the last, never between two.
- **whole pieces** (evaluation): padded at the end, which no earlier frame can notice, so that the result
  is that of one piece after the other. Every frame but the first is scored.

With `score_first` a frame of zeros is put before each piece, so that its first frame is scored too. No
frame is ever scored twice, and padding never. `nll_per_step` of a split is the sum over all scored
frames divided by their number, `batch.mask.sum()` summed over the batches, not a mean of means.

With `memory` the inputs also hold the memory of the piece (see `memory.py`), and with `similar` that of
similar moments (see `similar.py`). Both look back over the whole piece, whatever chunk a frame is in. A frame
of zeros before a piece is not heard.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fastdropout.errors import DataError
from fastdropout.music.data import memory as exact
from fastdropout.music.data import similar as soft
from fastdropout.music.data.rolls import Piece

if TYPE_CHECKING:  # torch takes seconds to import, and cutting needs none of it.
    import torch


@dataclass(frozen=True)
class Batch:
    """Tensors for one call of a network."""

    inputs: torch.Tensor
    """float32 `(steps, batch, features)`, with a memory `(steps, batch, features + memory)`."""
    targets: torch.Tensor
    """float32 `(steps, batch, features)`: the frame after each input."""
    mask: torch.Tensor
    """bool `(steps, batch)`: True where the target is a real frame that is to be scored."""
    fresh: torch.Tensor
    """bool `(batch,)`: True where the state starts anew, False where it goes on from the batch before."""
    pieces: npt.NDArray[np.int64]
    """The number of the piece in each row, -1 for a row that is all padding."""


@dataclass(frozen=True)
class Remembered:
    """The memories of all steps of chunks."""

    where: exact.Recalled
    """`[chunks, steps, levels]`: places in `pool`, -1 for nothing."""
    pool: Piece
    """`[frames + 1, features]`: the frames of all pieces, and one of zeros."""


@dataclass(frozen=True)
class Chunks:
    """Pieces that were cut once and are shuffled by number afterwards."""

    frames: Piece
    """`[chunks, steps + 1, features]`."""
    scored: npt.NDArray[np.bool_]
    """`[chunks, steps]`: True where frame `step + 1` is to be predicted."""
    pieces: npt.NDArray[np.int64]
    """`[chunks]`: which piece a chunk is of; chunks of a piece follow one another."""
    carry: bool
    memory: Remembered | None = None
    similar: soft.Averaged | None = None
    """`[chunks, steps, features of this memory]`."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def steps(self) -> int:
        """Predictions a chunk."""
        return self.scored.shape[1]


def chunks(
    pieces: Sequence[Piece],
    length: int = 100,
    *,
    carry: bool = False,
    score_first: bool = False,
    pad: Literal["front", "end"] = "front",
    memory: bool = False,
    similar: bool = False,
) -> Chunks:
    """Cut pieces into chunks of `length` frames; with `carry` of `length` predictions, one frame more."""
    if length < 2:
        raise DataError(f"length must be at least 2 frames, got {length}")
    window = length + 1 if carry else length
    first = -1 if score_first else 0  # Frame -1 is the one of zeros.
    cut: list[tuple[int, int, int]] = []
    for number, piece in enumerate(pieces):
        if carry and pad == "front":
            ends = range(len(piece), first + 1, -length)
            cut += [(number, max(first, end - window), end) for end in reversed(ends)]
        else:
            starts = range(first, len(piece) - 1, length)
            cut += [(number, start, min(start + window, len(piece))) for start in starts]
    features, kind = _features(pieces)
    frames = np.zeros((len(cut), window, features), kind)
    scored = np.zeros((len(cut), window - 1), np.bool_)
    found = [exact.recall(piece) for piece in pieces] if memory else []
    averaged = [soft.similar(piece) for piece in pieces] if similar else []
    firsts = np.cumsum([0, *map(len, pieces)])
    where = np.full((len(cut), window - 1, len(exact.LEVELS)), -1, np.int32) if memory else None
    more = np.zeros((len(cut), window - 1, soft.width(features)), np.float16) if similar else None
    for row, (number, start, end) in enumerate(cut):
        real = pieces[number][max(start, 0) : end]
        at = window - (end - start) if pad == "front" else 0
        silence = max(-start, 0)  # The frame of zeros before a piece whose first frame is scored.
        frames[row, at + silence : at + silence + len(real)] = real
        scored[row, at : at + end - start - 1] = True
        heard, place = slice(max(start, 0), end - 1), slice(at + silence, at + end - start - 1)
        if where is not None:
            own = found[number][heard]
            where[row, place] = np.where(own < 0, -1, own + firsts[number])
        if more is not None:
            more[row, place] = averaged[number][heard]
    numbers = np.array([number for number, _, _ in cut], np.int64)
    kept = None if where is None else Remembered(where, _pool(pieces))
    return Chunks(frames, scored, numbers, carry, kept, more)


def batches(cut: Chunks, batch_size: int, generator: np.random.Generator | None = None) -> Iterator[Batch]:
    """One epoch over the chunks, shuffled by `generator`, in order if it is None.

    With `carry` whole pieces are shuffled and dealt to `batch_size` rows of nearly equal length, each of
    which is read from left to right; a row that ends earlier is filled with padding.
    """
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1, got {batch_size}")
    if cut.carry:
        table, fresh = _deal(cut.pieces, batch_size, generator)
        for column in range(table.shape[1]):
            yield _batch(cut, table[:, column], fresh[:, column])
    else:
        order = _permutation(len(cut), generator)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield _batch(cut, rows, np.ones(len(rows), np.bool_))


def count_batches(cut: Chunks, batch_size: int) -> int:
    """How many batches an epoch has; shuffling does not change it."""
    if cut.carry:
        return _deal(cut.pieces, batch_size, None)[0].shape[1]
    return -(-len(cut) // batch_size)


def whole_pieces(
    pieces: Sequence[Piece],
    batch_size: int = 32,
    *,
    score_first: bool = False,
    max_frames: int = 20_000,
    memory: bool = False,
    similar: bool = False,
) -> Iterator[Batch]:
    """Whole pieces, the longest first, padded at the end to the longest of their batch.

    A batch has at most `max_frames` frames with its padding (a longer piece comes alone), so that memory
    does not depend on how long pieces are. A piece of one frame has nothing to score and occurs only
    with `score_first`.
    """
    lead = 1 if score_first else 0
    order = [n for n in range(len(pieces)) if len(pieces[n]) + lead >= 2]
    order.sort(key=lambda number: -len(pieces[number]))
    while order:
        window = len(pieces[order[0]]) + lead
        size = max(1, min(batch_size, max_frames // window))
        rows, order = order[:size], order[size:]
        features, kind = _features(pieces)
        frames = np.zeros((window, len(rows), features), kind)
        scored = np.zeros((window - 1, len(rows)), np.bool_)
        inputs = memory_width(features, memory, similar)
        more = np.zeros((window - 1, len(rows), inputs), np.float32) if inputs else None
        for row, number in enumerate(rows):
            end = lead + len(pieces[number])
            frames[lead:end, row] = pieces[number]
            scored[: end - 1, row] = True
            if more is not None:
                more[lead : end - 1, row] = _remembered(pieces[number], memory, similar)[: end - 1 - lead]
        yield _tensors(frames, scored, np.ones(len(rows), np.bool_), np.array(rows, np.int64), more)


def memory_width(features: int, memory: bool, similar: bool) -> int:
    """Inputs beside a frame of `features`."""
    return memory * exact.width(features) + similar * soft.width(features)


def transposed(batch: Batch, shifts: Sequence[int]) -> Batch:
    """Each row moved by a number of features; what leaves the range is lost.

    A memory moves along: what it holds are frames of the same piece.
    """
    features = batch.targets.shape[-1]
    import torch

    source = torch.arange(features)[None, :] - torch.tensor(shifts)[:, None]
    inside = (source >= 0) & (source < features)
    source = source.clamp(0, features - 1)
    targets = batch.targets.gather(2, source.expand_as(batch.targets)) * inside
    blocks = (batch.inputs.shape[-1] - features) // (features + 1)
    found = torch.full_like(source[:, :1], features), torch.ones_like(inside[:, :1])
    index, kept = [source], [inside]
    for block in range(blocks):  # A frame and its `found`, which stays.
        index.append(torch.cat([source, found[0]], 1) + features + block * (features + 1))
        kept.append(torch.cat([inside, found[1]], 1))
    everywhere = torch.cat(index, 1).expand_as(batch.inputs)
    inputs = batch.inputs.gather(2, everywhere) * torch.cat(kept, 1)
    return Batch(inputs, targets, batch.mask, batch.fresh, batch.pieces)


def _remembered(piece: Piece, memory: bool, similar: bool) -> npt.NDArray[np.float32]:
    """What is remembered at each step of a piece, `[steps, memory_width]`."""
    parts: list[npt.NDArray[Any]] = [exact.recalled(_pool([piece]), exact.recall(piece))] if memory else []
    parts += [soft.similar(piece)] if similar else []
    return np.concatenate(parts, -1, dtype=np.float32)


def _features(pieces: Sequence[Piece]) -> tuple[int, np.dtype]:
    """The number of features, and the type, of all pieces."""
    return pieces[0].shape[1], pieces[0].dtype


def _pool(pieces: Sequence[Piece]) -> Piece:
    features, kind = _features(pieces)
    return np.concatenate([*pieces, np.zeros((1, features), kind)])


def _batch(cut: Chunks, rows: npt.NDArray[np.int64], fresh: npt.NDArray[np.bool_]) -> Batch:
    frames, scored, pieces = cut.frames[rows], cut.scored[rows], cut.pieces[rows]
    empty = rows < 0
    frames[empty], scored[empty], pieces[empty] = 0, False, -1
    parts: list[npt.NDArray[Any]] = []
    if cut.memory is not None:
        where = cut.memory.where[rows]
        where[empty] = -1
        parts.append(exact.recalled(cut.memory.pool, where))
    if cut.similar is not None:
        parts.append(cut.similar[rows])
        parts[-1][empty] = 0
    more = np.concatenate(parts, -1, dtype=np.float32).transpose(1, 0, 2) if parts else None
    return _tensors(frames.transpose(1, 0, 2), scored.T, fresh, pieces, more)


def _tensors(
    frames: Piece,
    scored: npt.NDArray[np.bool_],
    fresh: npt.NDArray[np.bool_],
    pieces: npt.NDArray[np.int64],
    memory: npt.NDArray[np.float32] | None = None,
) -> Batch:
    import torch

    # One float tensor for both: inputs and targets are views of it, shifted by a frame.
    real = torch.from_numpy(np.ascontiguousarray(frames)).to(torch.float32)
    mask = torch.from_numpy(np.ascontiguousarray(scored))
    inputs = real[:-1]
    if memory is not None:
        inputs = torch.cat([inputs, torch.from_numpy(np.ascontiguousarray(memory))], -1)
    return Batch(inputs, real[1:], mask, torch.from_numpy(fresh.copy()), pieces)


def _permutation(count: int, generator: np.random.Generator | None) -> npt.NDArray[np.int64]:
    return np.arange(count) if generator is None else generator.permutation(count)


def _deal(
    pieces: npt.NDArray[np.int64], rows: int, generator: np.random.Generator | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Deal whole pieces to rows: chunk numbers `[rows, columns]`, -1 for padding, and where pieces begin."""
    _, first, count = np.unique(pieces, return_index=True, return_counts=True)
    shuffled = _permutation(len(first), generator)
    place = _permutation(len(first), generator)
    # The longest first, each to the shortest row, keeps the rows nearly equal; each is then shuffled.
    loads = [(0, row) for row in range(min(rows, len(first)))]
    dealt: list[list[int]] = [[] for _ in loads]
    for number in shuffled[np.argsort(-count[shuffled], kind="stable")]:
        load, row = heapq.heappop(loads)
        dealt[row].append(int(number))
        heapq.heappush(loads, (load + int(count[number]), row))
    table = np.full((len(loads), max((load for load, _ in loads), default=0)), -1, np.int64)
    fresh = np.ones_like(table, np.bool_)
    for row, numbers in enumerate(dealt):
        at = 0
        for number in sorted(numbers, key=lambda number: place[number]):
            table[row, at : at + count[number]] = first[number] + np.arange(count[number])
            fresh[row, at + 1 : at + count[number]] = False
            at += count[number]
    return table, fresh
