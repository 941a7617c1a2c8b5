"""The one door to all corpora: by name, or by the path of MIDI files or of other sequences."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastdropout.errors import DataError, visible
from fastdropout.music.data.bach import load_bach
from fastdropout.music.data.canonical import CANONICAL, find, load_canonical
from fastdropout.music.data.midi import load_folder
from fastdropout.music.data.rolls import Corpus, Statistics
from fastdropout.music.data.series import SUFFIXES, is_series, load_series

NAMES = ("bach", *CANONICAL)


@dataclass(frozen=True)
class Row:
    """What is known of a corpus: where it is and how large its splits are, or why it cannot be had."""

    name: str
    source: str = ""
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    """By split; empty if the corpus is not there."""
    problem: str = ""


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
    steps_per_quarter: int = 2,
    verify: bool = True,
) -> Corpus:
    """A corpus by its name (`NAMES`), the MIDI files of a folder, or the sequences of `series.py`.

    `data_dir` is where the canonical data sets lie, by default `$FASTDROPOUT_DATA`. `steps_per_quarter`
    is the grid for MIDI files only. `verify=False` accepts canonical files with another hash than the
    known one.
    """
    if name == "bach":
        return load_bach(progress=progress)
    if isinstance(name, str) and name in CANONICAL:
        return load_canonical(name, data_dir, verify=verify)
    if is_series(name):
        return load_series(name)
    folder = Path(os.path.expanduser(name))
    # Unlike the method of Path, False for names that are no paths at all; an empty one is no folder either.
    if os.fspath(name) and os.path.isdir(folder):
        return load_folder(folder, steps_per_quarter=steps_per_quarter, progress=progress)
    if os.fspath(name) and os.path.isfile(folder):
        kinds = ", ".join(SUFFIXES)
        raise DataError(
            f"{visible(str(folder))}: must be a {kinds} file or a folder, got another kind of file"
        )
    files = f"a {', '.join(SUFFIXES)} file"
    allowed = f"{', '.join(NAMES)}, a folder of MIDI files, {files} or a folder of such"
    raise DataError(f"{os.fspath(name)!r} is no corpus, no such file and no folder, allowed are {allowed}")


def absolute(path: str) -> str:
    """A path that holds wherever one is, and that a configuration file can hold."""
    place = os.path.realpath(os.path.expanduser(path))
    if visible(place) != place:
        raise DataError(f"{visible(place)}: such a path cannot be written down; rename the file or folder")
    return place


def available(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
    verify: bool = True,
) -> list[Row]:
    """One row for each named corpus, with its statistics or with what is wrong with it."""
    rows = []
    for name in NAMES:
        source = ""
        try:
            if name in CANONICAL:
                source = str(find(name, data_dir))
            corpus = load(name, data_dir, progress=progress, verify=verify)
            rows.append(Row(name, corpus.source, corpus.statistics()))
        except DataError as error:
            rows.append(Row(name, source, problem=str(error)))
    return rows
