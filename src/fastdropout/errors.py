"""The few errors that a command prints as one line; all else is a bug. One warning. Errors as text."""

from __future__ import annotations

import re


class FastdropoutError(Exception):
    """A user or system error, described in one line that says what is wrong and what to do."""


class DataError(FastdropoutError):
    """A corpus, data file or MIDI folder that cannot be read."""


class ConfigError(FastdropoutError):
    """A configuration that cannot be used; names every fault at once."""


class RunError(FastdropoutError):
    """A run folder or checkpoint that cannot be read or resumed."""


class SlowPathWarning(UserWarning):
    """Results are right, but come more slowly than they could; says why, and what to do."""


# C0 (but tab and line feed), DEL, C1; what reverses the direction of text or breaks lines; half characters,
# which also stand for bytes that are no UTF-8.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""`text` with what a terminal would obey, or no file can hold, written out.

    Names come from file systems and files, so they may hold anything. All text that leaves the program passes
    through here: the console, pages, labels of figures, JSON records.

    >>> visible("a\x1b[2Jb"), visible("caf\udce9")
    ('a\\x1b[2Jb', 'caf\\xe9')
    """
    return _INVISIBLE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # A byte that could not be decoded (PEP 383).
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(error: BaseException, limit: int | None = None) -> str:
    """What an error says, in one visible line of at most `limit` characters; its class if it says nothing."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        text = str(error)
    return visible(" ".join(text.split()))[:limit] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory."""
    # torch has no class of its own for this on a CPU.
    text = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text
