"""Searches in one process: what is drawn, told, pruned, resumed."""

import errno
import json
import os
from pathlib import Path

import pytest

from fastdropout.errors import ConfigError, RunError
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.folder import SearchFolder, Settings, create_folder, without_password
from fastdropout.music.study.search.job import Outcome
from fastdropout.music.study.search.loop import Search, check, hopeless, rungs
from fastdropout.music.study.search.space import PAPER, draw
from fastdropout.music.training import Run

SMALL = {"hidden": 12, "nu": 4, "chunk": 20, "batch": 4, "epochs": 2}


@pytest.fixture
def make(midis, tmp_path):
    def make(where="s", **change):
        options = SMALL | change.pop("options", {})
        settings = Settings(corpus=str(midis), options=options, **{"trials": 5} | change)
        return Search(create_folder(settings, tmp_path / where))

    return make


def reopened(search, trials=None):
    folder = SearchFolder(search.folder.path)
    if trials:
        folder.extend(trials)
    return Search(folder)


class Scripted:
    """An executor that answers what it is told to; records what it was asked."""

    def __init__(self, answer, slots=1):
        self.answer, self.slots, self.asked, self.queue = answer, slots, [], []

    def submit(self, key, job):
        self.asked.append((key, job))
        self.queue.append((key, job))

    def wait(self, timeout):
        key, job = self.queue.pop(0)
        return [(key, self.answer(key, job))]

    def close(self):
        pass


def scores(key, job):
    return Outcome("finished", 10.0 - key % 4, job.config.epochs, 1.0)


def test_a_search_of_real_runs(make):
    search = make()
    seen = []
    search.run(make_executor("serial"), seen.append)
    trials = search.trials
    assert [t.state for t in trials] == ["finished"] * 5
    for trial in trials:
        run = Run(trial.folder)
        assert trial.valid == run.result.valid.nll_per_step
        drawn = draw(PAPER, 0, trial.number, SMALL)
        assert {name: getattr(run.config, name) for name in drawn} == drawn
        assert run.config == search.config(trial.number)
        not_fast = {"drop_output"} if not drawn["propagate_output"] else set()
        assert trial.options.keys() == PAPER.rows.keys() - SMALL.keys() - not_fast
    assert search.best.valid == min(t.valid for t in trials)
    assert [t.state for t in seen[0]] == ["running"] + ["waiting"] * 4


def test_a_finished_search_does_nothing_more_until_it_is_extended(make):
    search = make()
    first = Scripted(scores)
    search.run(first)
    assert [key for key, _ in first.asked] == [0, 1, 2, 3, 4]
    again = Scripted(scores)
    reopened(search).run(again)
    assert again.asked == []
    more = Scripted(scores)
    longer = reopened(search, 7)
    longer.run(more)
    assert [key for key, _ in more.asked] == [5, 6]
    assert longer.best.number == 3
    with pytest.raises(ConfigError, match="trials must be at least the 7 of the search, got 3"):
        longer.folder.extend(3)


def test_the_best_is_the_lowest_valid_of_those_that_finished(make):
    endings = {
        0: Outcome("diverged", 1.0, 2),
        1: Outcome("failed", reason="out of memory (it was huge)"),
        2: Outcome("finished", 9.0, 2),
        3: Outcome("finished", 8.0, 2),
        4: Outcome("diverged"),
    }
    search = make()
    search.run(Scripted(lambda key, job: endings[key]))
    trials = search.trials
    assert [t.state for t in trials] == [endings[n].state for n in range(5)]
    assert trials[1].reason == "out of memory (it was huge)"
    assert search.best.number == 3
    states = [t.state.name for t in search.study.trials]
    assert states == ["PRUNED", "FAIL", "COMPLETE", "COMPLETE", "PRUNED"]


def test_a_driver_that_died_is_followed_by_one_that_goes_on(make):
    class Died(Exception):
        pass

    def die(key, job):
        if key == 2:
            raise Died
        return scores(key, job)

    search = make()
    first = Scripted(die, slots=2)
    with pytest.raises(Died):
        search.run(first)
    # 2 and 3 were running, and nothing was heard of them.
    assert [t.state for t in search.trials] == ["finished", "finished", "running", "running", "waiting"]
    second = Scripted(scores)
    resumed = reopened(search)
    resumed.run(second)
    assert [key for key, _ in second.asked] == [2, 3, 4]
    assert second.asked[0] == first.asked[2]
    assert [t.state for t in resumed.trials] == ["finished"] * 5


@pytest.mark.parametrize("at", ["set_trial_state_values", "_set_trial_param", "set_trial_user_attr"])
def test_a_driver_that_dies_while_it_writes(make, at, monkeypatch):
    """After each of the first writes of a kind, then again and again: always the same five trials."""
    calm = make("calm")
    calm.run(Scripted(scores))
    search = make("wild")
    ran = []

    def note(key, job):
        ran.append((key, job.config))
        return scores(key, job)

    class Died(BaseException):
        pass

    deaths = 0
    for after in (1, 2, 3, 5, 7, 11, 10_000):
        search = reopened(search)
        real, left = getattr(search._storage, at), [after]

        def write(*args, real=real, left=left, **kwargs):
            out = real(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise Died
            return out

        monkeypatch.setattr(search._storage, at, write)
        try:
            search.run(Scripted(note))
        except Died:
            deaths += 1
    assert deaths >= 2
    assert [t.state for t in search.trials] == ["finished"] * 5
    assert [t.params for t in search.study.trials] == [t.params for t in calm.study.trials]
    configs = dict(ran)
    assert all(configs[key] == config for key, config in ran)
    assert len(configs) == 5


def test_what_stops_is_not_told(make):
    search = make()
    asked = []
    search.run(Scripted(lambda key, job: asked.append(key) or Outcome("stopped")), stop=lambda: bool(asked))
    assert [t.state for t in search.trials] == ["running"] + ["waiting"] * 4
    again = Scripted(scores)
    reopened(search).run(again)
    assert [key for key, _ in again.asked] == [0, 1, 2, 3, 4]


def test_what_halts_ends_the_search_with_a_sentence(make):
    search = make()
    executor = Scripted(lambda key, job: Outcome("halted", reason="disk: No space left on device"))
    with pytest.raises(RunError, match=r"No space left.*once this is fixed: fastdropout search --resume"):
        search.run(executor)
    assert [t.state for t in search.trials] == ["running"] + ["waiting"] * 4


def test_a_disk_that_is_full_for_the_driver_itself(make, monkeypatch):
    search = make()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "trials/000")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        with pytest.raises(
            RunError, match=r"trials/000: No space left.*once this is fixed: fastdropout search"
        ):
            search.run(Scripted(scores))
    reopened(search).run(Scripted(scores))
    assert [t.state for t in search.trials] == ["finished"] * 5


def test_one_driver_at_a_time(make):
    search = make()

    def intrude(key, job):
        with pytest.raises(RunError, match="another process drives this search"):
            reopened(search).run(Scripted(scores))
        return scores(key, job)

    search.run(Scripted(intrude))
    assert [t.state for t in search.trials] == ["finished"] * 5


def test_rungs_and_who_is_hopeless():
    assert rungs(500) == [55, 166]
    assert rungs(1) == []
    assert not hopeless(3.0, [3.0])
    assert hopeless(3.0, [3.0, 2.0])
    assert not hopeless(2.0, [3.0, 2.0])
    assert not hopeless(2.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert hopeless(3.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_pruning_gives_up_the_hopeless(make):
    search = make(trials=9, prune=True, options={"epochs": 9})
    asked = []

    def answer(key, job):
        asked.append((key, job.until))
        worth = (5, 6, 4, 7, 8, 9, 3, 10, 11)[key]
        if job.until:
            return Outcome("paused", worth + 1 / job.until, job.until)
        return Outcome("finished", float(worth), 9)

    search.run(Scripted(answer))
    states = [t.state for t in search.trials]
    assert asked[:4] == [(0, 1), (0, 3), (0, 0), (1, 1)]
    assert states == ["finished", "pruned", "finished"] + ["pruned"] * 3 + ["finished"] + ["pruned"] * 2
    assert search.best.number == 6
    assert search.trials[1].epochs == 1


def test_pruning_of_real_runs_costs_less(make):
    search = make(trials=6, prune=True, options={"epochs": 6})
    search.run(make_executor("serial"))
    epochs = {t.number: t.epochs for t in search.trials}
    pruned = [t.number for t in search.trials if t.state == "pruned"]
    assert pruned
    assert all(epochs[n] == 2 for n in pruned)
    assert all(len(Run(t.folder).metrics) == t.epochs for t in search.trials)


def test_tpe_looks_at_what_came_before(make):
    search = make(trials=14, sampler="tpe")
    search.run(Scripted(scores))
    assert [t.state for t in search.trials] == ["finished"] * 14
    configs = {json.dumps(t.params, sort_keys=True) for t in search.study.trials}
    assert len(configs) == 14


def test_faults_are_found_before_anything_begins():
    with pytest.raises(ConfigError, match="trial 0: nu must be below hidden"):
        check(Settings(options={"hidden": 12, "nu": 50}))
    check(Settings(options=SMALL))


def test_folders(tmp_path, midis):
    settings = Settings(corpus=str(midis))
    first = create_folder(settings, root=tmp_path)
    second = create_folder(settings, root=tmp_path)
    assert first.path.name.endswith("-1")
    assert second.path.name.endswith("-2")
    assert SearchFolder(first.path).settings == settings
    with pytest.raises(RunError, match="is not empty; choose another folder, or fastdropout search --resume"):
        create_folder(settings, first.path)
    with pytest.raises(RunError, match="has no search"):
        SearchFolder(tmp_path)
    (first.path / "search.json").write_text('{"trials": -1}')
    with pytest.raises(RunError, match=r"search\.json: trials must be"):
        SearchFolder(first.path)


def test_passwords_are_not_kept():
    assert (
        without_password("postgresql+psycopg://me:secret@host:5432/db")
        == "postgresql+psycopg://me@host:5432/db"
    )
    with pytest.raises(ConfigError, match="storage must be a URL"):
        without_password("no url")


def test_a_storage_that_is_not_there(make):
    search = make()
    with pytest.raises(RunError, match=r"nobody@localhost:1/none: cannot be opened") as caught:
        Search(search.folder, "postgresql+psycopg://nobody:secret@localhost:1/none")
    assert "secret" not in str(caught.value)
