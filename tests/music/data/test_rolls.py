import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.music.data.rolls import Corpus, check_splits, pack, split_by_hash, statistics, unpack


def test_pack_and_unpack(splits):
    again = unpack(pack(splits), "x")
    for split in splits:
        assert len(again[split]) == len(splits[split])
        for a, b in zip(again[split], splits[split], strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.uint8


def test_the_layout_is_the_documented_one(splits):
    arrays = pack(splits)
    assert set(arrays) == {f"{s}_{k}" for s in ("train", "valid", "test") for k in ("frames", "lengths")}
    assert arrays["train_frames"].shape == (44, 11)
    assert arrays["train_frames"].dtype == np.uint8
    assert arrays["train_lengths"].dtype == np.int32
    pieces = np.split(np.unpackbits(arrays["train_frames"], axis=1), np.cumsum(arrays["train_lengths"])[:-1])
    np.testing.assert_array_equal(pieces[2], splits["train"][2])


def test_the_hash_is_of_the_content(splits):
    a = Corpus("a", splits, source="here")
    b = Corpus("b", unpack(pack(splits), "x"), source="there")
    assert a.sha256 == b.sha256
    splits["test"][0][3, 40] ^= 1
    assert Corpus("a", splits).sha256 != a.sha256


def test_the_hash_sees_where_pieces_end(splits):
    joined = {**splits, "train": [np.concatenate(splits["train"])]}
    assert Corpus("a", joined).sha256 != Corpus("a", splits).sha256


def test_statistics():
    piece = np.zeros((4, 88), np.uint8)
    piece[0, [0, 39]] = 1
    piece[1, 87] = 1
    row = statistics([piece, piece[:2]])
    assert (row.pieces, row.frames, row.shortest, row.longest) == (2, 6, 2, 4)
    assert row.notes_per_frame == 1.0
    assert row.silent == pytest.approx(2 / 6)
    assert (row.lowest, row.highest) == (21, 108)
    assert statistics([np.zeros((2, 88), np.uint8)]).lowest == 0


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (np.zeros((3, 87), np.uint8), "88"),
        (np.zeros((3, 88), np.float32), "uint8"),
        (np.zeros((88,), np.uint8), "uint8"),
        (np.zeros((0, 88), np.uint8), "no frames"),
        (np.full((3, 88), 2, np.uint8), "0 and 1"),
    ],
)
def test_bad_pieces_are_named(splits, piece, message):
    splits["valid"][1] = piece
    with pytest.raises(DataError, match=rf"corpus: valid piece 1 .*{message}"):
        check_splits(splits, "corpus")


def test_all_splits_are_needed(splits):
    with pytest.raises(DataError, match="test split has no pieces"):
        check_splits({**splits, "test": []}, "x")
    with pytest.raises(DataError, match="train, valid and test, got test, train"):
        check_splits({"train": splits["train"], "test": splits["test"]}, "x")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train_frames", np.zeros((44, 12), np.uint8), "train_frames must be"),
        ("train_frames", np.zeros((44, 11), np.int32), "train_frames must be"),
        ("train_frames", np.zeros((45, 11), np.uint8), "add up to 44"),
        ("train_lengths", np.array([[44]], np.int32), "train_lengths must be"),
        ("train_lengths", np.array([44.0]), "train_lengths must be"),
        ("train_lengths", np.array([-1, 45], np.int32), "must lie in"),
        ("train_lengths", np.array([44, 0], np.int32), "must lie in"),
        ("train_lengths", np.array([2**63 - 1, 2**63 - 1, 46], np.int64), "must lie in"),
        ("train_lengths", np.array([], np.int32), "add up to 0"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(splits, key, value, message):
    with pytest.raises(DataError, match=message):
        unpack({**pack(splits), key: value}, "x")


def test_a_missing_array_is_named(splits):
    arrays = pack(splits)
    del arrays["valid_lengths"]
    with pytest.raises(DataError, match="valid_lengths"):
        unpack(arrays, "x")


def test_the_split_of_a_name_never_changes():
    got = [split_by_hash(f"piece{i}.mid")[:2] for i in range(12)]
    assert got == ["tr", "tr", "va", "tr", "tr", "te", "va", "va", "tr", "va", "tr", "tr"]
    many = [split_by_hash(str(i)) for i in range(5000)]
    assert many.count("train") / 5000 == pytest.approx(0.76, abs=0.02)
    assert many.count("valid") / 5000 == pytest.approx(0.12, abs=0.02)
