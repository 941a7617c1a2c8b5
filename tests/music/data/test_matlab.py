import io
import zlib

import numpy as np
import pytest
import scipy.io

from fastdropout.errors import DataError
from fastdropout.music.data import matlab
from fastdropout.music.data.matlab import read_mat


def cells(pieces):
    array = np.empty((1, len(pieces)), object)
    for number, piece in enumerate(pieces):
        array[0, number] = piece
    return array


def mat(splits, compress=False, **more):
    buffer = io.BytesIO()
    content = {f"{split}data": cells(pieces) for split, pieces in splits.items()}
    scipy.io.savemat(buffer, {**content, **more}, do_compression=compress)
    return buffer.getvalue()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float64, np.int32, np.uint16])
def test_reads_what_scipy_writes(splits, compress, dtype):
    typed = {split: [piece.astype(dtype) for piece in pieces] for split, pieces in splits.items()}
    got = read_mat(mat(typed, compress, Piano=np.arange(3.0), text="hello"), "x")
    for split, pieces in splits.items():
        for a, b in zip(got[split], pieces, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.uint8
            assert a.flags.c_contiguous


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (np.zeros((4, 87), np.uint8), r"shape \[4, 87\]"),
        (np.full((4, 88), 3, np.uint8), "other than 0 and 1"),
        (np.full((4, 88), np.nan), "other than 0 and 1"),
        (np.full((4, 88), 1j), "complex"),
        ("text", "numeric"),
        (np.zeros((2, 2, 88), np.uint8), "shape"),
        (np.zeros((0, 88), np.uint8), "no frames|not a numeric"),
    ],
)
def test_other_cells_are_refused(splits, piece, message):
    with pytest.raises(DataError, match=message):
        read_mat(mat({**splits, "valid": [piece]}), "x")


def test_a_split_must_be_there_and_be_cells(splits):
    with pytest.raises(DataError, match="got train, valid"):
        read_mat(mat({"train": splits["train"], "valid": splits["valid"]}), "x")
    with pytest.raises(DataError, match="test split has no pieces"):
        read_mat(mat({k: splits[k] for k in ("train", "valid")}, testdata=np.zeros((3, 88), np.uint8)), "x")


def test_other_files_are_refused(splits):
    for data, message in (
        (b"", "header"),
        (bytes(200), "MATLAB 5"),
        (b"\x89HDF\r\n" + bytes(200), "7.3"),
        (mat(splits)[:-50], "cut off"),
        (mat(splits, compress=True)[:-50], "cut off"),
    ):
        with pytest.raises(DataError, match=message):
            read_mat(data, "x")


def test_a_bomb_is_unpacked_up_to_the_limit_only(monkeypatch):
    monkeypatch.setattr(matlab, "MAX_UNPACKED", 1 << 20)
    bomb = zlib.compress(bytes(64 << 20))
    data = bytes(124) + b"\x00\x01IM" + (15).to_bytes(4, "little") + len(bomb).to_bytes(4, "little") + bomb
    with pytest.raises(DataError, match="unpacks to more than 1 MB"):
        read_mat(data, "x")
