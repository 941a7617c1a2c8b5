import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.files import cache_folder
from fastdropout.music.data import bach
from fastdropout.music.data.bach import (
    VOICES,
    convert,
    group_by_tune,
    load_bach,
    read_chorale,
    score_files,
)

CONTENT = "cf7a2fdfae3760c0fbf5f3603521fec55253800aa3c371540cd72a872faa40ae"

# With instruments, with repeats, the only one with endings, with an upbeat and a filled last bar, as plain
# XML, with grace notes.
SAMPLE = ("bwv1.6.mxl", "bwv261.mxl", "bwv8.6.mxl", "bwv66.6.mxl", "bwv67.4.xml", "bwv299.mxl")


def music21_roll(path):
    """The same recipe on music21's own objects: nothing of ours but the grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from music21 import converter

        score = converter.parse(path, forceSource=True, storePickle=False)
        parts = [p.expandRepeats() for p in score.parts if (p.partName or "?").split()[0] in VOICES]
    roll = np.zeros((math.ceil(max(part.highestTime for part in parts)), 88), np.uint8)
    for part in parts:
        for note in part.flatten().notes:
            if not note.duration.isGrace:
                for step in range(math.ceil(note.offset), math.ceil(note.offset + note.quarterLength)):
                    roll[step, [pitch.midi - 21 for pitch in note.pitches]] = 1
    return roll


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A corpus of forty scores and a cache of its own."""
    few = score_files()[::10]
    monkeypatch.setattr(bach, "score_files", lambda: few)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return few


@pytest.mark.parametrize("name", SAMPLE)
def test_agrees_with_music21(name):
    path = next(path for path in score_files() if path.name == name)
    roll, _ = read_chorale(path.read_bytes(), name)
    np.testing.assert_array_equal(roll, music21_roll(path))


@pytest.mark.slow
def test_the_whole_corpus_agrees_with_music21_and_never_changes():
    corpus = convert(score_files())
    rows = corpus.statistics()
    assert [row.pieces for row in rows.values()] == [300, 48, 48]
    assert [row.frames for row in rows.values()] == [18793, 3526, 2797]
    assert corpus.sha256 == CONTENT
    paths = {path.stem: path for path in score_files()}
    for split, names in corpus.names.items():
        for name, roll in zip(names, corpus.splits[split], strict=True):
            np.testing.assert_array_equal(roll, music21_roll(paths[name]), err_msg=name)


def test_every_score_is_taken_or_named(files):
    seen = []
    corpus = convert(files, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(files)) for i in range(len(files))]
    named = {name for names in corpus.names.values() for name in names}
    left = {Path(name).stem for name, _ in corpus.skipped}
    assert named | left == {path.stem for path in files}
    assert not named & left
    for split, names in corpus.names.items():
        assert len(names) == len(corpus.splits[split])
        assert names == sorted(names)


def test_other_music_is_left_out_with_the_reason():
    paths = {path.name: path for path in score_files()}
    for name, why in (
        ("bwv846.mxl", "Piano"),
        ("bwv227.3.mxl", "Soprano 2"),
        ("bwv248.64-6.mxl", "silent for 78%"),
    ):
        with pytest.raises(DataError, match=why):
            read_chorale(paths[name].read_bytes(), name)


def test_settings_of_a_tune_stay_together():
    tunes = {}
    for path in score_files():
        # Five settings of "O Haupt voll Blut und Wunden", in three keys, and two others.
        if path.stem in ("bwv135.6", "bwv244.15", "bwv244.17", "bwv244.54", "bwv270", "bwv8.6", "bwv1.6"):
            tunes[path.stem] = read_chorale(path.read_bytes(), path.name)[1]
    assert group_by_tune(tunes) == {
        "bwv1.6": ["bwv1.6"],
        "bwv135.6": ["bwv135.6", "bwv244.15", "bwv244.17", "bwv244.54", "bwv270"],
        "bwv8.6": ["bwv8.6"],
    }


def test_the_second_time_is_from_the_cache(files, monkeypatch):
    first = load_bach()
    assert [p.name for p in cache_folder().iterdir()] == ["bach-v1.npz"]
    monkeypatch.setattr(bach, "convert", lambda *a, **k: pytest.fail("converted again"))
    second = load_bach()
    assert second.sha256 == first.sha256
    assert second.names == first.names
    assert second.skipped == first.skipped
    assert second.source == first.source


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"", lambda data: b"x" * 100])
def test_a_damaged_cache_is_made_again(files, damage):
    first = load_bach()
    path = cache_folder() / "bach-v1.npz"
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert load_bach().sha256 == first.sha256
    assert path.read_bytes() == good


@pytest.mark.parametrize("what", ["music21", "converter"])
def test_a_cache_of_another_version_is_made_again(files, monkeypatch, what):
    load_bach()
    data = (cache_folder() / "bach-v1.npz").read_bytes()
    stamp = {"converter": 1, "music21": bach._music21_version()}
    assert bach._from_bytes(data, stamp, "x").train
    with pytest.raises(DataError, match="another version"):
        bach._from_bytes(data, {**stamp, what: "other"}, "x")


def test_a_cache_that_cannot_be_written_is_no_trouble(files, tmp_path, monkeypatch):
    # A file where the folder should be fails for every user; permissions would not stop root.
    (tmp_path / "cache").write_bytes(b"")
    assert load_bach().train
    assert (tmp_path / "cache").is_file()


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fastdropout")
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == Path.home() / ".cache" / "fastdropout"


def test_without_music21_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(bach.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install"):
        score_files()


def test_music21s_folder_is_left_as_it_was(files):
    folder = files[0].parent
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder)}
    convert(files[:3] + files[-30:])
    assert {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder)} == before


def test_no_home_is_no_trouble(files, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # As for a user without an entry.
    with pytest.raises(RuntimeError):
        cache_folder()
    assert load_bach().name == "bach"
