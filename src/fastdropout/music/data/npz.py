"""Reading `.npz` files from anywhere: plain arrays only, sizes checked before memory is taken."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from fastdropout.errors import DataError, one_line
from fastdropout.files import read_file

MAX_FILE = 256 << 20
"""Bytes of a data file as it lies on the disk."""
MAX_ARRAY = 64 << 20
"""Bytes of one array. MuseData's largest takes 3 MB."""
MAX_HEADER = 1024
MAX_MEMBERS = 64

_DTYPES = ("|u1", "|i1", "|b1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", ">i4", ">i8")
_FLOATS = ("<f2", "<f4", "<f8", ">f4", ">f8")
_HEADER = re.compile(
    rb"\{'descr': '([|<>][a-z]\d)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12})?)\), \} *\n"
)

# What zipfile raises on damaged files; ValueError covers odd names, RuntimeError encrypted members.
_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    KeyError,
    EOFError,
    OSError,
    RuntimeError,
)


def read_bytes(path: str | os.PathLike[str], limit: int = MAX_FILE) -> bytes:
    """The bytes of a data file no larger than `limit`; whatever fails is a `DataError`."""
    path = Path(path)
    try:
        return read_file(path, limit)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def load_arrays(
    data: bytes, what: str, *, floats: bool = False, most: int = MAX_MEMBERS
) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file given as bytes: of integers, with `floats` also of real numbers.

    Never unpickles, takes bounded memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > most:
                raise DataError(f"{what}: holds {len(members)} arrays, allowed are {most}")
            return {
                info.filename.removesuffix(".npy"): _member(archive, info, what, floats) for info in members
            }
    except _FAULTS as error:
        raise DataError(f"{what}: not a readable .npz file ({one_line(error, 120)})") from error


def dump_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a compressed `.npz` file: the same arrays always give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))  # Without the time of day.
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def load_array(data: bytes, what: str) -> np.ndarray:
    """The array of an `.npy` file given as bytes, of integers or of real numbers. Never unpickles."""
    return _array(io.BytesIO(data), what, len(data), floats=True)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str, floats: bool) -> np.ndarray:
    where = f"{what}: {info.filename[:80]!r}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where} is compressed in an unusual way")  # LZMA can ask for GBs.
    with archive.open(info) as file:
        return _array(file, where, info.file_size, floats)


def _array(file: IO[bytes], where: str, most: int, floats: bool) -> np.ndarray:
    dtype, shape = _header(file, where, floats)
    size = math.prod(shape) * dtype.itemsize
    if size > min(MAX_ARRAY, most):
        raise DataError(f"{where} declares {size} bytes, more than there are or than are allowed")
    content = file.read(size + 1)  # One more, so that the end is reached and the checksum compared.
    if len(content) != size:
        raise DataError(f"{where} declares {size} bytes, but holds another number")
    return np.frombuffer(content, dtype).reshape(shape)


def _header(file: IO[bytes], where: str, floats: bool) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape of an array. numpy's reader evaluates the text, this one compares."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00"):
        raise DataError(f"{where} is not an .npy array of version 1 or 2")
    length = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
    if length > MAX_HEADER:
        raise DataError(f"{where} has a header of {length} bytes, allowed are {MAX_HEADER}")
    found = _HEADER.fullmatch(file.read(length))
    if found is None or found[1].decode() not in (*_DTYPES, *(_FLOATS if floats else ())):
        kinds = "integers or real numbers" if floats else "integers"
        raise DataError(f"{where} must be a plain array of {kinds} in C order")
    return np.dtype(found[1].decode()), tuple(int(n) for n in re.findall(rb"\d+", found[2]))
