import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastdropout.music.data
from fastdropout.errors import DataError
from fastdropout.music.data import bach
from fastdropout.music.data.corpora import NAMES, available, load
from fastdropout.music.data.midi import write_midi


@pytest.fixture(autouse=True)
def few_chorales(tmp_path, monkeypatch):
    few = bach.score_files()[::20]
    monkeypatch.setattr(bach, "score_files", lambda: few)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)


def test_names():
    assert NAMES == ("bach", "piano-midi", "nottingham", "musedata", "jsb-chorales")


def test_by_name(data_dir):
    assert load("jsb-chorales", data_dir).name == "jsb-chorales"
    seen = []
    assert load("bach", progress=lambda done, total: seen.append(done)).name == "bach"
    assert seen


@pytest.mark.parametrize("kind", [str, Path])
def test_by_folder(tmp_path, kind):
    for i in range(4):
        write_midi(np.eye(9, 88, 40, dtype=np.uint8), tmp_path / "songs" / f"{i}.mid", steps_per_quarter=4)
    corpus = load(kind(tmp_path / "songs"), steps_per_quarter=4)
    assert corpus.name == "songs"
    assert corpus.statistics()["train"].longest == 9


@pytest.mark.parametrize(
    "name", ["bahc", "no/such/folder", "JSB-Chorales", "x" * 5000, "~nobody/midis", "a\0b"]
)
def test_unknown_names_list_what_is_allowed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"allowed are bach, piano-midi, .*folder of MIDI files"):
        load(name)


def test_available_without_data_says_why():
    rows = {row.name: row for row in available()}
    assert tuple(rows) == NAMES
    assert rows["bach"].statistics["train"].pieces > 0
    assert not rows["bach"].problem
    assert "$FASTDROPOUT_DATA" in rows["musedata"].problem
    assert not rows["musedata"].statistics


def test_available_lists_what_is_there_and_what_is_broken(data_dir, tmp_path):
    for name in ("jsb-chorales.npz", "nottingham.npz"):
        (tmp_path / name).write_bytes((data_dir / name).read_bytes())
    (tmp_path / "nottingham.npz").write_bytes(b"broken")
    rows = {row.name: row for row in available(tmp_path)}
    assert rows["jsb-chorales"].statistics["test"].frames == 4725
    assert "sha256" in rows["nottingham"].problem
    assert rows["nottingham"].source == str(tmp_path / "nottingham.npz")
    assert "does not hold" in rows["piano-midi"].problem


HEAVY = {"torch", "music21", "symusic", "scipy"}


def test_nothing_heavy_is_imported_at_the_top():
    for path in Path(fastdropout.music.data.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & HEAVY, path.name
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in HEAVY, path.name


def test_the_data_room_adds_nothing_heavy_to_the_package():
    code = (
        "import sys, fastdropout; before = set(sys.modules);"
        "from fastdropout.music.data import corpora, download, batches;"
        f"print(sorted({HEAVY!r} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
