"""`fastdropout search`, end to end, on a few short pieces."""

import contextlib
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fastdropout.music import cli
from fastdropout.music.study.search.report import importances
from fastdropout.music.study.search.space import PAPER, draw
from fastdropout.music.training import Run

_spec = importlib.util.spec_from_file_location("_search_helpers", Path(__file__).with_name("helpers.py"))
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

TINY = ("--hidden", "12", "--nu", "4", "--chunk", "20", "--batch", "4", "--epochs", "2")


@pytest.fixture
def fails(tmp_path, monkeypatch, capfd):
    """One line that says what, and exit code 2."""
    monkeypatch.chdir(tmp_path)

    def fails(*words):
        assert cli.main(["search", *map(str, words)]) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1, error
        return error

    return fails


def serial(*words):
    """A search in this process; what it said. Workers start in processes of their own in other tests."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(["search", "--executor", "serial", *map(str, words)]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def done(midis, tmp_path_factory):
    """A search of nine trials in this process, and what was printed."""
    folder = tmp_path_factory.mktemp("search") / "s"
    return folder, serial(midis, "--trials", "9", *TINY, "--seed", "5", "-o", folder)


def test_a_search_ends_with_the_test_of_the_best_alone(done):
    folder, out = done
    trials = helpers.assert_whole(folder, 9)
    best = min(trials, key=lambda t: t.valid)
    lines = out.splitlines()
    assert lines[0] == f"search {folder}"
    assert sorted(int(line.split()[1]) for line in lines[1:10]) == list(range(9))
    assert lines[10] == f"best trial {best.number}: valid {best.valid:.3f}, {best.folder}"
    test = Run(best.folder).result.test.nll_per_step
    assert lines[11] == f"test NLL {test:.3f} nats per frame"
    assert lines[12:] == [f"report {folder / 'report.html'}"]
    fixed = {"hidden": 12, "nu": 4}
    drawn = [draw(PAPER, 5, number, fixed) for number in range(9)]
    assert [{name: getattr(c, name) for name in PAPER.rows} for c in helpers.configs(folder)] == drawn


def test_the_page_stands_alone(done):
    folder, _ = done
    page = (folder / "report.html").read_text("utf-8")
    assert "<script" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    work = helpers.opened(folder)
    drawn = [name for name in PAPER.rows if any(name in t.options for t in work.trials)]
    assert len(pictures) == len(drawn) + 2
    for picture in pictures:
        ElementTree.fromstring(picture)
    for trial in work.trials:
        assert f"<td>{trial.number}</td><td>finished</td>" in page
    # No test figure but that of the best.
    for trial in work.trials:
        test = f"{Run(trial.folder).result.test.nll_per_step:.3f}"
        shown = test in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
        assert shown or trial.number != work.best.number
    shares = importances(work.study)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares.keys() <= set(drawn)


def test_a_finished_search_is_extended(done, capfd):
    folder, out = done
    here = ("search", "--executor", "serial", "--resume", str(folder))
    assert cli.main(here) == 0
    assert capfd.readouterr().out.splitlines()[-3:] == out.splitlines()[-3:]
    before = helpers.learnt(folder)
    assert cli.main([*here, "--trials", "10"]) == 0
    helpers.assert_whole(folder, 10)
    assert helpers.learnt(folder)[:9] == before


def test_ctrl_c_saves_and_resume_goes_on(midis, tmp_path):
    folder = tmp_path / "s"
    words = (midis, "--trials", "3", *TINY[:-1], "400", "--workers", "1", "-o", folder)
    with helpers.start(*words, start_new_session=True) as process:
        helpers.until(lambda: (folder / "trials" / "000" / "metrics.jsonl").exists())
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does: to the workers too.
        out, error = process.communicate(timeout=600)
    assert process.returncode == 130, error
    assert out.splitlines()[-1] == f"saved; resume with: fastdropout search --resume {folder}"
    assert error == ""
    states = [t.state for t in helpers.opened(folder).trials]
    assert states == ["running", "waiting", "waiting"]
    assert Run(folder / "trials" / "000").checkpoint("last").state.counters.updates > 0


def test_faults_are_one_line_and_leave_nothing_behind(midis, tmp_path, done, fails):
    assert "space must be 'paper', 'wide' or 'structured', got 'huge'" in fails(midis, "--space", "huge")
    assert "sampler must be 'random' or 'tpe'" in fails(midis, "--sampler", "grid")
    assert "executor must be one of" in fails(midis, *TINY, "--executor", "slurm")
    assert "nu must be below hidden" in fails(midis, "--hidden", "12", "--nu", "15")
    assert "hiden is unknown, did you mean hidden?" in fails(midis, "--hiden", "12")
    assert "nowhere" in fails(tmp_path / "nowhere")
    assert "leave out hidden, space" in fails("--resume", done[0], "--space", "wide", "--hidden", "3")
    assert "has no search.json" in fails("--resume", tmp_path)
    assert "ray is for the executor ray" in fails(midis, "--ray", "auto", "--executor", "serial")
    assert "give its storage too" in fails(midis, "--study", "mine")
    assert not (tmp_path / "searches").exists()


def test_wide_and_tpe_and_pruning(midis, tmp_path):
    words = ("--space", "wide", "--sampler", "tpe", "--prune", "--trials", "12", "--executor", "serial")
    assert cli.main(["search", str(midis), *words, *TINY[:-1], "4", "-o", str(tmp_path / "s")]) == 0
    trials = helpers.assert_whole(tmp_path / "s", 12)
    assert {"finished", "pruned"} <= {t.state for t in trials}


def test_32_trials_on_the_embedded_corpus(tmp_path):
    words = ("--hidden", "12", "--nu", "4", "--pieces", "1", "--epochs", "1")
    helpers.search("bach", *words, "-o", tmp_path / "s")
    trials = helpers.assert_whole(tmp_path / "s", 32)
    assert {t.state for t in trials} == {"finished"}
    assert len({repr(t.options) for t in trials}) == 32


@helpers.needs_ray
def test_on_a_ray_cluster(midis, tmp_path):
    words = (midis, "--trials", "4", *TINY, "--seed", "1")
    with helpers.ray_cluster(2) as (address, _):
        helpers.search(*words, "--ray", address, "-o", tmp_path / "ray")
    serial(*words, "-o", tmp_path / "serial")
    helpers.assert_whole(tmp_path / "ray", 4)
    assert helpers.configs(tmp_path / "ray") == helpers.configs(tmp_path / "serial")
    assert helpers.learnt(tmp_path / "ray") == helpers.learnt(tmp_path / "serial")


@helpers.needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_no_cluster_is_told_at_once(address, midis, fails):
    """Ray by itself tries for many minutes."""
    assert f"no Ray cluster at {address} (" in fails(midis, *TINY, "--ray", address)


def test_the_help_comes_at_once():
    """Without torch or optuna."""
    program = (
        "import sys; from fastdropout.music.cli import main; main(['search', '--help']);"
        "print([name for name in ('torch', 'optuna', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--trials" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("width", [60, 80, 130])
def test_the_live_table_keeps_its_narrow_columns(width, tmp_path):
    """Of a line too long for the terminal only what was drawn is cut."""
    from rich.console import Console

    from fastdropout.music.cli.search import _table
    from fastdropout.music.study.search.loop import Trial

    trials = [
        Trial(n, "finished", tmp_path, draw(PAPER, seed=0, number=n), 7.125 + n, 3, 90.0) for n in range(12)
    ]
    console = Console(width=width)
    with console.capture() as shown:
        console.print(_table(trials, "12/12 ended", 20))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) == width
    for word in ("trial", "state", "epochs", "valid", "min", "drawn"):
        assert any(word in line.split() for line in lines)
    for trial in trials:
        row = next(line for line in lines if f" {trial.valid:.3f} " in line)
        assert [cell.strip() for cell in row.split("│")[1:6]] == [
            str(trial.number),
            "finished",
            "3",
            f"{trial.valid:.3f}",
            "1.5",
        ]
