"""Reading the original `.pickle` files without running them.

A pickle is a program for a stack machine, and some of its instructions call whatever they name. This
machine has only the instructions that build dicts, lists, tuples, numbers and text. There is no
instruction that looks up a name or calls anything, so a hostile file can at worst be refused.

The layout is a dict of splits, each a list of pieces, each a list of frames, each a tuple of MIDI numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from fastdropout.errors import DataError
from fastdropout.music.data.rolls import HIGHEST, KEYS, LOWEST, MAX_FRAMES, SPLITS, Roll, check_splits

MAX_INSTRUCTIONS = 8_000_000
"""MuseData, the largest of the four files, takes 2.9 million at most; each makes about 64 bytes at most."""
MAX_NOTES = 8_000_000
"""Notes of all frames: MuseData has 1.4 million."""
MAX_TEXT = 64
"""Bytes of a text or a number: the only texts needed are the names of the splits."""

_MARK = object()


class _Refused(Exception):
    """Found while reading; `read_pickle` adds the name of the file."""


def read_pickle(data: bytes, what: str) -> dict[str, list[Roll]]:
    """The pieces of an original `.pickle` file given as bytes. Nothing in it is ever called."""
    try:
        splits = _rolls(_Machine(data).run())
    except _Refused as error:
        raise DataError(f"{what}: not a readable pickle of piano rolls ({error})") from error
    check_splits(splits, what)
    return splits


class _Machine:
    """The harmless part of the pickle machine, protocols 0 to 5."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        instructions = _INSTRUCTIONS
        try:
            for _ in range(MAX_INSTRUCTIONS):
                code = self.data[self.at]
                self.at += 1
                if code == 0x2E:  # STOP
                    return self.stack.pop()
                action = instructions.get(code)
                if action is None:
                    raise _Refused(
                        f"instruction {bytes([code])!r} at byte {self.at - 1} is not needed for data"
                    )
                action(self)
        except IndexError:
            raise _Refused("it is cut off or takes from an empty stack") from None
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise _Refused(f"byte {self.at}: {type(error).__name__}") from error
        raise _Refused(f"more than {MAX_INSTRUCTIONS} instructions")

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise _Refused("it is cut off")
        self.at += count
        return part

    def number(self, count: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(count), "little", signed=signed)

    def text(self, count: int) -> str:
        if count > MAX_TEXT:
            raise _Refused(f"a text of {count} bytes")
        return self.take(count).decode("latin-1")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + MAX_TEXT + 1)
        if end < 0:
            raise _Refused("a line without end")
        line = self.data[self.at : end].decode("latin-1")
        self.at = end + 1
        return line

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """Take all that was pushed since the last mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise _Refused("a mark is missing")
        values = stack[at + 1 :]
        del stack[at:]
        return values

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise _Refused("it takes from an empty stack")
        values = tuple(self.stack[-count:])
        self.stack[-count:] = [values]

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _Refused("it appends to what is not a list")
        target.extend(values)

    def update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise _Refused("it sets items of what is not a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str:
                raise _Refused("a key that is not a text")
            target[key] = value

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def pair(self) -> list[Any]:
        value = self.stack.pop()
        return [self.stack.pop(), value]


def _dict(machine: _Machine) -> None:
    values = machine.marked()
    machine.push({})
    machine.update(values)


def _int_line(text: str) -> int:
    if not text.lstrip("-").removesuffix("L").isdecimal():
        raise _Refused(f"{text!r} is not a number")
    return int(text.removesuffix("L"))


_INSTRUCTIONS: dict[int, Callable[[_Machine], Any]] = {
    ord(code): action
    for code, action in {
        "\x80": lambda m: m.take(1),  # PROTO
        "\x95": lambda m: m.take(8),  # FRAME: only a hint for reading ahead
        "(": lambda m: m.push(_MARK),
        "0": lambda m: m.stack.pop(),
        "1": lambda m: m.marked(),
        "N": lambda m: m.push(None),
        "I": lambda m: m.push(_int_line(m.line())),
        "L": lambda m: m.push(_int_line(m.line())),
        "J": lambda m: m.push(m.number(4, signed=True)),
        "K": lambda m: m.push(m.number(1)),
        "M": lambda m: m.push(m.number(2)),
        "\x8a": lambda m: m.push(
            int.from_bytes(m.text(m.number(1)).encode("latin-1"), "little", signed=True)
        ),
        "S": lambda m: m.push(m.line().strip("'\"")),
        "V": lambda m: m.push(m.line()),
        "T": lambda m: m.push(m.text(m.number(4))),
        "U": lambda m: m.push(m.text(m.number(1))),
        "X": lambda m: m.push(m.text(m.number(4))),
        "\x8c": lambda m: m.push(m.text(m.number(1))),
        ")": lambda m: m.push(()),
        "t": lambda m: m.push(tuple(m.marked())),
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "]": lambda m: m.push([]),
        "l": lambda m: m.push(m.marked()),
        "a": lambda m: m.extend([m.stack.pop()]),
        "e": lambda m: m.extend(m.marked()),
        "}": lambda m: m.push({}),
        "d": _dict,
        "s": lambda m: m.update(m.pair()),
        "u": lambda m: m.update(m.marked()),
        "p": lambda m: m.remember(_int_line(m.line())),
        "q": lambda m: m.remember(m.number(1)),
        "r": lambda m: m.remember(m.number(4)),
        "\x94": lambda m: m.remember(len(m.memo)),
        "g": lambda m: m.push(m.memo[_int_line(m.line())]),
        "h": lambda m: m.push(m.memo[m.number(1)]),
        "j": lambda m: m.push(m.memo[m.number(4)]),
    }.items()
}


def _rolls(content: Any) -> dict[str, list[Roll]]:
    """Lists of notes as piano rolls. Counted first, to the notes: a file can refer to one list many times."""
    if type(content) is not dict:
        raise _Refused("it is not a dict of splits")
    unknown = set(content) - set(SPLITS)
    if unknown:
        raise _Refused(f"it has a split {min(unknown)[:40]!r}")
    frames = notes = 0
    for pieces in content.values():
        if type(pieces) is not list:
            raise _Refused("a split is not a list of pieces")
        for piece in pieces:
            if type(piece) not in (list, tuple):
                raise _Refused("a piece is not a list of frames")
            frames += len(piece)
            if frames > MAX_FRAMES:
                raise _Refused(f"more than {MAX_FRAMES} frames")
    for piece in itertools.chain.from_iterable(content.values()):
        if not {list, tuple}.issuperset(map(type, piece)):
            raise _Refused("a frame is not a tuple of notes")
        notes += sum(map(len, piece))
        if notes > MAX_NOTES:
            raise _Refused(f"more than {MAX_NOTES} notes")
    return {split: [_roll(piece) for piece in pieces] for split, pieces in content.items()}


def _roll(piece: list[Any]) -> Roll:
    roll = np.zeros((len(piece), KEYS), np.uint8)
    for step, frame in enumerate(piece):
        for note in frame:
            if type(note) is not int or not LOWEST <= note <= HIGHEST:
                got = note if type(note) is int else f"a {type(note).__name__}"  # Which may be of any size.
                raise _Refused(f"a note must be a MIDI number in {LOWEST}..{HIGHEST}, got {got}")
            roll[step, note - LOWEST] = 1
    return roll
