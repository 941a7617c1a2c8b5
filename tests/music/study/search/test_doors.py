"""What a search is given from outside: edited folders, damaged studies, odd words and addresses."""

import importlib.util
import os
import shutil
import socket
import sqlite3
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fastdropout.music import cli
from fastdropout.music.study.search import loop, ray_executor
from fastdropout.music.study.search.folder import SearchFolder, Settings, create_folder
from fastdropout.music.study.search.job import Outcome
from fastdropout.music.study.search.loop import Search, check

_spec = importlib.util.spec_from_file_location("_search_helpers", Path(__file__).with_name("helpers.py"))
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

SMALL = {"hidden": 12, "nu": 4, "chunk": 20, "batch": 4, "epochs": 1}


class Instant:
    """An executor whose jobs end at once; after `limit` of them it is asked to stop."""

    slots = 1

    def __init__(self, limit=10**9):
        self.limit, self.queue, self.done = limit, [], []

    def submit(self, key, job):
        self.queue.append(key)

    def wait(self, timeout):
        self.done.append(self.queue.pop(0))
        return [(self.done[-1], Outcome("finished", 5.0 - self.done[-1], 1, 1.0))]

    def stop(self):
        return len(self.done) >= self.limit

    def close(self):
        pass


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


@pytest.fixture(scope="module")
def ended(midis, tmp_path_factory):
    """A search whose trials have ended, without run folders."""
    folder = create_folder(
        Settings(corpus=str(midis), trials=4, options=SMALL), tmp_path_factory.mktemp("ended") / "s"
    )
    with closing(Search(folder)) as work:
        work.run(Instant())
    return folder.path


@pytest.fixture
def folder(ended, tmp_path):
    return Path(shutil.copytree(ended, tmp_path / "s"))


def test_a_refused_driver_changes_nothing(folder, fails):
    before = (folder / "search.json").read_bytes()
    with SearchFolder(folder).lock():
        told = fails("--resume", folder, "--trials", "9", "--executor", "serial")
    assert "another process drives this search" in told
    assert (folder / "search.json").read_bytes() == before


def test_a_search_is_extended_by_who_drives_it(folder):
    with closing(Search(SearchFolder(folder))) as work:
        work.run(executor := Instant(), trials=6)
        assert executor.done == [4, 5]
        assert not work.unfinished
    assert SearchFolder(folder).settings.trials == 6


def test_a_hundred_thousand_trials_begin_at_once(midis, tmp_path):
    settings = Settings(corpus=str(midis), trials=100_000, options=SMALL)
    begin = time.process_time()
    check(settings)
    executor = Instant(limit=3)
    with closing(Search(create_folder(settings, tmp_path / "s"))) as work:
        work.run(executor, lambda trials: None, executor.stop)
        assert time.process_time() - begin < 30
        assert executor.done == [0, 1, 2]
        assert work.unfinished
        assert len(work.trials) <= loop.BLOCK


def test_trials_enter_the_study_by_the_block(midis, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "BLOCK", 2)
    folder = create_folder(Settings(corpus=str(midis), trials=5, options=SMALL), tmp_path / "s")
    with closing(Search(folder)) as work:
        seen = []
        work.run(executor := Instant(), lambda trials: seen.append(len(trials)))
        assert executor.done == [0, 1, 2, 3, 4]
        assert seen == [2, 2, 4, 4, 5, 5]
        assert [t.state for t in work.trials] == ["finished"] * 5


def test_odd_words_are_one_line(midis, tmp_path, fails):
    assert "corpus" in fails("")
    assert "'~nosuchuser/x' is no corpus" in fails("~nosuchuser/x")
    assert "threads is not for a search" in fails(midis, "--threads", "2")
    assert "study String should have at least 1 character" in fails(
        midis, "--study", "", "--storage", "sqlite:///x.db"
    )
    told = fails(midis, "--trials", "1", "--storage", "mysql://me@127.0.0.1/x")
    assert "install the driver that its URL names" in told
    assert "postgres" not in told
    assert not (tmp_path / "searches" / "x").exists()


@contextmanager
def listening():
    """Something that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        yield f"127.0.0.1:{server.getsockname()[1]}"


@helpers.needs_ray
def test_something_else_that_listens_is_no_cluster(midis, fails, monkeypatch):
    monkeypatch.setattr(ray_executor, "ANSWER", 3.0)
    with listening() as address:
        begin = time.monotonic()
        told = fails(midis, "--ray", address)
    assert f"no Ray cluster at {address} (what listens there does not answer as one within 3 s)" in told
    assert time.monotonic() - begin < 300  # by itself Ray tries for more than seven minutes


def execute(folder, *orders):
    with closing(sqlite3.connect(folder / "study.db")) as connection:
        for order in orders:
            connection.execute(order)
        connection.commit()


DAMAGES = {
    "an outcome that there is not": "UPDATE trial_user_attributes SET value_json = '3' WHERE key = 'outcome'",
    "an outcome that is no JSON": "UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'outcome'",
    "a number that is none": "UPDATE trial_user_attributes SET value_json = '\"low\"' WHERE key = 'valid'",
    "a number too large": "UPDATE trial_user_attributes SET value_json = '1e999' WHERE key = 'valid'",
    "seconds that are a list": "UPDATE trial_user_attributes SET value_json = '[]' WHERE key = 'seconds'",
    "a state that there is not": "UPDATE trials SET state = 'NONSENSE'",
    "a distribution that is no JSON": "UPDATE trial_params SET distribution_json = '{'",
    "a distribution that there is not": 'UPDATE trial_params SET distribution_json = \'{"name": "x"}\'',
    "a choice that there is not": "UPDATE trial_params SET param_value = 99",
    "parameters that have gone": "DELETE FROM trial_params",
    "a number of none": "UPDATE trials SET number = NULL",
    "a trial that runs and has gone": "UPDATE trials SET state = 'RUNNING', number = 7 WHERE number = 1",
    "settings that are no JSON": "UPDATE study_user_attributes SET value_json = '{'",
    "settings that are a list": "UPDATE study_user_attributes SET value_json = '[1]'",
    "a direction that there is not": "UPDATE study_directions SET direction = 'SIDEWAYS'",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_study_is_told_in_a_line(folder, what, capfd):
    execute(folder, DAMAGES[what])
    assert cli.main(["search", "--resume", str(folder), "--executor", "serial"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1, error


@pytest.mark.parametrize("what", ["pipe", "folder", "text", "cut"])
def test_a_study_that_is_no_database(folder, what, fails):
    path = folder / "study.db"
    data = path.read_bytes()
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"nothing" * 1000 if what == "text" else data[: len(data) // 3])
    assert str(folder) in fails("--resume", folder, "--executor", "serial")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a JSON file"),
        ("[]", "must be a JSON object"),
        ('{"trials": "9"}', "trials must be a valid integer, got '9'"),
        ('{"trials": 1e3}', "trials must be"),
        ('{"options": []}', "options must be a JSON object"),
        ('{"options": {"hiden": 3}, "corpus": "bach"}', "was started with other options, corpus"),
        ('{"space": "huge"}', "space must be 'paper', 'wide' or 'structured', got 'huge'"),
        ('{"format": 2}', "format must be 1, got 2"),
        ('{"study": ""}', "study"),
        ('{"x": 1}', "x"),
        ("[" * 100_000, "not a JSON file"),
    ],
)
def test_edited_settings_are_told_in_a_line(folder, text, told, fails):
    (folder / "search.json").write_text(text)
    assert told in fails("--resume", folder, "--executor", "serial")


def test_a_pipe_in_place_of_the_settings(folder, fails):
    (folder / "search.json").unlink()
    os.mkfifo(folder / "search.json")
    assert "not a regular file" in fails("--resume", folder)
