"""Standard output, which may go away while the work goes on."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


class Output:
    """Writes to `sys.stdout`; what can no longer be shown is dropped.

    A reader that has seen enough (`| head -1`), a full disk under a log, a terminal that was closed: none of
    them is a reason to stop a training. `lost` says afterwards what happened.
    """

    def __init__(self) -> None:
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write, with escapes for what the encoding of the terminal does not have."""
        stream = _stream()
        if stream is not None and self.lost is None:
            encoding = getattr(stream, "encoding", None) or "utf-8"
            shown = text.encode(encoding, "backslashreplace").decode(encoding)
            with self._losing():
                stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Flush."""
        stream = _stream()
        if stream is not None and self.lost is None:
            with self._losing():
                stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        stream = _stream()
        return stream is not None and bool(stream.isatty())

    def fileno(self) -> int:
        """The file descriptor of `sys.stdout`."""
        stream = _stream()
        if stream is None:
            raise OSError("standard output is closed")
        return int(stream.fileno())

    @property
    def encoding(self) -> str:
        """The encoding of `sys.stdout`."""
        return getattr(_stream(), "encoding", None) or "utf-8"

    @contextlib.contextmanager
    def _losing(self) -> Any:
        try:
            yield
        except OSError as error:
            self.lost = error
            # What is still in Python's buffer would fail again, and be printed, when the program ends.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def _stream() -> Any:
    """`sys.stdout` of this moment; a live table puts a stand-in there that would lead back to us."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    return None if getattr(stream, "closed", False) else stream


output = Output()
"""The one that all commands print to."""
