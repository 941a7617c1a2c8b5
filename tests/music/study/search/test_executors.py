"""Every job comes out once, also of workers that are killed."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from fastdropout.errors import ConfigError
from fastdropout.music.study.search import job as module
from fastdropout.music.study.search.executors import ProcessExecutor, make_executor
from fastdropout.music.study.search.job import Job, run_job
from fastdropout.music.training import Run

KEPT = ("epoch", "train_nll_per_step", "valid_nll_per_step", "gradient_norm")


def learnt(folder):
    """What a run has learnt, without the time it took."""
    run = Run(folder)
    lines = [{name: getattr(record, name) for name in KEPT} for record in run.metrics]
    return lines, run.result.test


def collect(executor, count, limit=600, each=lambda: None):
    deadline, outcomes = time.monotonic() + limit, []
    while len(outcomes) < count and time.monotonic() < deadline:
        each()
        outcomes += executor.wait(0.1)
    assert len({key for key, _ in outcomes}) == len(outcomes) == count
    return dict(outcomes)


def until(happened, limit=600):
    deadline = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pool():
    """Two workers, who are used again: they take seconds to start."""
    with closing(make_executor("process", 2)) as executor:
        yield executor


@pytest.fixture
def executors(pool):
    return {"process": pool, "serial": make_executor("serial")}


def test_a_job_is_a_run(config, tmp_path):
    job = Job(str(tmp_path / "a"), config())
    outcome = run_job(job)
    result = Run(tmp_path / "a").result
    assert (outcome.state, outcome.epochs, outcome.reason) == ("finished", 3, "")
    assert outcome.valid == result.valid.nll_per_step
    before = (tmp_path / "a" / "result.json").stat().st_mtime_ns
    assert run_job(job) == outcome  # Nothing is trained again.
    assert (tmp_path / "a" / "result.json").stat().st_mtime_ns == before
    other = run_job(Job(str(tmp_path / "a"), config(hidden=21)))
    assert other.state == "failed"
    assert "another configuration" in other.reason


def test_a_job_pauses_and_goes_on_as_if_it_had_not(config, tmp_path):
    whole = run_job(Job(str(tmp_path / "whole"), config(epochs=5)))
    first = run_job(Job(str(tmp_path / "a"), config(epochs=5), until=2))
    assert (first.state, first.epochs) == ("paused", 2)
    assert first.valid is not None
    assert run_job(Job(str(tmp_path / "a"), config(epochs=5), until=2)) == first
    second = run_job(Job(str(tmp_path / "a"), config(epochs=5), until=4))
    assert (second.state, second.epochs) == ("paused", 4)
    last = run_job(Job(str(tmp_path / "a"), config(epochs=5), until=5))
    assert (last.state, last.valid, last.epochs) == ("finished", whole.valid, 5)
    assert learnt(tmp_path / "a") == learnt(tmp_path / "whole")


@pytest.mark.parametrize("left", [(), ("run.json",), ("run.json", ".config.toml.00.tmp")])
def test_a_folder_that_was_half_made_is_made_anew(config, tmp_path, left):
    folder = tmp_path / "a"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    assert run_job(Job(str(folder), config(epochs=1))).state == "finished"


def test_the_files_of_others_are_left_alone(config, tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    outcome = run_job(Job(str(folder), config(epochs=1)))
    assert outcome.state == "failed"
    assert "not empty" in outcome.reason
    assert (folder / "thesis.txt").read_text() == "mine"


def test_a_job_that_diverges_is_kept_as_such(config, tmp_path):
    wild = {"lr": 1000.0, "momentum": 0.99, "drop": 0, "clip": 1e12, "schedule": "none", "alpha": 0.0}
    outcome = run_job(Job(str(tmp_path / "a"), config(**wild), until=1))
    assert outcome.state == "diverged"
    assert Run(tmp_path / "a").result.diverged


def test_a_missing_corpus_halts(config, tmp_path):
    outcome = run_job(Job(str(tmp_path / "a"), config(corpus=str(tmp_path / "nowhere"))))
    assert outcome.state == "halted"
    assert "nowhere" in outcome.reason


def test_a_full_disk_halts_and_the_job_can_be_run_again(config, tmp_path, monkeypatch):
    real, saved = module.train, []

    def fill(*args, **kwargs):
        def watch(step):
            saved.append(step)
            if step.record is not None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")

        return real(*args, **kwargs | {"watch": watch})

    monkeypatch.setattr(module, "train", fill)
    job = Job(str(tmp_path / "a"), config())
    outcome = run_job(job)
    assert (outcome.state, outcome.reason) == ("halted", "disk: No space left on device")
    assert saved
    monkeypatch.undo()
    assert run_job(job).state == "finished"


def test_two_at_once_take_turns(config, tmp_path, pool):
    executor = pool
    job = Job(str(tmp_path / "a"), config())
    executor.submit(1, job)
    executor.submit(2, job)
    outcomes = collect(executor, 2)
    assert outcomes[1] == outcomes[2]
    assert outcomes[1].state == "finished"
    assert [record.epoch for record in Run(tmp_path / "a").metrics] == [1, 2, 3]


def test_whoever_waits_too_long_is_told(config, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    with module._alone(tmp_path / "a"):
        outcome = run_job(Job(str(tmp_path / "a"), config()))
    assert outcome.state == "failed"
    assert "another process trains in it" in outcome.reason


@pytest.mark.parametrize("name", ["serial", "process"])
def test_executors_agree(config, tmp_path, executors, name):
    executor = executors[name]
    for number in range(4):
        executor.submit(number, Job(str(tmp_path / str(number)), config(seed=number)))
    outcomes = collect(executor, 4)
    assert executor.wait(0.0) == []
    for number in range(4):
        alone = run_job(Job(str(tmp_path / f"alone{number}"), config(seed=number)))
        assert outcomes[number].valid == alone.valid
        assert learnt(tmp_path / str(number)) == learnt(tmp_path / f"alone{number}")


def test_a_killed_worker_is_replaced_and_its_job_goes_on(config, tmp_path, pool):
    long, executor = config(epochs=15, hidden=40), pool
    for name in ("a", "b"):
        executor.submit(name, Job(str(tmp_path / name), long, save_every=0))
    metrics = tmp_path / "a" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 2)
    victims = executor.pids
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    outcomes = collect(executor, 2)
    assert len(victims) == 2
    assert {outcome.state for outcome in outcomes.values()} == {"finished"}
    run_job(Job(str(tmp_path / "alone"), long))
    assert learnt(tmp_path / "a") == learnt(tmp_path / "b") == learnt(tmp_path / "alone")


def test_a_worker_that_is_killed_again_and_again_fails(config, tmp_path):
    executor = ProcessExecutor(1, retries=1)
    killed = []

    def kill():
        for pid in executor.pids:
            if pid not in killed:
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    try:
        executor.submit("a", Job(str(tmp_path / "a"), config(epochs=100_000)))
        outcome = collect(executor, 1, each=kill)["a"]
        assert outcome.state == "failed"
        assert outcome.reason.startswith("its worker was killed by signal 9 in each of 2 attempts")
        executor.submit("b", Job(str(tmp_path / "b"), config(epochs=1)))  # And life goes on.
        assert collect(executor, 1)["b"].state == "finished"
    finally:
        executor.close()


def test_close_saves_and_leaves_nobody_behind(config, tmp_path):
    executor = make_executor("process", 1)
    executor.submit("a", Job(str(tmp_path / "a"), config(epochs=100_000)))
    until(lambda: (tmp_path / "a" / "metrics.jsonl").exists())
    (pid,) = executor.pids
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    run = Run(tmp_path / "a")
    assert not run.finished
    # Not the last epoch's end but the very update: nothing was lost.
    assert run.checkpoint("last").state.counters.epoch >= len(run.metrics) > 0


ORPHANS = """
import sys, time
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.job import Job
from fastdropout.music.training import make_config

if __name__ == "__main__":
    executor = make_executor("process", 1)
    config = make_config(dict(corpus=sys.argv[1], hidden=20, nu=4, chunk=20, epochs=100_000, threads=1))
    executor.submit("a", Job(sys.argv[2], config))
    print(executor.pids[0], flush=True)
    time.sleep(600)
"""


def test_workers_die_with_a_killed_parent(midis, tmp_path):
    program = tmp_path / "orphans.py"
    program.write_text(ORPHANS)
    words = [sys.executable, program, midis, tmp_path / "a"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        until(lambda: (tmp_path / "a" / "metrics.jsonl").exists())
        parent.kill()
    until(lambda: not alive(worker), 10)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


HUNGRY = """
import json, sys
from fastdropout.music.study.search.job import Job, run_job
from fastdropout.music.training import make_config

for name, hidden in (("huge", 8192), ("small", 20)):
    config = make_config(dict(corpus=sys.argv[1], hidden=hidden, nu=4, epochs=1, threads=1))
    outcome = run_job(Job(sys.argv[2] + name, config))
    print(json.dumps([outcome.state, outcome.reason]))
"""


def test_a_job_out_of_memory_fails_and_the_next_goes_on(midis, tmp_path):
    limit = 2 << 30
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, midis, f"{tmp_path}/"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    huge, small = done.stdout.splitlines()
    assert huge.startswith('["failed", "out of memory'), done.stdout + done.stderr
    assert small == '["finished", ""]'


def test_what_cannot_be_made():
    with pytest.raises(ConfigError, match="executor must be one of serial, process, ray, got 'slurm'"):
        make_executor("slurm")
    with pytest.raises(ConfigError, match="workers must be at least 1, got 0"):
        make_executor("process", 0)
