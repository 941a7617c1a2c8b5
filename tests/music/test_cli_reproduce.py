"""`reproduce`, and published models by their names, end to end."""

import json
from io import StringIO

import pytest
from rich.console import Console

from fastdropout.music import cli
from fastdropout.music.cli.reproduce import _cells, _Screen, progress
from fastdropout.music.study import table
from fastdropout.music.study.publish import publish
from fastdropout.music.study.reproduce import Board, reproduce
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.training import make_config, published, train

TINY = {"hidden": 6, "nu": 2, "epochs": 2, "pieces": 3, "chunk": 20, "batch": 4, "patience": 0, "threads": 1}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)
    monkeypatch.setattr(table, "QUICK", TINY)


def test_a_small_table_without_any_data(tmp_path, capsys):
    words = ["reproduce", "--quick", "--executor", "serial"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert (
        "not there: piano-midi, nottingham, musedata, jsb-chorales; get one by: fastdropout data get" in out
    )
    for label in (*(table.MODELS[name] for name in table.QUICK_MODELS), "FD-RNN (the paper)"):
        assert label in out
    assert "bach weight-decay-1-seed0 ends: valid " in out
    assert out.endswith("results runs/quick\n")
    lines = json.loads((tmp_path / "runs/quick/bach.json").read_text())
    assert len(lines) == len(table.QUICK_MODELS)
    assert all(line["test"] > 0 and line["corpus_sha256"] and line["versions"]["torch"] for line in lines)
    assert cli.main(words) == 0
    assert "begins" not in capsys.readouterr().out


def test_two_at_a_time_with_results_elsewhere(tmp_path, capsys):
    words = ["reproduce", "bach", "--quick", "--models", "best,paper-rule", "--seeds", "2", "--workers", "2"]
    assert cli.main([*words, "-o", "runs", "--results", "kept/table"]) == 0
    out = capsys.readouterr().out
    assert "bach: the paper has no figures for it" in out
    assert "paper-rule" in out
    models = [(r["model"], r["seed"]) for r in json.loads((tmp_path / "kept/table/bach.json").read_text())]
    assert models == [("best", 0), ("best", 1), ("paper-rule", 0), ("paper-rule", 1)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mozart"], "a corpus must be one of bach, piano-midi, "),
        (["musedata"], "musedata is not shipped: name its folder by --data DIR"),
        (["bach", "--models", "plain,vae"], "a model must be one of plain, paper, "),
        (["bach", "--seeds", "0"], "seeds must be at least 1"),
        (["bach", "--budget", "0"], "budget in (0, 100]"),
        (["bach", "--executor", "slurm"], "executor must be one of serial, process, ray, got 'slurm'"),
        (["bach", "--workers", "0"], "workers must be at least 1"),
    ],
)
def test_faults_are_one_line(words, told, capsys):
    assert cli.main(["reproduce", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_what_a_terminal_shows(tmp_path):
    board = Board()
    for board in reproduce(["bach"], ["best", "plain"], make_executor("serial"), out=tmp_path, quick=True):
        if len(board.results) == 1:
            break
    board.failed[board.cells[1].key], told = "no luck", StringIO()
    board.running.add(board.cells[0].key)
    Console(file=told, width=100).print(_cells(board))
    best = board.results[board.cells[0].key]
    assert f"│ best             │ {best.valid:.3f}  1/1  epoch 2/2 " in told.getvalue()
    assert "│ plain            │ 0/1  1 failed" in told.getvalue()
    assert progress(board) == (2, 3.0)  # Both ended, and the one that is said to run is whole.
    screen = _Screen()
    assert screen.table().title == "0/0 trainings ended  ? left"
    screen.show(board)
    assert screen.table().title == "2/2 trainings ended  ? left"


def test_published_models_by_name(tmp_path, monkeypatch, capsys):
    run = train(make_config({**TINY, "pieces": 4}), out=tmp_path / "run")
    publish(run, "tiny", tmp_path / "models")
    monkeypatch.setattr(published, "models_folder", lambda: tmp_path / "models")
    assert cli.main(["evaluate", "--model", "tiny"]) == 0
    out = capsys.readouterr().out
    score = f"{run.result.test.nll_per_step:.3f}"
    assert f"test NLL {score} nats per frame" in out
    assert f"its card says {score}" in out
    assert cli.main(["evaluate", str(run.path), "--split", "valid"]) == 0
    assert "card" not in capsys.readouterr().out
    assert cli.main(["generate", "--model", "tiny", "--frames", "8", "-o", "song.mid"]) == 0
    assert (tmp_path / "song.mid").is_file()
    for words, told in (
        (["evaluate", "--model", "huge"], "'huge' is no published model, there are tiny"),
        (["evaluate"], "give a run folder or --model NAME"),
        (["evaluate", "run", "--model", "tiny"], "give a run folder or --model NAME"),
        (["evaluate", "--model", "tiny", "--data", "."], "data is for the canonical data sets"),
    ):
        assert cli.main(words) == 2
        assert told in capsys.readouterr().err
