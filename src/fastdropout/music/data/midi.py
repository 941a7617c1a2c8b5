"""MIDI files of the user's own, to piano rolls and back."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from fastdropout.errors import DataError, one_line
from fastdropout.files import write_output
from fastdropout.music.data.npz import read_bytes
from fastdropout.music.data.rolls import (
    HIGHEST,
    KEYS,
    LOWEST,
    MAX_FRAMES,
    SPLITS,
    Corpus,
    Roll,
    split_names,
)

MAX_BYTES = 8 << 20
"""Bytes of a MIDI file; a symphony takes 1 MB."""
MAX_PIECE = 200_000
"""Frames of a piece: 14 hours at two frames a quarter and 120 quarters a minute."""

_TICKS = 480  # A quarter in the files we write: divisible by all usual numbers of steps.


def load_folder(
    folder: str | os.PathLike[str],
    *,
    steps_per_quarter: int = 2,
    progress: Callable[[int, int], object] | None = None,
) -> Corpus:
    """All `.mid` and `.midi` files below `folder` as a corpus.

    A piece goes to train (76 %), valid (12 %) or test (12 %) by a hash of its path inside the folder, so
    that adding a file moves no other. Only where that leaves a split empty, which happens in folders of
    a few files, a piece is moved there. Files that cannot be read are left out and listed in
    `Corpus.skipped`.
    """
    folder = Path(folder)
    files = midi_files(folder)
    if not files:
        raise DataError(f"{folder}: holds no .mid or .midi files, nor .npz, .npy or .csv")
    symusic = _symusic()  # Before the loop: if it is missing, that is one error and not one for each file.
    rolls: dict[str, Roll] = {}
    skipped: list[tuple[str, str]] = []
    frames = 0
    for done, (name, path) in enumerate(files):
        try:
            rolls[name] = _read(symusic, read_bytes(path, MAX_BYTES), str(path), steps_per_quarter)
            frames += len(rolls[name])
        except DataError as error:
            skipped.append((name, str(error).removeprefix(f"{path}: ")))
        if frames > MAX_FRAMES:
            raise DataError(f"{folder}: more than {MAX_FRAMES} frames; use fewer files or a coarser grid")
        if progress is not None:
            progress(done + 1, len(files))
    if len(rolls) < len(SPLITS):
        why = f"; {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise DataError(
            f"{folder}: at least 3 readable MIDI files are needed (train, valid, test), "
            f"got {len(rolls)} of {len(files)}{why}"
        )
    names = split_names(list(rolls))
    splits = {split: [rolls[name] for name in names[split]] for split in SPLITS}
    label = os.path.basename(os.path.realpath(folder)) or "midi"
    source = f"{folder}, {steps_per_quarter} steps per quarter"
    return Corpus(label, splits, source, names, tuple(skipped))


def read_midi(path: str | os.PathLike[str], *, steps_per_quarter: int = 2) -> Roll:
    """The piano roll of one MIDI file: drums and keys outside of A0 to C8 are left out.

    Starts and ends of notes go to the nearest grid line, but every note sounds for a frame at least.
    Silence before the first and after the last note is cut off. Held and repeated notes look the same,
    as in the paper's data.
    """
    return _read(_symusic(), read_bytes(path, MAX_BYTES), str(path), steps_per_quarter)


def write_midi(
    roll: Roll,
    path: str | os.PathLike[str],
    *,
    steps_per_quarter: int = 2,
    tempo: float = 100.0,
    program: int = 0,
    velocity: int = 80,
) -> None:
    """Write a piano roll as a MIDI file; a key that sounds in successive frames is one held note.

    `tempo` is in quarters a minute, `program` an instrument of General MIDI (0 is the grand piano).
    Silence at the ends of a roll has no note to hold it and is not kept.
    """
    _check_grid(steps_per_quarter)
    if roll.ndim != 2 or roll.shape[1] != KEYS:
        raise DataError(f"a piano roll must be [steps, {KEYS}], got {list(roll.shape)}")
    symusic = _symusic()
    edges = np.diff(np.pad((roll != 0).astype(np.int8), ((1, 1), (0, 0))), axis=0)
    # Transposed, so that the starts and ends of a key come in pairs.
    keys, starts = np.nonzero(edges.T == 1)
    _, ends = np.nonzero(edges.T == -1)
    track = symusic.Track(program=program)
    unit = _TICKS / steps_per_quarter
    for key, start, end in sorted(zip(keys, starts, ends, strict=True), key=lambda note: (note[1], note[0])):
        at, until = round(start * unit), round(end * unit)
        track.notes.append(symusic.Note(at, until - at, int(key) + LOWEST, velocity))
    score = symusic.Score(_TICKS)
    score.tempos.append(symusic.Tempo(0, qpm=tempo))
    score.tracks.append(track)
    write_output(path, score.dumps_midi())


def midi_files(folder: Path) -> list[tuple[str, Path]]:
    """Path inside the folder and path, sorted; hidden files, as macOS makes beside others, are left out."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: no such folder")
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith((".mid", ".midi")) and not name.startswith("."):
                path = Path(root, name)
                # One spelling of accented letters: file systems differ, the split must not.
                inside = path.relative_to(folder).as_posix()
                found.append((unicodedata.normalize("NFC", inside), path))
    return sorted(found)


def _symusic() -> ModuleType:
    try:
        import symusic
    except ImportError as error:
        raise DataError("MIDI files need the package symusic: pip install 'fastdropout[music]'") from error
    return symusic


def _check_grid(steps_per_quarter: int) -> None:
    if not 1 <= steps_per_quarter <= 48:
        raise DataError(f"steps_per_quarter must lie in 1..48, got {steps_per_quarter}")


def _read(symusic: ModuleType, data: bytes, what: str, steps_per_quarter: int) -> Roll:
    _check_grid(steps_per_quarter)
    if data[:4] != b"MThd":
        raise DataError(f"{what}: not a MIDI file")
    try:
        score = symusic.Score.from_midi(data)
        ticks = int(score.ticks_per_quarter)
        columns = [track.notes.numpy() for track in score.tracks if not track.is_drum]
    except Exception as error:  # The C++ side throws several kinds, none of which is ours.
        raise DataError(f"{what}: a broken MIDI file ({one_line(error, 120)})") from error
    if ticks < 1:
        raise DataError(f"{what}: has {ticks} ticks a quarter")
    pitch, time, duration = (
        np.concatenate([np.asarray(c[key], np.int64) for c in columns] or [np.zeros(0, np.int64)])
        for key in ("pitch", "time", "duration")
    )
    kept = (pitch >= LOWEST) & (pitch <= HIGHEST) & (time >= 0) & (duration >= 0)
    if not kept.any():
        raise DataError(f"{what}: has no notes on the 88 keys")
    first = _nearest(time[kept] * steps_per_quarter, ticks)
    last = np.maximum(_nearest((time + duration)[kept] * steps_per_quarter, ticks), first + 1)
    first, last = first - (begin := first.min()), last - begin
    frames = int(last.max())
    if not 2 <= frames <= MAX_PIECE:
        raise DataError(f"{what}: has {frames} frames, allowed are 2..{MAX_PIECE}")
    # +1 where a note starts, -1 where it ends: the time does not depend on how long the notes are.
    edges = np.zeros((frames + 1, KEYS), np.int32)
    np.add.at(edges, (first, pitch[kept] - LOWEST), 1)
    np.add.at(edges, (last, pitch[kept] - LOWEST), -1)
    return (np.cumsum(edges[:-1], axis=0) > 0).astype(np.uint8)


def _nearest(numerator: np.ndarray, denominator: int) -> np.ndarray:
    """Rounded division of whole numbers; halves go up, as they would not with `np.round`."""
    return (2 * numerator + denominator) // (2 * denominator)
