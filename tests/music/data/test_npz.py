import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.music.data import npz
from fastdropout.music.data.npz import dump_arrays, load_arrays, read_bytes


def archive(members, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(save):
    arrays = {"a": np.arange(12, dtype=np.int32).reshape(3, 4), "b": np.zeros(0, np.uint8), "c": np.uint8(3)}
    buffer = io.BytesIO()
    save(buffer, **arrays)
    got = load_arrays(buffer.getvalue(), "x")
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].shape == array.shape


def test_numpy_reads_what_we_write(splits):
    arrays = {"a": np.arange(5, dtype=np.int32), "b": splits["train"][0]}
    data = dump_arrays(arrays)
    with np.load(io.BytesIO(data), allow_pickle=False) as got:
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name], array)
    assert dump_arrays(arrays) == data


def test_a_huge_declared_shape_takes_no_memory():
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (900000000000, 11), }\n"
    data = archive({"train_frames.npy": header(text) + bytes(100)})
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="declares 9900000000000 bytes"):
            load_arrays(data, "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_takes_no_memory(monkeypatch):
    monkeypatch.setattr(npz, "MAX_ARRAY", 1 << 20)
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }\n"
    bombs = [
        archive({"a.npy": header(text % (64 << 20)) + bytes(64 << 20)}),
        archive({"a.npy": header(text % 10) + bytes(64 << 20)}),
        archive({"a.npy": header(text % (1 << 20)) + bytes(64 << 20)}),
    ]
    tracemalloc.start()
    try:
        for bomb in bombs:
            assert len(bomb) < 100_000
            with pytest.raises(DataError, match="declares"):
                load_arrays(bomb, "x")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.array([{}], object), allow_pickle=True), "plain array"),
        (npy(np.zeros(3)), "plain array"),
        (npy(np.asfortranarray(np.zeros((3, 4), np.uint8))), "plain array"),
        (b"hello", "not an .npy"),
        (b"", "not an .npy"),
        (npy(np.zeros(9, np.uint8))[:-1], "another number"),
        (npy(np.zeros(9, np.uint8)) + b"!", "another number"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of 4294967295"),
    ],
)
def test_anything_but_plain_integers_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        load_arrays(archive({"a.npy": content}), "x")


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x04N.", dump_arrays({"a": np.arange(9)})[:-30]])
def test_what_is_not_a_zip_file_is_refused(data):
    with pytest.raises(DataError, match=r"my file: not a readable \.npz"):
        load_arrays(data, "my file")


def test_unusual_compression_and_many_members_are_refused():
    with pytest.raises(DataError, match="unusual"):
        load_arrays(archive({"a.npy": npy(np.zeros(3, np.uint8))}, zipfile.ZIP_LZMA), "x")
    with pytest.raises(DataError, match="holds 100 arrays"):
        load_arrays(archive({f"{i}.npy": b"" for i in range(100)}), "x")


def test_a_damaged_array_fails_its_checksum():
    data = bytearray(archive({"a.npy": npy(np.arange(50, dtype=np.uint8))}, zipfile.ZIP_STORED))
    data[data.index(bytes(range(10, 20)))] ^= 1
    with pytest.raises(DataError, match="CRC"):
        load_arrays(bytes(data), "x")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(DataError, match="Is a directory"):
        read_bytes(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_bytes(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot be read"):
        read_bytes(tmp_path / ("n" * 300))
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    with pytest.raises(DataError, match="larger than 2 MB"):
        read_bytes(tmp_path / "big", 2 << 20)
