"""The published table is made of results that the presets of this version gave."""

import json
from pathlib import Path

import pytest
from docs.tables import music

from fastdropout.music.data.canonical import CANONICAL
from fastdropout.music.study import table
from fastdropout.music.study.reproduce import PLACE
from fastdropout.music.study.results import Result, read_results, write_results
from fastdropout.music.training.config import Config

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "table"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr(music, "ROOT", tmp_path)
    return music


def result(model, candidate, seed, valid, test):
    ended = {"epochs": 3, "best_epoch": 2, "diverged": False, "seconds": 90.0, "parameters": 7}
    about = {"budget": 1.0, "command": f"train {model}", "corpus_sha256": "0", "versions": {}, "platform": ""}
    return Result("jsb-chorales", model, candidate, seed, valid, test, **ended, **about, config={})


def line(text, label):
    return next(x for x in text.splitlines() if x.startswith(f"| {label} |"))


def test_the_table_follows_valid(tables, tmp_path):
    runs = [
        result("best", 1, 0, 8.1, 7.9),
        result("best", 1, 1, 8.0, 8.0),
        result("single", 1, 0, 8.05, 7.95),
        result("plain", 1, 0, 8.5, 7.0),  # The better test does not count.
        result("plain", 2, 0, 8.4, 9.0),
        result("weight-noise", 1, 0, None, None),
        result("paper-rule", 1, 0, 8.15, 8.05),
    ]
    write_results(tmp_path / "results" / "table" / "jsb-chorales.json", runs)
    text = tables.table_1()
    assert line(text, "average of three FD-RNNs") == "| average of three FD-RNNs | – | – | – | **8.000** |"
    assert line(text, "plain RNN").endswith("| 9.000 |")
    assert line(text, "adaptive weight noise").endswith("| – |")
    assert line(text, "FD-RNN (the paper)").endswith("| 8.01 |")
    text = tables.table_1_runs()
    assert "| 8.000 | 8.000 | 7.950 ± 0.071 (2) | 2 of 3 | 2 | `train best` |" in text
    assert "| plain RNN | 8.400 | 9.000 | – |" in text
    assert "weight noise" not in text
    text = tables.ablation()
    assert line(text, "single") == "| single | 8.050 | – | 7.950 | – | 1 |"
    assert line(text, "best") == "| best | 8.050 | +0.000 | 7.950 | +0.000 | 2 |"
    assert line(text, "paper rule") == "| paper rule | 8.150 | +0.100 | 8.050 | +0.100 | 1 |"


def test_twins_stand_beside_their_network(tables, tmp_path):
    runs = [
        result("memory", 1, 0, 7.0, 7.1),
        result("memory-plain", 1, 0, 7.2, 6.9),  # Valid chooses the next.
        result("memory-plain", 2, 0, 7.1, 7.3),
        result("plain", 1, 0, 8.0, 8.1),
    ]
    write_results(tmp_path / "results" / "table" / "jsb-chorales.json", runs)
    lines = tables.twins().splitlines()
    assert lines[2:] == [
        "| RNN | no noise | – | – | – | **8.100** |",
        "| RNN + memory | fast dropout | – | – | – | **7.100** |",
        "| RNN + memory | no noise | – | – | – | 7.300 |",
    ]
    assert "RNN + memory, no noise" not in tables.table_1()


def test_the_readme_shows_what_is_published(tables):
    short = tables.table_1_short().splitlines()
    assert "| FD-RNN | – | – | – | – |" in short
    assert "| Deep RNN (the paper) | – | 2.95 | 6.59 | 7.92 |" in short


def test_nothing_published_is_a_dash(tables):
    assert line(tables.table_1(), "plain RNN") == "| plain RNN | – | – | – | – |"
    assert tables.ablation().splitlines()[-1] == "| – | – | – | – | – | – |"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_published_results_are_of_todays_presets_and_settings(path):
    """A changed one wants its row trained again: fastdropout reproduce --results results/table."""
    for found in read_results(path):
        assert found.corpus == path.stem
        if found.corpus in CANONICAL:
            assert found.corpus_sha256 == CANONICAL[found.corpus].content_sha256
        assert found.versions["torch"]
        options = table.candidates(found.model, found.corpus, budget=found.budget)[found.candidate - 1]
        wanted = dict(table.Cell(*found.key, options).config)
        # An option that is younger than a result had its default then: a preset that sets it is another one.
        defaults = {name: field.default for name, field in Config.model_fields.items()}
        kept, wanted = (
            {name: value for name, value in values.items() if name not in PLACE}
            for values in (defaults | found.config, wanted)
        )
        assert kept == wanted, found.key


def test_a_line_holds_all_that_is_needed():
    for path in RESULTS.glob("*.json"):
        for entry in json.loads(path.read_text()):
            assert {"config", "seed", "versions", "seconds", "corpus_sha256", "command"} <= entry.keys()
