"""Files are replaced whole or appended by the line, so a crash never leaves half of one."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO


def write_atomic(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replace the file at `path` by `content`: afterwards it is the old file or the new one, never a part.

    `content` is the bytes themselves, or a function that writes them to the open binary file it is given.
    Missing folders are made. On any failure (a full disk too) the temporary file is removed, the old
    file is left as it was, and an `OSError` without a file name gets this one.

    The permissions are what the umask says, as for a file made by `open`; `tempfile` would give 0600.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
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
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise _with_path(error, path) from error


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
            written = file.write(line)
            while written < len(line):  # A raw write may stop early, e.g. just before the disk is full.
                written += file.write(line[written:])
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
