"""Killed drivers, workers and nodes; trials that diverge or are too large; a full disk: 32 of 32.

The 32 trials are on the embedded corpus, all of the table drawn but the number of units, for seconds each.
"""

import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("_search_helpers", Path(__file__).with_name("helpers.py"))
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

BUDGET = ("--hidden", "60", "--pieces", "2", "--epochs", "4", "--batch", "2")
COUNT = 32
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The search with nothing in its way, one trial after the other."""
    folder = tmp_path_factory.mktemp("calm") / "s"
    helpers.search("bach", "--trials", COUNT, *BUDGET, "--executor", "serial", "-o", folder)
    helpers.assert_whole(folder, COUNT)
    return folder


def assert_like(folder, calm):
    trials = helpers.assert_whole(folder, COUNT)
    assert {t.state for t in trials} == {"finished"}
    assert helpers.configs(folder) == helpers.configs(calm)
    assert helpers.learnt(folder) == helpers.learnt(calm)


def test_the_same_on_processes(calm, tmp_path):
    out = helpers.search("bach", "--trials", COUNT, *BUDGET, "-o", tmp_path / "s")
    assert out.count("test NLL") == 1
    assert_like(tmp_path / "s", calm)


@helpers.needs_ray
def test_the_same_on_ray(calm, tmp_path):
    with helpers.ray_cluster(2) as (address, _):
        helpers.search("bach", "--trials", COUNT, *BUDGET, "--ray", address, "-o", tmp_path / "s")
    assert_like(tmp_path / "s", calm)


def test_drivers_and_workers_are_killed(calm, tmp_path):
    folder, rng, killed = tmp_path / "s", random.Random(0), {"driver": 0, "worker": 0}
    words = ("bach", "--trials", COUNT, *BUDGET, "-o", folder)
    while True:
        with helpers.start(*words) as driver:
            before = seen = helpers.ended(folder)
            while killed["driver"] < 6 and seen < before + 4 and driver.poll() is None:
                time.sleep(rng.random() * 0.3)
                workers = sorted(helpers.children(driver.pid))
                if workers and helpers.ended(folder) > seen:
                    seen = helpers.ended(folder)
                    # The oldest: one that has just started in place of another shall come to its trial.
                    os.kill(workers[0], signal.SIGKILL)
                    killed["worker"] += 1
            if killed["driver"] < 6:
                driver.kill()
                killed["driver"] += 1
            driver.communicate()
        if driver.returncode == 0:
            break
        assert driver.returncode == -signal.SIGKILL
        # A driver that was killed before it had a folder is begun again.
        words = ("--resume", folder) if (folder / "search.json").exists() else words
    assert killed["driver"] == 6
    assert killed["worker"] >= 3
    assert_like(folder, calm)


@helpers.needs_ray
def test_ray_nodes_workers_and_drivers_are_killed(calm, tmp_path):
    folder = tmp_path / "s"
    with helpers.ray_cluster(3) as (address, order):
        with helpers.start("bach", "--trials", COUNT, *BUDGET, "--ray", address, "-o", folder) as driver:
            for count in (3, 8):
                helpers.until(lambda count=count: helpers.ended(folder) >= count)
                order("kill")
                order("add")
                helpers.until(helpers.kill_ray_worker)
            helpers.until(lambda: helpers.ended(folder) >= 14)
            driver.kill()
            driver.communicate()
        with helpers.start("--resume", folder, "--ray", address) as driver:
            helpers.until(lambda: helpers.ended(folder) >= 20)
            order("kill")
            out, error = driver.communicate(timeout=600)
        assert driver.returncode == 0, out + error
    assert_like(folder, calm)


WILD = """
import sys
from contextlib import closing
from optuna.distributions import CategoricalDistribution
from fastdropout.music.study.search import space
from fastdropout.music.study.search.loop import Search
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.folder import Settings, create_folder

if __name__ == "__main__":
    rows = dict(space.PAPER.rows)
    rows["hidden"] = space.Row(CategoricalDistribution((12, 8192)))
    rows["lr"] = space.Row(CategoricalDistribution((0.01, 1000.0)))
    space.SPACES["paper"] = space.Space("paper", rows)
    plain = dict(rule="fast", drop_input=0.0, drop_hidden=0.0, propagate_output=False)
    fixed = dict(plain, nu=4, chunk=20, batch=4, epochs=2, clip=1e12, alpha=0.0, momentum=0.99)
    settings = Settings(corpus=sys.argv[1], trials=32, options=fixed)
    with closing(make_executor("process", 2)) as executor:
        Search(create_folder(settings, sys.argv[2])).run(executor)
"""


def test_trials_that_diverge_or_are_too_large(midis, tmp_path):
    program, limit = tmp_path / "wild.py", 2 << 30
    program.write_text(WILD)
    done = subprocess.run(
        [sys.executable, program, midis, tmp_path / "s"],
        env=helpers.ENV,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for trial in helpers.assert_whole(tmp_path / "s", COUNT):
        huge, fast = trial.options["hidden"] == 8192, trial.options["lr"] == 1000.0
        assert trial.state == ("failed" if huge else "diverged" if fast else "finished")
        assert trial.reason.startswith("out of memory") == huge


def mount(folder, size, again=""):
    words = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "tmpfs", folder]
    return subprocess.run(words, capture_output=True).returncode == 0


def test_a_full_disk(calm, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mount(disk, "5m"):
        pytest.skip("only root can mount a small disk")
    try:
        said = helpers.search("bach", "--trials", COUNT, *BUDGET, "-o", disk / "s", code=2)
        line = said.splitlines()[-1]
        assert "No space left on device" in line or "disk is full" in line, said
        assert line.endswith(f"once this is fixed: fastdropout search --resume {disk / 's'}")
        assert 0 < helpers.ended(disk / "s") < COUNT
        helpers.search("--resume", disk / "s", code=2)  # Nothing has changed, and nothing is lost.
        assert mount(disk, "1g", "remount,")
        helpers.search("--resume", disk / "s")
        assert_like(disk / "s", calm)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)  # Lazily: our own look at the study is open.
