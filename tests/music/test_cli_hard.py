"""The command under bad conditions: output that goes away, odd names, no home, Ctrl-C, no memory."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from fastdropout.music import cli
from fastdropout.music.cli import evaluate
from fastdropout.music.cli.screen import console
from fastdropout.music.data.midi import write_midi
from fastdropout.music.training import Run, generation

TINY = ("--hidden", "6", "--nu", "2", "--chunk", "20", "--batch", "4", "--threads", "1", "--epochs", "2")
PROGRAM = [sys.executable, "-m", "fastdropout"]


def tune(number):
    rng = np.random.default_rng(number)
    roll = np.zeros((24, 88), np.uint8)
    for t in range(len(roll)):
        roll[t, [20 + number + t % 8, 30 + number + rng.integers(3)]] = 1
    return roll


@pytest.fixture(scope="module")
def songs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hard") / "songs"
    for number in range(6):
        write_midi(tune(number), folder / f"{number}.mid")
    return folder


@pytest.fixture(scope="module")
def trained(songs, tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "r"
    assert cli.main(["train", str(songs), *TINY, "-o", str(run)]) == 0
    return run


@pytest.fixture
def no_reader(monkeypatch):
    """Standard output is a pipe whose reader has gone, as after `| head -1`."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield
        monkeypatch.undo()


def test_a_training_goes_on_without_its_reader(songs, tmp_path, no_reader):
    assert cli.main(["train", str(songs), *TINY, "-o", str(tmp_path / "r")]) == 0
    assert Run(tmp_path / "r").finished
    assert (tmp_path / "r" / "report.html").exists()


def test_a_training_in_front_of_head(songs, tmp_path):
    """The whole pipe, with the shell's own eyes."""
    words = [*PROGRAM, "train", str(songs), *TINY, "-o", "r"]
    line = "set -o pipefail; " + " ".join(f"'{word}'" for word in words) + " | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run r\n", "")
    assert Run(tmp_path / "r").finished


def test_scores_are_written_without_a_reader(trained, tmp_path, no_reader):
    assert cli.main(["evaluate", str(trained), "-o", str(tmp_path / "s.json"), "--pieces"]) == 0
    assert json.loads((tmp_path / "s.json").read_text())["split"] == "test"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_log_is_told_at_the_end(songs, tmp_path, monkeypatch, capfd):
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        code = cli.main(["train", str(songs), *TINY, "-o", str(tmp_path / "r")])
        monkeypatch.undo()
    assert code == 2
    assert capfd.readouterr().err == "fastdropout: standard output: No space left on device\n"
    assert Run(tmp_path / "r").finished


def test_a_terminal_of_few_letters(trained, capfd, monkeypatch):
    with open(os.dup(1), "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(["compare", str(trained)]) == 0
        monkeypatch.undo()
    assert "nats" in (out := capfd.readouterr().out) or "test" in out
    assert out.isascii()


STRANGER = """
import os, pwd, sys

def nobody(uid):
    raise KeyError(uid)

pwd.getpwuid = nobody  # As for a user without an entry.
from fastdropout.__main__ import main
sys.exit(main())
"""


def test_without_standard_output_or_a_home(trained, tmp_path):
    """What would be printed must not go into a file that got the number of standard output."""
    fonts = matplotlib.get_cachedir()  # Which take long to be listed.
    home = ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME")
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, "compare", trained, "-o", tmp_path / "page.html"],
        env={n: v for n, v in os.environ.items() if n not in home} | {"MPLCONFIGDIR": fonts},
        preexec_fn=lambda: os.close(1),
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>")


INTERRUPTED = """
import importlib.abc, os, signal, sys

where = sys.argv.pop(1)

class Press(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == where:
            os.kill(os.getpid(), signal.SIGINT)

from fastdropout.__main__ import main
sys.meta_path.insert(0, Press())
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["cyclopts", "pydantic_core", "numpy", "torch", "torch.nn.modules"])
def test_ctrl_c_during_an_import(module, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "train", "--epochs", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (130, "")


def limited(size):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


def test_too_little_memory_inside_torch_is_no_divergence(songs, tmp_path):
    words = [*PROGRAM, "train", songs, "--hidden", "8192", "--threads", "1", "-o", "r"]
    done = subprocess.run(
        words, cwd=tmp_path, preexec_fn=limited(2 << 30), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("fastdropout: not enough memory; ")
    assert done.stderr.count("\n") == 1


def test_a_bug_is_no_divergence(trained, monkeypatch, capfd):
    monkeypatch.setattr(evaluate, "chosen_network", lambda *args: {}["bug"])
    assert cli.main(["evaluate", str(trained)]) == 2
    assert "KeyError: 'bug'" in capfd.readouterr().err


def test_a_piece_that_is_too_long_is_not_drawn(trained, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(generation, "generate", lambda *args, **kwargs: pytest.fail("it was drawn"))
    words = ["generate", str(trained), "--frames", "100000", "-o", str(tmp_path / "s.mid")]
    assert cli.main(words) == 2
    assert "frames must be at most" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []


ODD = [
    "[/x]",
    r"a$\foo$ $",
    "$x",
    "[bold]b[/bold]",
    ":smile:",
    "a\x1b[2Jb",
    "\u202eabc",
    "日本",
    "_hidden",
    "-dash",
]


def test_names_are_no_orders(trained, tmp_path, capfd):
    """Runs, corpora and pieces may be called anything that a file system holds."""
    runs = [shutil.copytree(trained, tmp_path / name) for name in (*ODD, os.fsdecode(b"caf\xe9"))]
    assert cli.main(["compare", *map(str, runs), "-o", str(tmp_path / "all.html")]) == 0
    page = (tmp_path / "all.html").read_text()
    for name in (
        "x]",
        r"a$\foo$ $",
        "$x",
        "bold]",
        ":smile:",
        r"a\x1b[2Jb",
        "日本",
        "_hidden",
        r"caf\xe9",
    ):
        assert name in page
    for run in (runs[0], runs[1], runs[5], runs[-1]):
        assert cli.main(["resume", str(run)]) == 0
    out, error = capfd.readouterr()
    assert error == ""
    assert not {"\x1b", "\u202e"} & set(out)
    assert f"report {runs[0]}/report.html" in out
    assert f"report {tmp_path}/caf\\xe9/report.html" in out


def test_a_corpus_of_odd_names(tmp_path, capfd):
    folder = tmp_path / "[/x] $a$"
    for number, name in enumerate([*ODD, os.fsdecode(b"caf\xe9")]):
        write_midi(tune(number), folder / f"{name}.mid")
    (folder / "\x1b[31m.mid").write_bytes(b"MThd")
    assert cli.main(["train", str(folder), *TINY, "-o", str(tmp_path / "r")]) == 0
    for split in ("train", "valid", "test"):
        assert cli.main(["evaluate", str(tmp_path / "r"), "--split", split, "--pieces"]) == 0
    words = ["evaluate", str(tmp_path / "r"), "--split", "train", "-o", str(tmp_path / "s.json")]
    assert cli.main(words) == 0
    out, error = capfd.readouterr()
    assert error == ""
    assert "\x1b" not in out
    assert r"caf\xe9" in out
    assert (tmp_path / "r" / "report.html").exists()


def test_a_corpus_that_no_configuration_can_name(tmp_path, capfd, monkeypatch):
    folder = tmp_path / os.fsdecode(b"caf\xe9") / "songs"
    for number in range(4):
        write_midi(tune(number), folder / f"{number}.mid")
    assert cli.main(["train", str(folder), *TINY, "-o", str(tmp_path / "r")]) == 2
    monkeypatch.chdir(folder.parent)
    assert cli.main(["train", "songs", *TINY, "-o", str(tmp_path / "r")]) == 2
    first, second = capfd.readouterr().err.splitlines()
    assert "corpus must be a valid string" in first
    assert "rename the file or folder" in second
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train ~nosuchuser/midis", "is no corpus"),
        ("train --corpus-is-no-flag x", "unknown"),
        ("train {loop}", "is no corpus"),
        ("train nottingham --data ~nosuchuser", "no such folder"),
        ("train {songs} -o {loop}", "is a file, a run needs a folder"),
        ("train {songs} -o {loop}/r", "symbolic links"),
        ("evaluate {loop}", "no such run folder"),
        ("resume {loop}", "no such run folder"),
        ("report {run} -o {loop}", "symbolic links"),
        ("train --config {pipe}", "not a regular file"),
        ("train --config /dev/zero", "not a regular file"),
        ("evaluate --model {pipe}.safetensors", "not a regular file"),
        ("search {loop}", "is no corpus"),
        ("search --resume {loop}", "has no search.json"),
    ],
)
def test_odd_paths_are_one_line(words, told, songs, trained, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
    places = {name: tmp_path / name for name in ("loop", "pipe")} | {"songs": songs, "run": trained}
    code = cli.main([word.format(**places) for word in words.split()])
    error = capfd.readouterr().err
    assert code == 2
    assert told in error
    assert error.count("\n") == 1


def test_output_goes_through_links_and_into_pipes(trained, tmp_path):
    (tmp_path / "page.html").write_text("old")
    (tmp_path / "link.html").symlink_to("page.html")
    assert cli.main(["report", str(trained), "-o", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    os.mkfifo(tmp_path / "pipe")
    heard = []
    listener = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_bytes()))
    listener.start()
    assert cli.main(["evaluate", str(trained), "-o", str(tmp_path / "pipe")]) == 0
    listener.join(60)
    assert json.loads(heard[0])["split"] == "test"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.filterwarnings("always")
def test_a_damaged_checkpoint_is_a_warning_and_the_run_goes_on(songs, tmp_path, capfd, monkeypatch):
    """Stopped, its last checkpoint damaged, its best one lost: `resume` says so and ends it."""
    monkeypatch.setattr("fastdropout.music.cli.train.ctrl_c", stopping(5))
    assert cli.main(["train", str(songs), *TINY, "-o", str(tmp_path / "r")]) == 130
    monkeypatch.undo()
    (tmp_path / "r" / "last.safetensors").write_bytes(b"no")
    assert cli.main(["resume", str(tmp_path / "r")]) == 0
    out, error = capfd.readouterr()
    assert error.startswith("fastdropout: warning: ")
    assert "resumes from the checkpoint previous" in error
    assert error.count("\n") == 1
    assert "test NLL" in out


def stopping(after):
    from contextlib import contextmanager

    calls = iter(range(1, 1000))

    @contextmanager
    def ctrl_c():
        yield lambda: next(calls) >= after

    return ctrl_c


@pytest.mark.filterwarnings("always")
def test_more_threads_than_cores_is_told(songs, tmp_path, capfd):
    words = [*TINY, "-o", str(tmp_path / "r")]
    words[words.index("--threads") + 1] = "1000"
    assert cli.main(["train", str(songs), *words]) == 0
    assert "threads 1000 is more than this machine can use" in capfd.readouterr().err
    assert Run(tmp_path / "r").config.threads < 1000


def test_the_console_takes_text_as_it_is(capfd):
    before = signal.getsignal(signal.SIGINT)
    console.print("[bold]x[/bold] :smile: \x1b[31m\x9b")
    assert capfd.readouterr().out == "[bold]x[/bold] :smile: \\x1b[31m\\x9b\n"
    assert signal.getsignal(signal.SIGINT) is before
