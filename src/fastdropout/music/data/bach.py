"""`bach`, the embedded default: Bach's four-part chorales out of the corpus inside the package music21.

Each score that has one soprano, alto, tenor and bass each is read (instruments that double or accompany
are left out, and so are the few scores in which they play alone for long), repeats are played, and what
sounds at each quarter is a frame. This is the recipe of the data set `jsb-chorales`, but other scores,
keys and another split: the figures are not comparable with published ones.

The split: Bach set many tunes several times, and some scores are the same setting in two versions.
Chorales whose soprano sings the same tune, in whatever key, form a group; the group is dealt to train
(76 %), valid (12 %) or test (12 %) by a hash of "v1 " and the name of its first score. So no tune of the
test split has been heard in training, as far as the grouping finds it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fastdropout.errors import DataError
from fastdropout.files import cache_folder, write_atomic
from fastdropout.music.data.musicxml import expand_repeats, part_names, read_bars, read_score, sample
from fastdropout.music.data.npz import dump_arrays, load_arrays, read_bytes
from fastdropout.music.data.rolls import SPLITS, Corpus, Roll, pack, split_by_hash, unpack

Progress = Callable[[int, int], object]
"""Called with what is done and what there is to do."""

CONVERTER = 1
"""Raised whenever the same scores would give other frames or another split: old caches are then made anew."""
VOICES = ("Soprano", "Alto", "Tenor", "Bass")
MAX_SILENT = 0.25
"""Five scores have interludes of instruments, 44 % of their frames or more; the others 14 % at most."""


def load_bach(*, progress: Progress | None = None, cache: bool = True) -> Corpus:
    """The chorales, from the cache if it is there and fits, else converted (some seconds) and cached."""
    path = _cache_file() if cache else None
    stamp = {"converter": CONVERTER, "music21": _music21_version()}
    if path is not None:
        try:
            return _from_bytes(read_bytes(path), stamp, str(path))
        except DataError:
            pass  # Missing, damaged or of another version: it is made again from the scores.
    corpus = convert(score_files(), progress=progress)
    if path is not None:
        # A read-only or full cache folder costs the next run some seconds, nothing else.
        with contextlib.suppress(OSError):
            write_atomic(path, _to_bytes(corpus, stamp))
    return corpus


def _cache_file() -> Path | None:
    try:
        return cache_folder() / f"bach-v{CONVERTER}.npz"
    except RuntimeError:
        return None  # There is no home.


def score_files() -> list[Path]:
    """The scores of the Bach corpus inside the installed music21, which need not be imported for that."""
    spec = importlib.util.find_spec("music21")
    if spec is None or spec.origin is None:
        raise DataError("bach needs the scores inside the package music21: pip install 'fastdropout[music]'")
    folder = Path(spec.origin).parent / "corpus" / "bach"
    files = sorted(path for path in folder.glob("*") if path.suffix in (".mxl", ".xml"))
    if not files:
        raise DataError(f"{folder}: this installation of music21 has no scores; reinstall music21")
    return files


def convert(files: Sequence[Path], *, progress: Progress | None = None) -> Corpus:
    """Read the scores, leave out what is not a four-part chorale, group by tune and split."""
    rolls: dict[str, Roll] = {}
    tunes: dict[str, list[int]] = {}
    skipped: list[tuple[str, str]] = []
    seen: dict[bytes, str] = {}
    for done, path in enumerate(files):
        try:
            roll, tune = read_chorale(read_bytes(path), path.name)
            twin = seen.setdefault(roll.tobytes(), path.name)
            if twin != path.name:
                raise DataError(f"{path.name}: the same frames as {twin}")
            rolls[path.stem], tunes[path.stem] = roll, tune
        except DataError as error:
            skipped.append((path.name, str(error).removeprefix(f"{path.name}: ")))
        if progress is not None:
            progress(done + 1, len(files))
    splits: dict[str, list[Roll]] = {split: [] for split in SPLITS}
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for first, group in group_by_tune(tunes).items():
        for name in group:
            names[split_by_hash(f"v1 {first}")].append(name)
    for split in SPLITS:
        names[split].sort()
        splits[split] = [rolls[name] for name in names[split]]
    return Corpus("bach", splits, f"music21 {_music21_version()}", names, tuple(skipped))


def read_chorale(data: bytes, what: str) -> tuple[Roll, list[int]]:
    """The piano roll of the four voices with repeats played, and the soprano's pitches as written."""
    score = read_score(data, what)
    parts = part_names(score)
    voices = [[id for id, name in parts.items() if name.split()[:1] == [voice]] for voice in VOICES]
    if any(len(ids) != 1 for ids in voices):
        raise DataError(f"{what}: not in four parts, but for {', '.join(parts.values())}")
    bars = read_bars(score, [ids[0] for ids in voices])
    _, lines = sample(bars)
    roll, _ = sample(expand_repeats(bars))
    silent = float((~roll.any(axis=1)).mean()) if len(roll) else 1.0
    if silent > MAX_SILENT:
        raise DataError(f"{what}: the voices are silent for {silent:.0%} of it, instruments play alone")
    return roll, lines[voices[0][0]]


def group_by_tune(
    tunes: Mapping[str, Sequence[int]], length: int = 6, share: float = 0.5
) -> dict[str, list[str]]:
    """Groups of the same tune by their first name.

    Two tunes are the same if at least `share` of the shorter one's runs of `length` intervals occur in
    the other. Intervals do not depend on the key. (On the corpus, `length` 6 to 12 and `share` 0.3 to
    0.5 give nearly the same groups: 231 to 266.)
    """
    runs = {name: _runs(tune, length) for name, tune in tunes.items()}
    leader = {name: name for name in tunes}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for a, b in itertools.combinations(sorted(runs), 2):
        shorter = min(len(runs[a]), len(runs[b]))
        if shorter and len(runs[a] & runs[b]) >= share * shorter:
            first, second = sorted((find(a), find(b)))
            leader[second] = first
    groups: dict[str, list[str]] = {}
    for name in sorted(tunes):
        groups.setdefault(find(name), []).append(name)
    return groups


def _runs(tune: Sequence[int], length: int) -> set[tuple[int, ...]]:
    pitches = [pitch for pitch in tune if pitch]
    steps = [b - a for a, b in itertools.pairwise(pitches)]
    return {tuple(steps[i : i + length]) for i in range(len(steps) - length + 1)}


def _music21_version() -> str:
    try:
        return importlib.metadata.version("music21")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _to_bytes(corpus: Corpus, stamp: Mapping[str, object]) -> bytes:
    meta = {"stamp": stamp, "names": corpus.names, "skipped": corpus.skipped, "sha256": corpus.sha256}
    return dump_arrays({**pack(corpus.splits), "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})


def _from_bytes(data: bytes, stamp: Mapping[str, object], what: str) -> Corpus:
    arrays = load_arrays(data, what)
    try:
        meta = json.loads(arrays["meta"].tobytes())
        names = {split: [str(name) for name in meta["names"][split]] for split in SPLITS}
        skipped = tuple((str(file), str(why)) for file, why in meta["skipped"])
        fits = meta["stamp"] == dict(stamp)
        sha256 = meta["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{what}: not a cache of this program ({error})") from error
    corpus = Corpus("bach", unpack(arrays, what), f"music21 {stamp['music21']}", names, skipped)
    if not fits or corpus.sha256 != sha256 or any(len(names[s]) != len(corpus.splits[s]) for s in SPLITS):
        raise DataError(f"{what}: made by another version or damaged")
    return corpus
