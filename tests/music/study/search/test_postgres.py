"""Several drivers share one study in PostgreSQL."""

import importlib.util
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from fastdropout.music.study.search.folder import SearchFolder

_spec = importlib.util.spec_from_file_location("_search_helpers", Path(__file__).with_name("helpers.py"))
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
TINY = ("--hidden", "12", "--nu", "4", "--chunk", "20", "--batch", "4", "--epochs", "2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SERVERS, reason="no PostgreSQL server is installed"),
    pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="psycopg is not installed"),
]


@pytest.fixture
def server():
    """A server of its own on a socket; yields the URL of a database."""
    place = Path("/tmp") / f"fd-postgres-{os.getpid()}"
    place.mkdir(mode=0o700)
    programs = SERVERS[-1].parent
    as_user = []
    if os.geteuid() == 0:  # Which the server refuses to be.
        shutil.chown(place, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data, port = place / "data", "54399"

    def call(*words):
        done = subprocess.run([*as_user, *map(str, words)], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr

    call(programs / "initdb", "-D", data, "-A", "password", "-U", "me", f"--pwfile={password(place)}")
    options = f"-p {port} -c listen_addresses='127.0.0.1' -c unix_socket_directories={place}"
    call(programs / "pg_ctl", "-D", data, "-w", "-l", place / "log", "-o", options, "start")
    try:
        yield f"postgresql+psycopg://me:secret@127.0.0.1:{port}/postgres"
    finally:
        call(programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(place)


def password(place):
    path = place / "password"
    path.write_text("secret\n")
    if os.geteuid() == 0:
        shutil.chown(path, "postgres")
    return path


def test_two_drivers_share_a_study(server, midis, tmp_path):
    words = (midis, "--trials", "12", *TINY, "--storage", server, "--study", "ours", "--workers", "1")
    drivers = [helpers.start(*words, "-o", tmp_path / "a")]
    helpers.until(lambda: (tmp_path / "a" / "trials").exists())  # Then the tables are there.
    drivers += [helpers.start(*words, "-o", tmp_path / "b")]
    # One of them dies on the way, and comes back.
    helpers.until(lambda: helpers.ended(tmp_path / "a") >= 2)
    drivers[0].kill()
    drivers[0].communicate()
    helpers.search("--resume", tmp_path / "a", "--storage", server)
    out, error = drivers[1].communicate(timeout=300)
    assert drivers[1].returncode == 0, out + error
    runs = [path.name for name in ("a", "b") for path in (tmp_path / name / "trials").glob("[0-9]*")]
    assert sorted(runs) == [f"{number:03}" for number in range(12)]
    with closing(helpers.opened(tmp_path / "a", server)) as work:
        assert [t.state for t in work.trials] == ["finished"] * 12
    assert (tmp_path / "a" / "report.html").exists()
    for name in ("a", "b"):
        assert "secret" not in (tmp_path / name / "search.json").read_text()
    assert SearchFolder(tmp_path / "a").settings.storage == server.replace(":secret", "")


def test_what_another_driver_asked_for_must_be_the_same(server, midis, tmp_path):
    words = (midis, "--trials", "1", *TINY, "--storage", server, "--study", "ours", "--executor", "serial")
    helpers.search(*words, "-o", tmp_path / "a")
    said = helpers.search(*words, "--seed", "9", "-o", tmp_path / "b", code=2)
    assert "the study ours was started with other seed; choose another name" in said
