"""Builds the C files of the package into one library at its first use, and keeps it in the user's cache.

`library()` is the library, or None where it cannot be had: results are then the same up to rounding, only
slower. The reason is in `status()`, and a `SlowPathWarning` says it once. `FASTDROPOUT_KERNEL=0` turns the
library off, without a warning.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from fastdropout.errors import SlowPathWarning
from fastdropout.files import cache_folder, lock_file, write_atomic

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.parent.glob("*/*.c"))
HEADERS = sorted(FOLDER.glob("*.h"))
# Not -ffast-math: linked into a library it would change the rounding of the whole process. Not -O3: the loops
# ask for many lanes at once by themselves, and it takes twice as long to compile.
FLAGS = (
    "-O2",
    "-fopenmp-simd",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-std=c11",
)
# What not every compiler or processor has: tried together, then fewer.
OPTIONAL_FLAGS = ("-fopenmp", "-mprefer-vector-width=512")
# It takes five seconds; a busy machine may need many times that. Also the longest wait for another process.
SECONDS = 60.0


class NoLibrary(Exception):
    """There is no library; the message says why, and what to do."""


def library() -> ctypes.CDLL | None:
    """The library, built if need be; None where it cannot be, after one warning."""
    found, status = _outcome()
    if found is None and not _is_off():
        _warn_once(status)
    return found


def status() -> str:
    """`"built"`, or `"none: "` and the reason. Builds the library if need be, and does not warn."""
    return _outcome()[1]


def _is_off() -> bool:
    return os.environ.get("FASTDROPOUT_KERNEL", "1") == "0"


@functools.cache
def _outcome() -> tuple[ctypes.CDLL | None, str]:
    try:
        if _is_off():
            raise NoLibrary("FASTDROPOUT_KERNEL=0")
        return _load(), "built"
    except (NoLibrary, OSError) as error:
        log.debug("no kernel: %s", error)
        return None, f"none: {error}"


_told: set[str] = set()


def _warn_once(status: str) -> None:
    if status in _told:
        return
    _told.add(status)  # first: where warnings are errors, one pass fails and the next ones work
    warnings.warn(
        f"fastdropout runs without its compiled kernel and is slower ({status.removeprefix('none: ')}). "
        "FASTDROPOUT_KERNEL=0 turns the kernel off without this warning",
        SlowPathWarning,
        stacklevel=2,
    )


def _load() -> ctypes.CDLL:
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise NoLibrary("no C compiler: install gcc or clang, or set CC to one")
    stem = f"kernel-{_fingerprint(compiler)}"
    try:
        return _load_from(_own_folder(), stem, compiler)
    except (OSError, RuntimeError) as error:
        raise NoLibrary(f"{error}: set XDG_CACHE_HOME to a folder that you can write") from None


def _fingerprint(compiler: str) -> str:
    """Of all that the machine code depends on: a cache in a shared home serves different machines."""
    parts = [path.read_text() for path in (*SOURCES, *HEADERS)]
    parts += [compiler, *FLAGS, *OPTIONAL_FLAGS, platform.machine(), platform.system(), *platform.libc_ver()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        parts += next(([line] for line in lines if line.startswith(("flags", "Features"))), [])
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _own_folder() -> Path:
    """That of the user's cache: made, or seen to be one in which no other user can put a library.

    None in the temporary directory stands in for it: it would be left there, or made anew by each process.
    """
    folder = cache_folder() / "kernels"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    is_ours = not hasattr(os, "getuid") or (about.st_uid in (os.getuid(), 0) and not about.st_mode & 0o022)
    if not stat.S_ISDIR(about.st_mode) or not is_ours:
        raise OSError(f"{folder} is not a folder that only this user can write")
    return folder


def _load_from(folder: Path, stem: str, compiler: str) -> ctypes.CDLL:
    """The library in `folder`; built if there is none, or only a damaged one."""
    found = _intact(folder, stem)
    if found is None:
        with _locked(folder / "lock"):
            found = _intact(folder, stem)  # built by another process while this one waited
            if found is None:
                _sweep(folder, stem)
                found = _build(compiler, folder, stem)
    return ctypes.CDLL(str(found))


def _intact(folder: Path, stem: str) -> Path | None:
    """A library that has the hash that its name tells. Loading part of one would end the process."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with contextlib.suppress(OSError):
            if path.name == _name(stem, path.read_bytes()):
                return path
    return None


def _name(stem: str, content: bytes) -> str:
    return f"{stem}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _sweep(folder: Path, stem: str) -> None:
    """Take away damaged libraries and what killed processes left; only for who holds the lock."""
    for path in (*folder.glob(f"{stem}-*.so"), *folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)
    for path in folder.glob("build-*"):
        shutil.rmtree(path, ignore_errors=True)


def _build(compiler: str, folder: Path, stem: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
        output = Path(work) / "kernel.so"
        for count in reversed(range(len(OPTIONAL_FLAGS) + 1)):
            command = [
                compiler,
                *FLAGS,
                *OPTIONAL_FLAGS[:count],
                *map(str, SOURCES),
                "-o",
                str(output),
                "-lm",
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise NoLibrary(
                    f"{compiler} took more than {SECONDS:g} s: start again on a less busy machine"
                ) from None
            if done.returncode == 0 and output.is_file():
                break
        else:
            said = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
            raise NoLibrary(f"{compiler} failed ({said}): set CC to another C compiler")
        content = output.read_bytes()
    path = folder / _name(stem, content)
    write_atomic(path, content)
    log.debug("built %s with %s", path, compiler)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Processes that start together build one after the other, and so once."""
    with open(path, "a+b") as file:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                lock_file(file)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NoLibrary(f"{path} is held by another process: end it and start again") from None
                time.sleep(0.05)
            except OSError:  # a file system without locks: at worst, it is built twice
                break
        yield
