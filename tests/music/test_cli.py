"""The real command, end to end."""

import contextlib
import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pytest

from fastdropout.errors import SlowPathWarning
from fastdropout.music import cli
from fastdropout.music.data.midi import read_midi, write_midi
from fastdropout.music.training import load_checkpoint

SMALL = ("--hidden", "12", "--nu", "4", "--chunk", "20", "--batch", "4", "--threads", "1")
TINY = (*SMALL, "--epochs", "3")


# What takes longer hangs; a busy machine may be ten times slower than an idle one.
PATIENCE = 600


def process(*words, cwd=None, **kwargs):
    """The command as a process of its own, which takes two seconds to import torch."""
    return subprocess.run(
        [sys.executable, "-m", "fastdropout", *map(str, words)],
        cwd=cwd,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        **kwargs,
    )


def here(*words, cwd="."):
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(map(str, words)))
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def works(*words, by=here, **kwargs):
    done = by(*words, **kwargs)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def fails(*words, by=here, **kwargs):
    """One line that says what, exit code 2, no traceback."""
    done = by(*words, **kwargs)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("fastdropout: ")
    return done.stderr


@pytest.fixture(scope="module")
def midis(tmp_path_factory):
    """A folder of MIDI files, one of them broken."""
    folder = tmp_path_factory.mktemp("midi") / "my songs"
    for number in range(12):
        rng = np.random.default_rng(number)
        roll = np.zeros((30 + number, 88), np.uint8)
        for t in range(len(roll)):
            roll[t, [20 + number + t % 8, 30 + number + rng.integers(3)]] = 1
        write_midi(roll, folder / f"{number}.mid")
    (folder / "broken.mid").write_bytes(b"MThd nothing more")
    return folder


@pytest.fixture(scope="module")
def trained(midis, tmp_path_factory):
    """A run on the MIDI folder, and what was printed."""
    where = tmp_path_factory.mktemp("work")
    out = works("train", midis, *TINY, "-o", "first", cwd=where)
    return where / "first", out


def test_train_on_a_folder_ends_with_the_report(trained):
    run, out = trained
    lines = out.splitlines()
    assert lines[0].startswith("left out 1 files, such as broken.mid: ")
    assert lines[1] == "run first"
    assert lines[-2].startswith("test NLL ")
    assert lines[-1] == "report first/report.html"
    assert "<svg" in (run / "report.html").read_text()
    assert "my songs" in (run / "config.toml").read_text()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_train_on_the_embedded_corpus(tmp_path):
    """All of the chorales are read, a few of them are trained on."""
    out = works("train", "--pieces", "4", *TINY, by=process, cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("bach-")
    assert out.splitlines()[-1] == f"report runs/{run.name}/report.html"
    assert "Not comparable" in (run / "report.html").read_text()
    page = works("evaluate", run, "--split", "valid", "--pieces")
    assert page.startswith("valid NLL ")
    assert "bwv" in page


def test_evaluate(trained, tmp_path):
    run, out = trained
    said = works("evaluate", run, "-o", tmp_path / "e.json", "--pieces")
    assert said.splitlines()[0].split(" nats")[0] == out.splitlines()[-2].split(" nats")[0]
    assert ".mid" in said
    content = json.loads((tmp_path / "e.json").read_text())
    frames = [nll for piece in content["by_frame"] for nll in piece]
    assert np.mean(frames) == pytest.approx(content["nll_per_step"], abs=1e-4)
    more = works("evaluate", run, "--split", "train", "--score-first", "--which", "last")
    assert more.startswith("train NLL ")


def test_generate(trained, tmp_path):
    run, _ = trained
    works(
        "generate", run, "-o", tmp_path / "song.mid", "--frames", "40", "--prime", "1", "--prime-frames", "8"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["song.mid", "song.png", "song.wav"]
    assert len(read_midi(tmp_path / "song.mid")) <= 40
    with wave.open(str(tmp_path / "song.wav")) as file:
        assert file.getnframes() / file.getframerate() == pytest.approx(40 * 60 / 80 / 2 + 0.5, abs=0.1)
    first = (tmp_path / "song.mid").read_bytes()
    works("generate", run, "-o", tmp_path / "song.mid", "--frames", "40", "--seed", "1")
    assert (tmp_path / "song.mid").read_bytes() != first


def test_report_and_compare(trained, midis, tmp_path):
    run, _ = trained
    works("report", run, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    works("train", midis, *TINY, "--drop", "0", "-o", tmp_path / "plain")
    out = works("compare", run, tmp_path / "plain", "-o", tmp_path / "both.html")
    assert "drop_hidden" in out
    assert "plain" in (tmp_path / "both.html").read_text()


def test_data_lists_what_is_there(tmp_path):
    out = works("data", "--data", tmp_path)
    assert "bach" in out
    assert "does not hold nottingham" in out


def test_data_get_needs_a_folder_and_a_name(tmp_path, monkeypatch):
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)
    assert "--data DIR or $FASTDROPOUT_DATA" in fails("data", "get", "nottingham")
    assert "allowed are piano-midi" in fails("data", "get", "bach", "--data", tmp_path)
    out = fails("data", "get", "nottingham", "--data", tmp_path, "--url", "http://127.0.0.1:1/")
    assert "could not be fetched" in out


def test_the_config_of_a_run_reruns_it(trained, tmp_path):
    run, _ = trained
    works("train", "--config", run / "config.toml", "-o", tmp_path / "again", cwd=tmp_path)
    ours, theirs = (load_checkpoint(r / "last.safetensors").state for r in (run, tmp_path / "again"))
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert a.equal(b)
    # Flags go over the file.
    works("train", "--config", run / "config.toml", "--epochs", "1", "--drop", "0", "-o", tmp_path / "c")
    assert "drop_hidden = 0\n" in (tmp_path / "c" / "config.toml").read_text().replace("0.0\n", "0\n")


def test_mistakes_are_one_line():
    words = ("--hiden", "3", "--lr", "fast", "--drop-output", ".5", "--no-propagate-output")
    told = fails("train", *words, by=process)
    assert "hiden is unknown, did you mean hidden?" in told
    assert "lr must be a valid number, got 'fast'" in told
    assert "drop_output must be 0 where propagate_output is false" in told


MISTAKES = {
    "train no-such-thing": "no corpus, no such file and no folder",
    "train {empty}": "holds no .mid",
    "train nottingham": "is not shipped",
    "train --config {empty}/x.toml": "cannot be read",
    "train --pieces 2 --hidden 20 -o {run}": "is not empty",
    "resume {empty}/x": "no such run folder",
    "report {empty}": "not a run folder",
    "generate {run} -o {empty}/song.mp3": "must end in .mid",
    "generate {run} --prime 999 -o {empty}/s.mid": "prime must lie in 1..",
    "generate {run} --temperature -1 -o {empty}/s.mid": "temperature",
    "generate {run} --frames 0 -o {empty}/s.mid": "frames must lie in",
    "trian": "trian",
    "evaluate": "give a run folder or --model NAME",
    "evaluate {run} --split tset": "tset",
    "evaluate {run} --which first": "first",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)
    run, _ = trained
    code = cli.main([word.format(run=run, empty=tmp_path) for word in words.split()])
    told = capsys.readouterr().err
    assert code == 2
    assert told.startswith("fastdropout: ")
    assert told.count("\n") == 1
    assert MISTAKES[words] in told
    assert not os.listdir(tmp_path)


def test_a_damaged_checkpoint_is_one_line(trained, tmp_path):
    run, _ = trained
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.toml", "run.json", "metrics.jsonl"):
        (broken / name).write_bytes((run / name).read_bytes())
    (broken / "last.safetensors").write_bytes((run / "last.safetensors").read_bytes()[:-30])
    before = sorted(os.listdir(broken))
    assert "not a readable safetensors file" in fails("resume", broken)
    assert sorted({*os.listdir(broken)} - {".lock"}) == before


def start(*words, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "fastdropout", *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path, process):
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_saves_and_says_how_to_go_on(midis, tmp_path):
    process = start(
        "train", midis, *SMALL, "--epochs", "100000", "--schedule", "none", "-o", "r", cwd=tmp_path
    )
    try:
        wait_for(tmp_path / "r" / "best.safetensors", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == ""
    assert out.splitlines()[-1] == "saved; resume with: fastdropout resume r"
    state = load_checkpoint(tmp_path / "r" / "last.safetensors").state
    assert state.counters.updates > 0
    assert not (tmp_path / "r" / "result.json").exists()


def limit_files(size):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Then a write fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_no_room_is_one_line_and_loses_nothing(midis, tmp_path):
    """The log grows over a limit while checkpoints still fit, as on a disk that is nearly full."""
    words = ("train", midis, *SMALL, "--epochs", "2000", "-o", "r")
    told = fails(*words, by=process, cwd=tmp_path, preexec_fn=limit_files(60_000))
    assert "metrics.jsonl: File too large" in told or "No space" in told
    assert "fastdropout resume r" in told
    before = load_checkpoint(tmp_path / "r" / "last.safetensors").state
    assert before.counters.epoch > 10
    assert not [name for name in os.listdir(tmp_path / "r") if name.endswith(".tmp")]


def test_no_room_for_a_checkpoint(midis, tmp_path):
    words = ("train", midis, *TINY, "-o", "r")
    told = fails(*words, by=process, cwd=tmp_path, preexec_fn=limit_files(4000))
    assert "last.safetensors: File too large" in told
    assert sorted(os.listdir(tmp_path / "r")) == [".lock", "config.toml", "run.json"]
    works("resume", "r", cwd=tmp_path)  # When there is room again.


def test_a_full_disk_inside_the_process(midis, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert cli.main(["train", str(midis), *SMALL, "--epochs", "2", "-o", "r"]) == 0
    before = (tmp_path / "r" / "report.html").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["report", "r"]) == 2
    assert capsys.readouterr().err == "fastdropout: r/report.html: No space left on device\n"
    assert (tmp_path / "r" / "report.html").read_bytes() == before


HEAVY = ("torch", "numpy", "music21", "matplotlib", "optuna", "symusic", "jinja2", "pandas", "scipy")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["data", "--help"]])
def test_help_imports_nothing_heavy(words):
    code = (
        "import sys; from fastdropout.music.cli import main; code = main(sys.argv[1:]);"
        f"heavy = [name for name in {HEAVY} if name in sys.modules];"
        "print('heavy', heavy, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == "heavy []\n"
    assert done.stdout.strip()


def test_help_answers_at_once():
    """0.3 s of the processor, whatever else it has to do; the best of several."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        works("--help", by=process)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.6


def test_every_command_has_help():
    for name in ("train", "resume", "evaluate", "generate", "report", "compare", "data"):
        assert "Usage: fastdropout" in works(name, "--help")


def test_a_reader_that_goes_away_is_no_error():
    path = Path(sys.executable)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {path} -m fastdropout train --help | head -1"],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


def test_a_warning_is_one_line(capsys, monkeypatch):
    import warnings

    def warn(self, *args, **kwargs):
        warnings.warn("two\n  lines", SlowPathWarning, stacklevel=1)

    monkeypatch.setattr(cli.App, "__call__", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert cli.main([]) == 0
        assert warnings.showwarning is before
    assert capsys.readouterr().err == "fastdropout: warning: two lines\n"
