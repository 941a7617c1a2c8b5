"""The JSON files of a run folder, whatever they hold."""

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest

from fastdropout.errors import RunError
from fastdropout.music.study.report import report_html
from fastdropout.music.training import Run, make_config, train
from fastdropout.music.training import records as module
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.records import About, Result, check, read_json, read_lines


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    small = {"hidden": 6, "nu": 2, "chunk": 10, "batch": 4, "epochs": 2, "threads": 1}
    return train(make_config(small), corpus=corpus, out=tmp_path_factory.mktemp("records") / "r")


@pytest.fixture
def run(trained, tmp_path):
    return Run(shutil.copytree(trained.path, tmp_path / "r"))


def edited(path, *place, value):
    """Set one value inside a JSON file."""
    content = json.loads(path.read_text())
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path.write_text(json.dumps(content))


def test_what_was_written_is_read(run):
    again = Run(run.path)
    assert again.about == run.about
    assert again.result == run.result
    assert again.metrics == run.metrics
    assert run.result.scores == (run.result.valid, run.result.test)
    assert read_json(run.path / "result.json").keys() == {
        *("epochs", "updates", "best_epoch", "diverged", "seconds", "parameters", "valid", "test")
    }


EDITS = [
    (("epochs",), "two", "epochs must be a valid integer, got 'two'"),
    (("epochs",), -1, "epochs must be greater than or equal to 0, got -1"),
    (("epochs",), 10**400, "epochs"),
    (("seconds",), None, "seconds must be a valid number, got None"),
    (("seconds",), 1e300, "seconds must be a number within 1e100 of zero"),
    (("test",), [], r"test must be a JSON object, got \[\]"),
    (("test",), None, "valid and test must both be there, or neither"),
    (
        ("test", "nll_per_step"),
        float("nan"),
        "test.nll_per_step must be a finite number, got nan",
    ),
    (
        ("test", "nll_per_step"),
        float("inf"),
        "test.nll_per_step must be a finite number, got inf",
    ),
    (("test", "by_piece"), [1.0], "by_piece and piece_frames must be of one length"),
    (("test", "by_piece"), {"a": 1}, "test.by_piece must be a valid list"),
    (("test", "calibration", "count"), [], "must be of one number of bins"),
    (("test", "calibration", "frequency", 0), None, "a bin that is not empty"),
    (("test", "calibration", "frequency", 0), 1.5, "must be less than or equal to 1, got 1.5"),
    (("diverged",), "yes", "diverged must be a valid boolean, got 'yes'"),
]


@pytest.mark.parametrize(("place", "value", "told"), EDITS)
def test_edited_results_are_refused_in_a_line(run, place, value, told):
    edited(run.path / "result.json", *place, value=value)
    with pytest.raises(RunError, match=told) as caught:
        _ = run.result
    assert str(run.path / "result.json") in str(caught.value)
    assert "fastdropout resume" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("corpus",), "bach", "corpus must be a JSON object, got 'bach'"),
        (("corpus", "sha256"), 3, "corpus.sha256 must be a valid string, got 3"),
        (("corpus", "skipped"), [["a"]], "corpus.skipped"),
        (("versions",), ["torch"], "versions must be a JSON object"),
        (("versions", "torch"), None, "versions.torch must be a valid string, got None"),
        (("command",), "rm", "command must be a valid list, got 'rm'"),
        (("format",), 2, "has layout version 2, this program reads 1"),
        (("format",), [[9] * 99], "has layout version"),
    ],
)
def test_edited_notes_about_a_run_are_refused_in_a_line(run, place, value, told):
    edited(run.path / "run.json", *place, value=value)
    with pytest.raises(RunError, match=told):
        Run(run.path)


def test_a_line_that_is_no_record_is_refused_with_its_number(run):
    path = run.path / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n{torn\n" + second.replace('"epoch": 2', '"epoch": "2"') + "\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 3: epoch must be a valid integer, got '2'"):
        _ = run.metrics
    with pytest.warns(RuntimeWarning, match=r"line 3: .*the line was taken away"):
        run.forget_after(2)
    assert [r.epoch for r in run.metrics] == [1]


def test_torn_and_endless_lines_are_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2\n' + b"[" * 300_000 + b"\n\xff\n" + b" " * 70_000 + b'1\n{"a": 3}')
    assert [(n, content) for n, _, content in read_lines(path)] == [(1, {"a": 1}), (6, {"a": 3})]


def test_text_that_no_file_can_hold_is_written_out(corpus, tmp_path):
    about = check({"command": ["a\udcff", "\x1b[2J"], "corpus": {"name": "\ud800"}}, About, "x")
    assert about.command == [r"a\xff", r"\x1b[2J"]
    assert about.corpus.name == r"\ud800"


def test_records_of_later_versions_are_read(run):
    edited(run.path / "result.json", "new", value={"x": 1})
    edited(run.path / "run.json", "new", value=[1])
    assert Run(run.path).result == run.result
    line = run.metrics[0].to_json() | {"new": 1}
    assert check(line, Record, "x") == run.metrics[0]


def test_records_of_earlier_versions_are_read(run):
    line = run.metrics[0].to_json()
    for name in ("rewarded", "penalised", "lambda_quantiles"):
        del line[name]
    assert check(line, Record, "x").lambda_quantiles is None
    content = read_json(run.path / "result.json")
    del content["updates"]
    assert check(content, Result, "x").updates == 0
    (run.path / "run.json").unlink()
    assert Run(run.path).about == About()


def test_what_is_infinite_is_written_as_nothing(run):
    wild = run.metrics[0].__class__(**(run.metrics[0].to_json() | {"spectral_radius": float("inf")}))
    assert json.loads(json.dumps(wild.to_json(), allow_nan=False))["spectral_radius"] is None


@pytest.mark.parametrize("name", ["run.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("what", ["pipe", "endless", "folder", "loop"])
def test_what_is_no_file_is_refused_at_once(run, name, what):
    path = run.path / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if what == "endless" else path)
    with pytest.raises(RunError, match=r"cannot be read \("):
        report_html(Run(run.path))


def test_many_files_left_out_do_not_make_a_file_too_large(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_JSON", 200_000)
    crowd = type(corpus)("x", corpus.splits, skipped=tuple((f"{n}.mid", "broken") for n in range(50_000)))
    small = {"hidden": 6, "nu": 2, "chunk": 10, "epochs": 1, "threads": 1}
    run = train(make_config(small), corpus=crowd, out=tmp_path / "r")
    assert len(Run(run.path).about.corpus.skipped) == 1000


HUNGRY = """
import sys
from fastdropout.errors import RunError
from fastdropout.music.training import Run

for name in ("result", "metrics"):
    try:
        print(len(getattr(Run(sys.argv[1]), name)))
    except RunError as error:
        print(error)
"""


def test_large_files_take_no_memory(run):
    """A hole of 1 GB in the log, and 21 MB of brackets; torch itself maps about 1 GB."""
    with open(run.path / "metrics.jsonl", "r+b") as file:
        file.truncate(1 << 30)
    (run.path / "result.json").write_bytes(b"[" + b"[]," * 7_000_000 + b"[]]")
    limit = 2 << 30
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, run.path],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    refused, count = done.stdout.splitlines()
    assert "result.json: cannot be read (larger than 16 MB" in refused
    assert count == "2"
