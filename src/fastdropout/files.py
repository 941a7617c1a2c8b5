"""Files are read within limits and replaced whole or appended by the line: a crash never leaves half."""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from fastdropout.errors import RunError

Content = bytes | Callable[[BinaryIO], object]
"""Bytes, or a function that writes them to the open binary file it is given."""


def open_file(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """Open a regular file of at most `limit` bytes to read; anything else is an `OSError` that names it.

    Pipes, sockets and devices are refused without waiting for them: they may never answer, or never end.
    """
    name = os.fspath(path)
    _check_regular(os.stat(name), limit, name)
    # Not blocking, should a pipe have come in its place since: that is found below.
    handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(os.fstat(handle), limit, name)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, as `open_file` defines it."""
    with open_file(path, limit) as file:
        # What was there when it was opened: a file that grows meanwhile shall not grow beyond the limit.
        return file.read(os.fstat(file.fileno()).st_size) or b""


def _check_regular(status: os.stat_result, limit: int, name: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", name)
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MB, which no file of this kind is", name)


def write_output(path: str | os.PathLike[str], content: Content) -> None:
    """Write to a path of the user's choice: files as `write_atomic` does, what is no file as it is.

    A symbolic link is followed: it stays, and the file it leads to is replaced. A pipe, a terminal or
    `/dev/null` is opened and written to. A block device is refused.
    """
    path = Path(path)
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG  # To be made, also at the end of a link that leads nowhere yet.
    except OSError as error:
        raise _with_path(error, path) from error
    if stat.S_ISBLK(kind):
        raise OSError(errno.EINVAL, "a block device, which is not written to", str(path))
    # /dev/stdout may lead to a regular file, which the shell has open: replaced, it would lose what comes.
    if stat.S_ISREG(kind) and not os.path.abspath(path).startswith(("/dev/fd", "/dev/std", "/proc/")):
        write_atomic(os.path.realpath(path) if path.is_symlink() else path, content)
        return
    data = content if isinstance(content, bytes) else _bytes_of(content)
    try:
        with open(path, "ab" if stat.S_ISREG(kind) else "wb", buffering=0) as file:
            _write_all(file, data)
    except OSError as error:
        raise _with_path(error, path) from error


def _bytes_of(write: Callable[[BinaryIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _write_all(file: io.RawIOBase, data: bytes) -> None:
    written = 0
    while written < len(data):  # A raw write may stop early, e.g. just before the disk is full.
        written += file.write(data[written:]) or 0


def write_atomic(
    path: str | os.PathLike[str], content: Content, *, keep: str | os.PathLike[str] | None = None
) -> None:
    """Replace the file at `path` by `content`: afterwards it is the old file or the new one, never a part.

    Missing folders are made. On any failure (a full disk too) the temporary file is removed, the old
    file is left as it was, and an `OSError` without a file name gets this one. With `keep` the old file gets
    that name instead of vanishing.

    The permissions are what the umask says, as for a file made by `open`; `tempfile` would give 0600.
    """
    path = Path(path)
    temporary = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if keep is not None:
                _keep(path, Path(keep))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise _with_path(error, path) from error


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")


def _keep(path: Path, name: Path) -> None:
    """Give the file at `path`, if there is one, a second name, so that there is a whole file at any time."""
    spare = _beside(path)
    try:
        os.link(path, spare)
    except FileNotFoundError:
        return
    except OSError:  # A file system without links: for a moment there is the second name only.
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, name)
        return
    try:
        os.replace(spare, name)
    finally:  # Nothing is renamed if both are names of one file already.
        spare.unlink(missing_ok=True)


def append_line(path: str | os.PathLike[str], text: str, *, sync: bool = False) -> None:
    """Append one line to the file at `path`, made if missing; with `sync` it survives a power cut.

    The line is written by one call on a file opened for appending. If the file ends inside a line, which
    only a crash or a full disk leaves behind, the torn line is ended first: it alone is lost.
    """
    if "\n" in text or "\r" in text:
        raise ValueError("text must be a single line")
    path = Path(path)
    line = text.encode() + b"\n"
    try:
        with open(path, "a+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            _write_all(file, line)
            if sync:
                os.fsync(file.fileno())
    except OSError as error:
        raise _with_path(error, path) from error


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make renames in `folder` last through a power cut, where the system can do that."""
    # Windows cannot open a folder, some network file systems cannot fsync one: the file itself is safe.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def lock_file(file: IO[bytes], *, wait: bool = False) -> None:
    """Lock an open file; if another process has it, wait or raise `OSError`. A dead process has no lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        how = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK  # type: ignore[attr-defined,unused-ignore]
        msvcrt.locking(file.fileno(), how, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def lock_folder(folder: Path, why: str) -> Iterator[None]:
    """Hold the lock of a folder; `RunError` with `why` if another process has it."""
    with open(folder / ".lock", "a+b") as file:
        try:
            lock_file(file)
        except OSError as error:
            raise RunError(f"{folder}: {why}") from error
        yield


def _with_path(error: OSError, path: Path) -> OSError:
    """Return the same error of the same class naming `path`: ENOSPC from `write` names no file at all."""
    return OSError(error.errno, error.strerror or str(error), str(path)) if error.errno else error


def new_folder(root: str | os.PathLike[str], what: str) -> Path:
    """Make `root`/<what>-<date>-<n>, with the first n that nobody has."""
    root = Path(root)
    label = re.sub(r"[^\w.-]+", "-", what).strip("-.")[:60] or "run"
    stem = f"{label}-{datetime.date.today().isoformat()}"
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / f"{stem}-{number}"
        try:
            path.mkdir()  # Fails if it is there, so that two processes never get the same.
            return path
        except FileExistsError:
            number += 1


def cache_folder() -> Path:
    """`fastdropout` in `$XDG_CACHE_HOME`, by default in `~/.cache`; a RuntimeError if there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "fastdropout"
