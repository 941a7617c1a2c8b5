"""Reading the public `.mat` files: cell arrays of uint8 matrices, as MATLAB 5 to 7 writes them.

A reader of its own and not `scipy.io.loadmat`, because these files come from anywhere: here nothing is
allocated that the file does not hold, and compressed parts are unpacked up to a limit only.

The format (MAT-File Format, level 5): a header of 128 bytes, then elements of a tag (type, number of
bytes) and data padded to 8 bytes. An array is an element of elements: flags with the class, dimensions,
name, values.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from fastdropout.errors import DataError
from fastdropout.music.data.rolls import KEYS, SPLITS, Roll, check_splits

MAX_UNPACKED = 320 << 20
"""Bytes after decompression: MuseData as float64 takes 276 MB, as uint8 35 MB."""
MAX_CELLS = 100_000

_MATRIX, _COMPRESSED = 14, 15
_CELL = 1
_COMPLEX = 0x0800  # A flag: a second set of values follows.
_NUMERIC = range(6, 16)  # double, single and the integers; the others are text, structs, objects.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


class _Malformed(Exception):
    """Found while reading; `read_mat` adds the name of the file."""


def read_mat(data: bytes, what: str) -> dict[str, list[Roll]]:
    """The pieces of a `.mat` file given as bytes, under the keys `traindata`, `validdata` and `testdata`."""
    wanted = {f"{split}data": split for split in SPLITS}
    splits: dict[str, list[Roll]] = {}
    try:
        order = _byte_order(data)
        budget = MAX_UNPACKED
        for kind, part in _elements(memoryview(data)[128:], order):
            if kind == _COMPRESSED:
                part = memoryview(_inflate(part, budget))
                budget -= len(part)
                kind, part = next(_elements(part, order), (0, part))
            if kind != _MATRIX:
                continue
            name, cells = _cells(part, order)
            if name in wanted:
                splits[wanted[name]] = [_roll(cell, order) for cell in cells]
    except (_Malformed, struct.error, ValueError, zlib.error) as error:
        raise DataError(f"{what}: not a readable .mat file ({error})") from error
    check_splits(splits, what)
    return splits


def _byte_order(data: bytes) -> str:
    if len(data) < 128:
        raise _Malformed("shorter than its header")
    if data[126:128] == b"IM":
        return "<"
    if data[126:128] == b"MI":
        return ">"
    if data.startswith(b"\x89HDF"):
        raise _Malformed("version 7.3, but 5 to 7 is needed")
    raise _Malformed("not in the format of MATLAB 5 to 7")


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The type and the data of one element after the other."""
    at = 0
    while len(data) - at >= 8:
        kind, size = struct.unpack_from(order + "II", data, at)
        if kind >> 16:  # The small form: size and type share four bytes, the data lie in the other four.
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            if size > 4:
                raise _Malformed("a small element of more than 4 bytes")
        else:
            start = at + 8
            end = start + size
            if kind != _COMPRESSED:
                end += -size % 8
        if start + size > len(data):
            raise _Malformed(f"cut off, {start + size - len(data)} bytes are missing")
        yield kind, data[start : start + size]
        at = end


def _inflate(data: memoryview, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, max(limit, 1))
    if unpacker.unconsumed_tail:
        raise _Malformed(f"unpacks to more than {MAX_UNPACKED >> 20} MB")
    if not unpacker.eof:
        raise _Malformed("a compressed part is cut off")
    return unpacked


def _array(data: memoryview, order: str) -> tuple[int, tuple[int, ...], str, list[tuple[int, memoryview]]]:
    """The class, dimensions, name and the remaining elements of an array."""
    parts = list(_limited(_elements(data, order)))
    if len(parts) < 3:
        raise _Malformed("an array without flags, dimensions or name")
    flags = struct.unpack_from(order + "I", parts[0][1])[0]
    if flags & _COMPLEX:
        raise _Malformed("a complex array")
    if parts[1][0] != 5 or len(parts[1][1]) % 4:
        raise _Malformed("dimensions of another type than int32")
    dims = struct.unpack(f"{order}{len(parts[1][1]) // 4}i", parts[1][1])
    if len(dims) < 2 or min(dims) < 0:
        raise _Malformed(f"dimensions {list(dims)[:4]}")
    return flags & 0xFF, dims, bytes(parts[2][1]).decode("latin-1"), parts[3:]


def _limited(parts: Iterator[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
    for number, part in enumerate(parts):
        if number > MAX_CELLS:
            raise _Malformed(f"more than {MAX_CELLS} cells")
        yield part


def _cells(data: memoryview, order: str) -> tuple[str, list[memoryview]]:
    """The name of a variable and, if it is a cell array, its cells."""
    kind, dims, name, parts = _array(data, order)
    if kind != _CELL:
        return name, []
    if math.prod(dims) != len(parts) or any(k != _MATRIX for k, _ in parts):
        raise _Malformed(f"{name[:40]!r} declares {math.prod(dims)} cells, but holds {len(parts)}")
    return name, [part for _, part in parts]


def _roll(data: memoryview, order: str) -> Roll:
    """A cell as a piece; the values may be stored in any numeric type, but must be 0 and 1."""
    kind, dims, _, parts = _array(data, order)
    if kind not in _NUMERIC or len(parts) != 1 or parts[0][0] not in _TYPES:
        raise _Malformed("a cell that is not a numeric matrix")
    if len(dims) != 2 or dims[1] != KEYS:
        raise _Malformed(f"a piece of shape {list(dims)[:4]}, needed is [steps, {KEYS}]")
    values = np.frombuffer(parts[0][1], order + _TYPES[parts[0][0]])
    if len(values) != math.prod(dims):
        raise _Malformed(f"a piece of {math.prod(dims)} values holds {len(values)}")
    if not ((values == 0) | (values == 1)).all():
        raise _Malformed("a piece with values other than 0 and 1")
    # MATLAB stores columns one after the other.
    return np.ascontiguousarray(values.reshape(dims[::-1]).T.astype(np.uint8))
