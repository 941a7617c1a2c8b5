"""Piano rolls, and the corpus made of them or of other sequences.

A *roll* is a uint8 array `[steps, 88]` of zeros and ones: `roll[t, k]` is 1 where the key of MIDI number
`21 + k` (A0 to C8) sounds in frame `t`. A *piece* is a roll, or any other array `[steps, features]`, of zeros
and ones (uint8) or of real values (float32).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdropout.errors import DataError, visible

Roll = npt.NDArray[np.uint8]
Piece = npt.NDArray[Any]

KEYS = 88
LOWEST = 21
"""MIDI number of column 0 (A0)."""
HIGHEST = LOWEST + KEYS - 1
SPLITS = ("train", "valid", "test")

MAX_FRAMES = 4_000_000
"""Frames of a split: 16 times MuseData's, 350 MB unpacked. More is taken for a broken file."""


@dataclass(frozen=True)
class Statistics:
    """What can be said of a split in one row of a table."""

    pieces: int
    frames: int
    shortest: int
    longest: int
    notes_per_frame: float
    silent: float
    """Share of frames in which nothing sounds."""
    lowest: int
    """MIDI number of the lowest note, 0 if there is none."""
    highest: int


@dataclass(frozen=True)
class Corpus:
    """A named set of pieces in a fixed split. Its texts are for people: they can be shown and stored."""

    name: str
    splits: Mapping[str, Sequence[Piece]]
    """`train`, `valid` and `test`, each a list of pieces."""
    source: str = ""
    """Where it came from: a file, a folder, or a package with its version."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the pieces are called, where they have names; in the order of `splits`."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Files that were left out, each with the reason."""
    series: bool = False
    """Whether the pieces are sequences of any kind, not piano rolls."""
    sha256: str = field(init=False)
    """Of the content: the same pieces have the same hash whatever file they came from."""

    def __post_init__(self) -> None:
        (check_series if self.series else check_splits)(self.splits, self.name)
        shown = {
            "name": visible(self.name),
            "source": visible(self.source),
            "names": {split: [visible(name) for name in names] for split, names in self.names.items()},
            "skipped": tuple((visible(name), visible(why)) for name, why in self.skipped),
            "sha256": content_sha256(self.splits),
        }
        for name, value in shown.items():
            object.__setattr__(self, name, value)

    @property
    def features(self) -> int:
        """Features of a frame: 88 keys of a piano, or what a series has."""
        return int(self.train[0].shape[1])

    @property
    def real(self) -> bool:
        """Whether the features are real values, not zeros and ones."""
        return bool(self.train[0].dtype == np.float32)

    @property
    def train(self) -> Sequence[Piece]:
        """The pieces to learn from."""
        return self.splits["train"]

    @property
    def valid(self) -> Sequence[Piece]:
        """The pieces that decide when to stop and what to choose."""
        return self.splits["valid"]

    @property
    def test(self) -> Sequence[Piece]:
        """The pieces to report on."""
        return self.splits["test"]

    def statistics(self) -> dict[str, Statistics]:
        """One row for each split."""
        return {split: statistics(self.splits[split]) for split in SPLITS}


def statistics(pieces: Sequence[Roll]) -> Statistics:
    """Count the pieces, frames and notes of a split."""
    lengths = [len(piece) for piece in pieces]
    frames = sum(lengths)
    keys = np.zeros(KEYS, np.int64)
    silent = 0
    for piece in pieces:
        keys += piece.sum(axis=0, dtype=np.int64)
        silent += int((~piece.any(axis=1)).sum())
    used = np.flatnonzero(keys)
    return Statistics(
        pieces=len(lengths),
        frames=frames,
        shortest=min(lengths, default=0),
        longest=max(lengths, default=0),
        notes_per_frame=float(keys.sum()) / frames if frames else 0.0,
        silent=silent / frames if frames else 0.0,
        lowest=int(used[0]) + LOWEST if len(used) else 0,
        highest=int(used[-1]) + LOWEST if len(used) else 0,
    )


def check_splits(splits: Mapping[str, Sequence[Piece]], what: str) -> None:
    """Refuse anything but three non-empty splits of binary `[steps, 88]` uint8 arrays."""
    for where, piece in _pieces(splits, what):
        if piece.dtype != np.uint8 or piece.ndim != 2 or piece.shape[1] != KEYS:
            got = f"{piece.dtype} {list(piece.shape)}"
            raise DataError(f"{where} must be uint8 [steps, {KEYS}], got {got}")
        if not len(piece):
            raise DataError(f"{where} has no frames")
        if piece.max() > 1:
            raise DataError(f"{where} must hold only 0 and 1, got {piece.max()}")


def check_series(splits: Mapping[str, Sequence[Piece]], what: str) -> None:
    """Refuse anything but three non-empty splits of `[steps, features]`, uint8 of 0 and 1 or float32."""
    first = None
    for where, piece in _pieces(splits, what):
        got = f"{piece.dtype} {list(piece.shape)}"
        if piece.dtype not in (np.uint8, np.float32) or piece.ndim != 2 or not piece.size:
            raise DataError(f"{where} must be uint8 or float32 [steps, features], got {got}")
        first = piece if first is None else first
        if (piece.dtype, piece.shape[1]) != (first.dtype, first.shape[1]):
            needed = f"{first.dtype} [steps, {first.shape[1]}]"
            raise DataError(f"{where} must be {needed} as the first, got {got}")
        if piece.dtype == np.uint8 and piece.max() > 1:
            raise DataError(f"{where} must hold only 0 and 1, got {piece.max()}")
        if not np.isfinite(piece).all():
            raise DataError(f"{where} must hold finite values, got {piece[~np.isfinite(piece)][0]}")


def _pieces(splits: Mapping[str, Sequence[Piece]], what: str) -> Iterator[tuple[str, Piece]]:
    """All pieces with their names, of three splits of which none is empty."""
    if set(splits) != set(SPLITS):
        got = ", ".join(sorted(splits)) or "none"
        raise DataError(f"{what}: the splits must be train, valid and test, got {got}")
    for split in SPLITS:
        if not len(splits[split]):
            raise DataError(f"{what}: the {split} split has no pieces")
        for number, piece in enumerate(splits[split]):
            yield f"{what}: {split} piece {number}", piece


def content_sha256(splits: Mapping[str, Sequence[Piece]]) -> str:
    """Hash of the packed frames and the lengths, split by split."""
    digest = hashlib.sha256()
    first = splits["train"][0]
    if first.shape[1] != KEYS:
        digest.update(f"{first.shape[1]} features\n".encode())
    for name, array in pack(splits).items():
        digest.update(f"{name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def pack(splits: Mapping[str, Sequence[Piece]]) -> dict[str, npt.NDArray[Any]]:
    """Eight keys a byte, the pieces of a split end to end: the arrays of the `.npz` layout.

    `{split}_frames` is uint8 `[sum(lengths), 11]`, `{split}_lengths` is int32 `[pieces]`. Real values stay as
    they are.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for split in SPLITS:
        pieces = splits[split]
        packed = [np.packbits(piece, axis=1) if piece.dtype == np.uint8 else piece for piece in pieces]
        arrays[f"{split}_frames"] = np.concatenate(packed)
        arrays[f"{split}_lengths"] = np.array([len(piece) for piece in pieces], "<i4")
    return arrays


def unpack(arrays: Mapping[str, np.ndarray], what: str) -> dict[str, list[Roll]]:
    """Undo `pack`, believing nothing: every dtype, shape and length is checked before it is used."""
    splits: dict[str, list[Roll]] = {}
    for split in SPLITS:
        for key in (f"{split}_frames", f"{split}_lengths"):
            if key not in arrays:
                raise DataError(f"{what}: has no array {key}")
        frames, lengths = arrays[f"{split}_frames"], arrays[f"{split}_lengths"]
        if frames.dtype != np.uint8 or frames.ndim != 2 or frames.shape[1] != KEYS // 8:
            got = f"{frames.dtype} {list(frames.shape)}"
            raise DataError(f"{what}: {split}_frames must be uint8 [frames, {KEYS // 8}], got {got}")
        if lengths.dtype.kind not in "iu" or lengths.ndim != 1:
            got = f"{lengths.dtype} {list(lengths.shape)}"
            raise DataError(f"{what}: {split}_lengths must be int32 [pieces], got {got}")
        if len(frames) > MAX_FRAMES:
            raise DataError(f"{what}: {split} has {len(frames)} frames, allowed are {MAX_FRAMES}")
        # Compared one by one before they are added: a sum of wild numbers could overflow to the right one.
        if len(lengths) and not ((lengths >= 1) & (lengths <= len(frames))).all():
            raise DataError(f"{what}: {split}_lengths must lie in 1..{len(frames)}")
        total = int(lengths.sum(dtype=np.int64))
        if total != len(frames):
            raise DataError(
                f"{what}: {split}_lengths add up to {total}, but {split}_frames has {len(frames)}"
            )
        ends = np.cumsum(lengths, dtype=np.int64)
        splits[split] = np.split(np.unpackbits(frames, axis=1), ends[:-1]) if len(lengths) else []
    check_splits(splits, what)
    return splits


def hash_number(name: str) -> float:
    """A number in [0, 1) that depends on `name` only, evenly spread over names."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_by_hash(name: str, train: float = 0.76, valid: float = 0.12) -> str:
    """The split of a thing called `name`: depends on nothing else, so that adding one moves no other."""
    number = hash_number(name)
    return "train" if number < train else "valid" if number < train + valid else "test"


def split_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by `split_by_hash`; only where that leaves a split empty, one is moved there."""
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in names:
        splits[split_by_hash(name)].append(name)
    for split in SPLITS:
        if not splits[split]:
            donor = max(splits.values(), key=len)
            donor.remove(moved := max(donor, key=hash_number))
            splits[split].append(moved)
    return splits
