import errno
import json
import os
import stat
from pathlib import Path

import pytest

from fastdropout.files import append_line, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_bytes_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b.bin"
    write_atomic(path, b"one")
    assert path.read_bytes() == b"one"
    write_atomic(path, lambda f: f.write(b"two"))
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["b.bin"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_permissions_are_those_of_the_umask(tmp_path, mask):
    old = os.umask(mask)
    try:
        write_atomic(tmp_path / "x", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "x"
    write_atomic(path, b"old")

    def fail(file):
        file.write(b"new" * 10000)
        raise error

    with pytest.raises(type(error)):
        write_atomic(path, fail)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(tmp_path / "x", b"data")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "x")
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_appending_to_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="/dev/full"):
        append_line("/dev/full", "{}")


def test_data_are_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda h: (calls.append("fsync"), fsync(h))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b))[1])
    write_atomic(tmp_path / "x", b"data")
    assert calls == ["fsync", "replace", "fsync"]


def test_long_names_are_no_trouble(tmp_path):
    path = tmp_path / ("n" * 250)
    write_atomic(path, b"1")
    assert path.read_bytes() == b"1"


def test_lines_are_appended(tmp_path):
    path = tmp_path / "m.jsonl"
    for i in range(3):
        append_line(path, json.dumps({"i": i}), sync=i == 2)
    assert [json.loads(line)["i"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_a_torn_line_is_ended_first(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"i": 0}\n{"i": ')
    append_line(path, '{"i": 2}')
    assert path.read_text().splitlines() == ['{"i": 0}', '{"i": ', '{"i": 2}']


def test_a_line_holds_no_line_break(tmp_path):
    with pytest.raises(ValueError, match="single line"):
        append_line(tmp_path / "m", "a\nb")
