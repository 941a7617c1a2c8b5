"""The real command on real executors, and what must be true of a search that has ended."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fastdropout.music.study.search.folder import SearchFolder
from fastdropout.music.study.search.loop import Search
from fastdropout.music.training import Run

HERE = Path(__file__).parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "RAY_DISABLE_IMPORT_WARNING": "1"}

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'fastdropout[ray]'"
)


def start(*words, **kwargs):
    """A search in a process of its own."""
    command = [sys.executable, "-m", "fastdropout", "search", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENV, **pipes | kwargs)


def search(*words, code=0, timeout=600, **kwargs):
    """A search from beginning to end; what it said."""
    with start(*words, **kwargs) as process:
        out, error = process.communicate(timeout=timeout)
    assert process.returncode == code, out + error
    return out + error if code else out


def opened(folder, storage=None):
    return Search(SearchFolder(folder), storage)


def configs(folder):
    return [Run(path).config for path in sorted((folder / "trials").glob("[0-9]*"))]


def learnt(folder):
    """What every run has learnt, without the time it took."""
    kept = ("epoch", "train_nll_per_step", "valid_nll_per_step", "spectral_radius", "gradient_norm")
    runs = [Run(path) for path in sorted((folder / "trials").glob("[0-9]*"))]
    return [
        ([{k: getattr(m, k) for k in kept} for m in run.metrics], run.result.test.nll_per_step)
        for run in runs
    ]


def assert_whole(folder, count, storage=None):
    """Every trial ended and was recorded once; finished ones are whole runs; nothing is left of the dead."""
    work = opened(folder, storage)
    trials = work.trials
    assert [t.number for t in work.study.trials] == [t.number for t in trials] == list(range(count))
    assert all(t.state.is_finished() for t in work.study.trials)
    assert len(list((folder / "trials").glob("[0-9]*"))) == count
    for trial in trials:
        assert trial.state in ("finished", "diverged", "pruned", "failed")
        if trial.state == "finished":
            run = Run(trial.folder)
            assert trial.valid == run.result.valid.nll_per_step
            assert [m.epoch for m in run.metrics] == list(range(1, run.result.epochs + 1))
    assert not list(folder.rglob("*.tmp"))
    return trials


def ended(folder):
    """How many runs of a search have ended, seen from outside."""
    return len(list(folder.glob("trials/*/result.json")))


def until(happened, limit=600):
    deadline = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid):
    """The workers of a driver."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return [child for child in found if b"spawn_main" in _command(child)]


def kill_ray_worker():
    """Kill a process of Ray's that trains a trial; whether there was one. Ray names it after its task."""
    for path in Path("/proc").glob("[0-9]*"):
        if _command(path.name).startswith(b"ray::_single_threaded"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)
                return True
    return False


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # Gone since.


@contextmanager
def ray_cluster(nodes):
    """A cluster of one core a node; yields its address and a function that gives it orders."""
    command = [sys.executable, HERE / "cluster.py", str(nodes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=ENV, **pipes) as process:

        def order(word):
            process.stdin.write(word + "\n")
            process.stdin.flush()
            while "done" not in (line := process.stdout.readline()):
                assert line

        try:
            address = process.stdout.readline().strip()
            assert address
            yield address, order
        finally:
            order("end")
            process.wait(60)
