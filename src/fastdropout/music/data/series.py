"""Any sequences of zeros and ones or of real values: `.npz`, `.npy` and `.csv` files, or a folder of them.

Every array is a piece, `[steps, features]`; one of `[steps]` has one feature, one of
`[pieces, steps, features]` is several pieces. Where all values are 0 or 1 the features are binary, else real.

Names or folders say which pieces are for what: they begin with `train`, `valid` and `test`. Where they do
not, `MANY` pieces and more go to the splits by a hash of their names, as MIDI files do; of fewer, each is
cut: the first 70 % of its steps are for training, the next 15 % for validation, the rest for the test.
"""

from __future__ import annotations

import csv
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdropout.errors import DataError
from fastdropout.music.data.midi import midi_files
from fastdropout.music.data.npz import load_array, load_arrays, read_bytes
from fastdropout.music.data.rolls import MAX_FRAMES, SPLITS, Corpus, Piece, split_names, unpack

SUFFIXES = (".npz", ".npy", ".csv")
MANY = 10
"""Pieces from which on a piece stays whole."""
MAX_ARRAYS = 100_000
MAX_FEATURES = 65_536
MAX_CSV = 64 << 20
"""Bytes of a `.csv` file."""
SHARES = (0.7, 0.85)
"""Where a piece is cut, as shares of its steps."""
_PACKED = {f"{split}_{part}" for split in SPLITS for part in ("frames", "lengths")}

Values = npt.NDArray[np.float64]


def is_series(name: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of arrays, or a folder that holds such files and no MIDI files."""
    path = os.path.expanduser(os.fspath(name))
    if os.path.isfile(path):
        return path.lower().endswith(SUFFIXES)
    return os.path.isdir(path) and bool(_files(Path(path))) and not midi_files(Path(path))


def load_series(name: str | os.PathLike[str]) -> Corpus:
    """The sequences in a file or below a folder as a corpus."""
    path = Path(os.path.expanduser(os.fspath(name)))
    label = unicodedata.normalize("NFC", path.resolve().stem) or "series"
    if path.is_dir():
        files = _files(path)
        if not files:
            raise DataError(f"{path}: holds no {', '.join(SUFFIXES)} files")
        arrays: dict[str, np.ndarray] = {}
        for inside, file in files:
            read = _read(file)
            single = len(read) == 1
            stem = os.path.splitext(inside)[0]
            arrays |= {stem if single else f"{stem}/{key}": value for key, value in read.items()}
    else:
        if path.suffix.lower() == ".npz":
            packed = load_arrays(read_bytes(path), str(path), floats=True, most=MAX_ARRAYS)
            if packed.keys() == _PACKED:  # The layout of the canonical data sets.
                return Corpus(label, unpack(packed, str(path)), str(path))
        arrays = _read(path)
    pieces = _pieces(arrays, str(path))
    splits, names = _split(pieces, str(path))
    binary = all(((piece == 0) | (piece == 1)).all() for piece in pieces.values())
    if not binary:
        _check_digits(pieces, str(path))
    kind = np.uint8 if binary else np.float32
    typed: dict[str, list[Piece]] = {
        split: [np.ascontiguousarray(piece, kind) for piece in splits[split]] for split in SPLITS
    }
    return Corpus(label, typed, str(path), names, series=True)


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Path inside the folder and path, sorted; hidden files are left out."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                path = Path(root, name)
                inside = path.relative_to(folder).as_posix()
                found.append((unicodedata.normalize("NFC", inside), path))
    return sorted(found)


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by their names."""
    suffix, what = path.suffix.lower(), str(path)
    if suffix == ".npz":
        return load_arrays(read_bytes(path), what, floats=True, most=MAX_ARRAYS)
    if suffix == ".npy":
        return {path.stem: load_array(read_bytes(path), what)}
    if suffix == ".csv":
        return {path.stem: _read_csv(read_bytes(path, MAX_CSV), what)}
    raise DataError(f"{path}: must be a {', '.join(SUFFIXES)} file or a folder of such")


def _read_csv(data: bytes, what: str) -> Values:
    """Numbers separated by commas, semicolons or tabs, a step a line; a first line of names is skipped."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: not a text file ({error.reason})") from error
    lines = text.splitlines()
    first = lines[0] if lines else ""
    delimiter = next((mark for mark in ("\t", ";", ",") if mark in first), ",")
    rows: list[list[float]] = []
    try:
        for number, fields in enumerate(csv.reader(lines, delimiter=delimiter), 1):
            if not fields:
                continue
            values = [_number(field) for field in fields]
            if None in values:
                if number == 1:
                    continue  # The names of the columns.
                wrong = fields[values.index(None)]
                raise DataError(f"{what}: line {number}: {wrong[:40]!r} is not a number")
            if rows and len(values) != len(rows[0]):
                raise DataError(f"{what}: line {number} has {len(values)} columns, others {len(rows[0])}")
            rows.append(values)  # type: ignore[arg-type]
    except csv.Error as error:
        raise DataError(f"{what}: not a .csv file ({error})") from error
    if not rows:
        raise DataError(f"{what}: holds no numbers")
    return np.array(rows, np.float64)


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None


def _pieces(arrays: dict[str, np.ndarray], what: str) -> dict[str, Values]:
    """Arrays as pieces of one number of features and finite values."""
    pieces: dict[str, Values] = {}
    features, frames = None, 0
    for name, array in arrays.items():
        where = f"{what}: {name[:80]!r}"
        if array.ndim not in (1, 2, 3) or not array.size:
            shapes = "[steps], [steps, features] or [pieces, steps, features], none of them 0"
            raise DataError(f"{where} must be {shapes}, got {list(array.shape)}")
        several = array.ndim == 3
        for number, part in enumerate(array if several else [array]):
            piece = np.asarray(part, np.float64).reshape(len(part), -1)
            if not np.isfinite(piece).all():
                step = int(np.flatnonzero(~np.isfinite(piece).all(1))[0])
                raise DataError(f"{where} must hold finite values, step {step} does not")
            if np.abs(piece).max() > np.finfo(np.float32).max:
                raise DataError(f"{where} must hold values of float32, got {np.abs(piece).max():g}")
            features = piece.shape[1] if features is None else features
            if features > MAX_FEATURES:
                raise DataError(f"{where} must have at most {MAX_FEATURES} features, got {features}")
            if piece.shape[1] != features:
                raise DataError(f"{where} must have {features} features as the first, got {piece.shape[1]}")
            pieces[f"{name}/{number}" if several else name] = piece
            frames += len(piece)
            if frames > MAX_FRAMES:
                raise DataError(f"{what}: has more than {MAX_FRAMES} steps")
    return pieces


def _check_digits(pieces: dict[str, Values], what: str) -> None:
    """Refuse values whose changes float32 would round away, such as times in seconds since 1970."""
    every = np.concatenate(list(pieces.values()))
    lost, std = np.abs(every - every.astype(np.float32)).max(axis=0), every.std(axis=0)
    wrong = np.flatnonzero((std > 0) & (lost > 0.01 * std))
    if len(wrong):
        raise DataError(
            f"{what}: feature {wrong[0] + 1} must vary by more than float32 rounds it: its mean is "
            f"{every[:, wrong[0]].mean():.6g}, its standard deviation {std[wrong[0]]:.3g}; subtract the mean"
        )


def _split(pieces: dict[str, Values], what: str) -> tuple[dict[str, list[Values]], dict[str, list[str]]]:
    """Pieces and their names by split."""
    said = {name: _said(name) for name in pieces}
    if any(said.values()):
        silent = [name for name, split in said.items() if split is None]
        if silent:
            raise DataError(f"{what}: {silent[0][:80]!r} must begin with train, valid or test, as others do")
        names = {split: [name for name, own in said.items() if own == split] for split in SPLITS}
        empty = [split for split in SPLITS if not names[split]]
        if empty:
            there = " and ".join(split for split in SPLITS if names[split])
            raise DataError(f"{what}: nothing is for {empty[0]}, its pieces begin with {there}")
    elif len(pieces) >= MANY:
        names = split_names(list(pieces))
    else:
        return _cut(pieces, what)
    return {split: [pieces[name] for name in names[split]] for split in SPLITS}, names


def _cut(pieces: dict[str, Values], what: str) -> tuple[dict[str, list[Values]], dict[str, list[str]]]:
    """Every piece in three: what is tested comes after what is trained on."""
    splits: dict[str, list[Values]] = {split: [] for split in SPLITS}
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, piece in pieces.items():
        ends = [round(share * len(piece)) for share in SHARES]
        parts: Sequence[Values] = np.split(piece, ends)
        if min(map(len, parts)) < 2:
            raise DataError(
                f"{what}: {name[:80]!r} has {len(piece)} steps, too few to cut into train, valid and test; "
                "name pieces by their split"
            )
        for split, part in zip(SPLITS, parts, strict=True):
            splits[split].append(part)
            names[split].append(f"{name} ({split})")
    return splits, names


def _said(name: str) -> str | None:
    """The split that a name begins with."""
    for split in SPLITS:
        rest = name.lower().removeprefix(split)
        if rest != name.lower() and (not rest or not rest[0].isalpha()):
            return split
    return None
