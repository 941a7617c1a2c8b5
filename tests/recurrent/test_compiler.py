"""Each in a process of its own, with a cache of its own: what a process has loaded, it keeps."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import fastdropout as fd
from fastdropout.errors import SlowPathWarning
from fastdropout.recurrent import compiler, kernel

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")
# A small library, and a program without torch: much faster. Prints the status and the warnings.
TINY = "int answer(void) { return 42; }"
PROGRAM = """
import sys, warnings
from pathlib import Path
from fastdropout.recurrent import compiler
compiler.SOURCES = [Path(sys.argv[1])]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        library = compiler.library()
        assert library is None or library.answer() == 42
assert "torch" not in sys.modules
print(compiler.status(), *(f"{w.category.__name__}: {w.message}" for w in caught), sep="|")
"""
BUILT = ["built"]


def run(folder, program=PROGRAM, **environment):
    """The status and the warnings of a process with its cache and its temporary folder in `folder`."""
    source = folder / "tiny.c"
    source.write_text(TINY)
    env = {**os.environ, "XDG_CACHE_HOME": folder, "TMPDIR": folder, **environment}
    env = {name: str(value) for name, value in env.items() if value is not None}
    command = [sys.executable, "-c", program, str(source)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip().split("|")


def libraries(folder):
    return sorted((folder / "fastdropout" / "kernels").glob("kernel-*.so"))


@pytest.fixture
def counted(tmp_path):
    """A compiler that writes a line for each call."""
    calls = tmp_path / "calls"
    script = tmp_path / "counted-cc"
    script.write_text(f'#!/bin/sh\necho >> {calls}\nexec {COMPILER} "$@"\n')
    script.chmod(0o755)
    calls.touch()
    return script, lambda: len(calls.read_text())


@needs_compiler
def test_it_is_built_once_and_kept(tmp_path, counted):
    cc, calls = counted
    assert run(tmp_path, CC=cc) == BUILT
    (library,) = libraries(tmp_path)
    assert [p.name for p in library.parent.iterdir() if p != library] == ["lock"]
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    assert run(tmp_path, CC=cc) == BUILT
    assert (libraries(tmp_path), calls()) == ([library], 1)


@needs_compiler
def test_processes_that_start_together_build_once(tmp_path, counted):
    cc, calls = counted
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: run(tmp_path, CC=cc), range(6))) == [BUILT] * 6
    assert calls() == 1


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "truncated", "one bit", "foreign"])
def test_a_damaged_library_is_built_anew(tmp_path, damage):
    run(tmp_path)
    (library,) = libraries(tmp_path)
    content = library.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    parts = {"empty": b"", "truncated": content[:4096], "one bit": bytes(flipped), "foreign": b"MZ" * 999}
    library.write_bytes(parts[damage])
    assert run(tmp_path) == BUILT
    assert [path.read_bytes() for path in libraries(tmp_path)] == [content]


@needs_compiler
def test_what_a_killed_build_left_is_taken_away(tmp_path):
    folder = tmp_path / "fastdropout" / "kernels"
    (folder / "build-killed").mkdir(parents=True)
    (folder / "build-killed" / "kernel.so").touch()
    (folder / ".kernel.so.0000.tmp").touch()
    folder.chmod(0o700)
    assert run(tmp_path) == BUILT
    assert sorted(p.name for p in folder.iterdir()) == [libraries(tmp_path)[0].name, "lock"]


# No home at all: no HOME, and a user id that the system does not know.
NOBODY = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"
CURE = ": set XDG_CACHE_HOME to a folder that you can write"


@needs_compiler
@pytest.mark.parametrize(
    ("cache", "before", "words"),
    [
        ("/dev/null/x", "", "[Errno 20] Not a directory: '/dev/null/x/fastdropout'"),
        (None, NOBODY, "Could not determine home directory."),
    ],
    ids=["cannot be written", "no home"],
)
def test_without_a_cache_there_is_no_kernel_and_nothing_is_left(tmp_path, counted, cache, before, words):
    cc, calls = counted
    status, warning = run(tmp_path, before + PROGRAM, XDG_CACHE_HOME=cache, HOME=None, CC=cc)
    assert status == f"none: {words}{CURE}"
    assert words + CURE in warning
    assert calls() == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calls", "counted-cc", "tiny.c"]


@pytest.fixture
def open_folder():
    """A folder that every user can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


# As a user whom the system does not know and who may write nowhere: root may write everywhere.
STRANGER = PROGRAM.replace(
    "compiler.SOURCES =",
    "import os\nif os.getuid() == 0:\n    os.setgroups([]), os.setgid(12345), os.setuid(12345)\n"
    "compiler.HEADERS = []\ncompiler.SOURCES =",
)


@needs_compiler
@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ("kept", "Permission denied: '{}/kept/fastdropout'"),
        pytest.param(
            None,
            "Could not determine home directory.",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can become an unknown user"),
        ),
    ],
    ids=["a cache that is read-only", "a user without a home"],
)
def test_a_user_who_may_write_nowhere(open_folder, cache, words):
    (open_folder / "kept").mkdir(mode=0o555)
    before = set(Path("/tmp").glob("fastdropout*"))
    cache = None if cache is None else open_folder / cache
    status, warning = run(open_folder, STRANGER, XDG_CACHE_HOME=cache, HOME=None, TMPDIR="/tmp")
    assert status.endswith(words.format(open_folder) + CURE)
    assert status.removeprefix("none: ") in warning
    assert sorted(p.name for p in open_folder.iterdir()) == ["kept", "tiny.c"]
    assert set(Path("/tmp").glob("fastdropout*")) == before


@needs_compiler
def test_a_folder_that_others_can_write_is_not_used(tmp_path):
    open_to_all = tmp_path / "fastdropout" / "kernels"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    status, warning = run(tmp_path)
    assert status == f"none: {open_to_all} is not a folder that only this user can write{CURE}"
    assert CURE in warning
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    (tmp_path / "linked" / "fastdropout").mkdir(parents=True)
    (tmp_path / "linked" / "fastdropout" / "kernels").symlink_to(target)
    assert len(run(tmp_path, XDG_CACHE_HOME=tmp_path / "linked")) == 2
    assert list(target.iterdir()) == []


@needs_compiler
def test_a_library_in_a_cache_that_cannot_be_written_is_used(tmp_path, counted):
    cc, calls = counted
    run(tmp_path, CC=cc)
    (library,) = libraries(tmp_path)
    (library.parent / "lock").unlink()
    (library.parent / "lock").mkdir()  # root may write everywhere, but cannot open this as a file
    assert run(tmp_path, CC=cc) == BUILT
    assert calls() == 1


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PATH": "/nowhere", "CC": None}, "no C compiler: install gcc or clang, or set CC to one"),
        ({"CC": "/bin/false"}, "/bin/false failed (exit code 1): set CC to another C compiler"),
        ({"CC": "/bin/true"}, "/bin/true failed (exit code 0): set CC to another C compiler"),
    ],
    ids=["no compiler", "it fails", "it makes nothing"],
)
def test_without_a_kernel_it_says_so_once(tmp_path, environment, words):
    status, warning = run(tmp_path, **environment)
    assert status == f"none: {words}"
    assert warning.startswith("SlowPathWarning: fastdropout runs without its compiled kernel and is slower")
    assert words in warning


def test_a_compile_that_takes_too_long(tmp_path, monkeypatch):
    slow = tmp_path / "slow-cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "SECONDS", 0.2)
    with pytest.raises(compiler.NoLibrary, match=r"slow-cc took more than 0\.2 s: start again"):
        compiler._load()
    assert [p.name for p in (tmp_path / "fastdropout" / "kernels").iterdir()] == ["lock"]


def test_turned_off_by_the_user_it_is_silent(tmp_path):
    assert run(tmp_path, FASTDROPOUT_KERNEL=0) == ["none: FASTDROPOUT_KERNEL=0"]
    assert not (tmp_path / "fastdropout").exists()


def test_the_layer_says_that_it_has_no_kernel(monkeypatch):
    rnn = fd.nn.RNN(3, 4, drop_hidden=0.2)
    assert repr(rnn).endswith("path=fused)") == (compiler.status() == "built")
    monkeypatch.setattr(compiler, "_outcome", lambda: (None, "none: a reason"))
    assert repr(rnn).endswith("path=fused, kernel='none: a reason')")
    assert "kernel" not in repr(fd.nn.RNN(3, 4))  # torch's own serves it
    assert "kernel" not in repr(rnn.to("meta"))


def test_where_warnings_are_errors_it_fails_once(monkeypatch):
    monkeypatch.setattr(compiler, "_outcome", lambda: (None, "none: a reason of this test"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SlowPathWarning, match=r"is slower \(a reason of this test\)"):
            compiler.library()
        assert compiler.library() is None


def test_the_fingerprint_knows_sources_and_headers(tmp_path, monkeypatch):
    before = compiler._fingerprint("cc")
    header = tmp_path / "more.h"
    header.write_text("/* nothing */")
    monkeypatch.setattr(compiler, "HEADERS", [*compiler.HEADERS, header])
    assert compiler._fingerprint("cc") != before
    assert Path(kernel.__file__).with_name("kernel.c") in compiler.SOURCES


@needs_compiler
def test_the_kernel_is_built_where_there_is_a_compiler():
    """Guards the tests of the fused path: on a machine with a C compiler they must have tested the kernel."""
    assert kernel.load("tanh", torch.float32) is not None
    assert kernel.load("tanh", torch.float64) is not None
    assert kernel.load("tanh", torch.float16) is None
