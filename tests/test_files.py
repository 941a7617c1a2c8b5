import errno
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastdropout.errors import is_out_of_memory, one_line, visible
from fastdropout.files import append_line, open_file, read_file, write_atomic, write_output


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


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


def test_a_file_is_read_within_its_limit(tmp_path):
    (tmp_path / "x").write_bytes(b"123")
    assert read_file(tmp_path / "x", 3) == b"123"
    with pytest.raises(OSError, match="larger than 0 MB") as caught:
        read_file(tmp_path / "x", 2)
    assert caught.value.filename == str(tmp_path / "x")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 1 MB"):
        read_file(tmp_path / "sparse", 1 << 20)
    with open_file(tmp_path / "x", 3) as file:
        assert list(file) == [b"123"]


@needs_pipes
def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name in ("pipe", "link", "socket"):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(tmp_path / name, 1 << 20)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, 1 << 20)
    with pytest.raises(OSError, match="symbolic links"):
        read_file(tmp_path / "loop", 1 << 20)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nothing", 1 << 20)


@needs_pipes
def test_a_pipe_that_comes_in_between_is_found(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: real(tmp_path / "pipe", flags))
    with pytest.raises(OSError, match="not a regular file"):
        read_file(tmp_path / "x", 10)


def test_output_follows_links(tmp_path):
    """The link stays a link, whether there was a file or not."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"old")
    for name, target in (("a", "there/file"), ("b", "there/new")):
        (tmp_path / name).symlink_to(target)
        write_output(tmp_path / name, b"text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_bytes() == b"text"
    write_output(tmp_path / "made" / "plain", lambda file: file.write(b"1"))
    assert (tmp_path / "made" / "plain").read_bytes() == b"1"
    assert not list(tmp_path.rglob("*.tmp"))


def test_output_to_a_link_that_leads_nowhere_but_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_output(tmp_path / "loop", b"1")
    assert (tmp_path / "loop").is_symlink()


@needs_pipes
def test_output_to_a_pipe_goes_into_it(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    listener = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    listener.start()
    write_output(pipe, lambda file: file.write(b"x" * 200_000))
    listener.join(60)
    assert heard == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


@needs_pipes
@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can make a device")
def test_output_to_a_device_goes_into_it(tmp_path):
    os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (tmp_path / "link").symlink_to("null")
    for name in ("null", "link"):
        write_output(tmp_path / name, b"gone")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)
    os.mknod(tmp_path / "full", 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    with pytest.raises(OSError, match="No space left") as caught:
        write_output(tmp_path / "full", b"x")
    assert caught.value.filename == str(tmp_path / "full")
    os.mknod(tmp_path / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 250))
    with pytest.raises(OSError, match="a block device"):
        write_output(tmp_path / "disk", b"x")


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
def test_output_to_standard_output_that_is_a_file(tmp_path):
    program = "from fastdropout.files import write_output; write_output('/dev/stdout', b'a'); print('b')"
    with open(tmp_path / "out", "wb") as file:
        before = os.fstat(file.fileno()).st_ino
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert (tmp_path / "out").stat().st_ino == before  # The very file that the shell has opened.
    assert names(tmp_path) == ["out"]


def test_the_file_before_is_kept(tmp_path):
    for number in range(4):
        write_atomic(tmp_path / "last", b"%d" % number, keep=tmp_path / "previous")
    assert (tmp_path / "last").read_bytes() == b"3"
    assert (tmp_path / "previous").read_bytes() == b"2"
    assert names(tmp_path) == ["last", "previous"]


@pytest.mark.parametrize("dies", ["link", "replace 1", "replace 2"])
def test_one_of_the_two_is_whole_at_any_time(tmp_path, monkeypatch, dies):
    write_atomic(tmp_path / "last", b"1", keep=tmp_path / "previous")
    write_atomic(tmp_path / "last", b"2", keep=tmp_path / "previous")

    class Died(BaseException):
        pass

    calls, real = [], {"link": os.link, "replace": os.replace}

    def die(name):
        def call(*args):
            calls.append(name)
            if f"{name} {calls.count(name)}" in (dies, f"{dies} 1"):
                raise Died
            return real[name](*args)

        return call

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, die(name))
        with pytest.raises(Died):
            write_atomic(tmp_path / "last", b"3", keep=tmp_path / "previous")
    assert (tmp_path / "last").read_bytes() == b"2"
    assert (tmp_path / "previous").read_bytes() in (b"1", b"2")
    write_atomic(tmp_path / "last", b"4", keep=tmp_path / "previous")
    assert (tmp_path / "last").read_bytes() == b"4"
    assert (tmp_path / "previous").read_bytes() == b"2"
    assert names(tmp_path) == ["last", "previous"]


def test_keeping_where_there_are_no_links(tmp_path, monkeypatch):
    def none(*args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    for number in range(3):
        write_atomic(tmp_path / "last", b"%d" % number, keep=tmp_path / "previous")
    assert (tmp_path / "previous").read_bytes() == b"1"
    assert names(tmp_path) == ["last", "previous"]


def test_what_a_terminal_would_obey_is_written_out():
    assert visible("a\tb\nc é ♯") == "a\tb\nc é ♯"
    assert visible("\x1b[2J\x07\r\x7f\x9b") == r"\x1b[2J\x07\x0d\x7f\x9b"
    assert visible("\u202egpj.exe \ud800") == r"\u202egpj.exe \ud800"
    assert visible(os.fsdecode(b"caf\xe9")) == r"caf\xe9"


def test_an_error_in_one_line():
    assert one_line(OSError(errno.ENOSPC, "No space left", "a\nb")) == "a b: No space left"
    assert one_line(OSError(errno.ENOSPC, "No space left")) == "No space left"
    assert one_line(ValueError("a\n  b\x1b[0m")) == r"a b\x1b[0m"
    assert one_line(ValueError("abc"), 2) == "ab"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("no"))
