import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.music.data.corpora import load
from fastdropout.music.data.npz import dump_arrays
from fastdropout.music.data.rolls import SPLITS, pack
from fastdropout.music.data.series import MANY, is_series


def numbers(steps, features=2, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, features)).astype(np.float32)


def bits(steps, features=5, seed=0):
    return (np.random.default_rng(seed).random((steps, features)) < 0.4).astype(np.uint8)


def test_one_series_is_cut_in_time(tmp_path):
    values = numbers(100)
    np.savez(tmp_path / "walk.npz", values)
    corpus = load(tmp_path / "walk.npz")
    assert (corpus.name, corpus.features, corpus.real, corpus.series) == ("walk", 2, True, True)
    parts = [corpus.splits[split][0] for split in SPLITS]
    assert [len(part) for part in parts] == [70, 15, 15]
    assert (np.concatenate(parts) == values).all()
    assert corpus.names["test"] == ["arr_0 (test)"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_names_say_the_split(tmp_path, save):
    pieces = {"train_a": bits(9), "train_b": bits(5), "valid": bits(4), "TEST-1": bits(3)}
    save(tmp_path / "x.npz", **pieces)
    corpus = load(str(tmp_path / "x.npz"))
    assert not corpus.real
    assert corpus.train[0].dtype == np.uint8
    assert [len(corpus.splits[split]) for split in SPLITS] == [2, 1, 1]
    assert corpus.names["test"] == ["TEST-1"]
    assert (corpus.train[1] == pieces["train_b"]).all()


def test_an_array_may_hold_several_pieces_or_one_feature(tmp_path):
    np.savez(tmp_path / "x.npz", train=np.zeros((4, 7, 3)), valid=np.ones((6, 3)), test=np.ones((1, 5, 3)))
    corpus = load(tmp_path / "x.npz")
    assert [len(piece) for piece in corpus.train] == [7] * 4
    assert not corpus.real  # Real numbers, but all of them 0 or 1.
    np.savez(tmp_path / "y.npz", np.arange(50))
    corpus = load(tmp_path / "y.npz")
    assert corpus.features == 1
    assert corpus.real


def test_a_folder_of_files(tmp_path):
    for split in SPLITS:
        (tmp_path / split).mkdir()
    np.save(tmp_path / "train" / "a.npy", numbers(8))
    (tmp_path / "train" / "b.csv").write_text("x,y\n1,2\n3,4.5\n\n-1e3,6\n")
    (tmp_path / "valid" / "a.csv").write_text("1;2\n3;4\n")
    np.savez(tmp_path / "test" / "z.npz", one=numbers(4), two=numbers(3))
    (tmp_path / ".hidden.csv").write_text("nothing")
    (tmp_path / "README.txt").write_text("nothing")
    corpus = load(tmp_path)
    assert corpus.train[1].tolist() == [[1, 2], [3, 4.5], [-1000, 6]]
    assert corpus.names["test"] == ["test/z/one", "test/z/two"]
    assert corpus.valid[0].dtype == np.float32


def test_many_pieces_stay_whole_and_few_are_cut(tmp_path):
    for n in range(MANY):
        np.save(tmp_path / f"{n}.npy", numbers(20 + n))
    whole = load(tmp_path)
    assert sum(len(whole.splits[split]) for split in SPLITS) == MANY
    (tmp_path / "0.npy").unlink()
    assert [len(load(tmp_path).splits[split]) for split in SPLITS] == [MANY - 1] * 3


def test_the_layout_of_the_canonical_sets_is_a_piano_roll(tmp_path):
    rolls = {split: [bits(5, 88, n)] for n, split in enumerate(SPLITS)}
    (tmp_path / "mine.npz").write_bytes(dump_arrays(pack(rolls)))
    corpus = load(tmp_path / "mine.npz")
    assert not corpus.series
    assert (corpus.test[0] == rolls["test"][0]).all()


def test_the_hash_is_of_the_content(tmp_path):
    hashes = set()
    for n, array in enumerate((bits(40, 5), bits(40, 5, 1), bits(40, 6), numbers(40, 5), numbers(40, 5, 1))):
        np.save(tmp_path / "x.npy", array)
        found = load(tmp_path / "x.npy").sha256
        assert found == load(tmp_path / "x.npy").sha256
        hashes.add(found)
        assert len(hashes) == n + 1


def test_folders_of_midi_files_stay_such(tmp_path):
    (tmp_path / "meta.csv").write_text("1,2\n")
    assert is_series(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.mid").write_bytes(b"MThd")
    assert not is_series(tmp_path)
    assert not is_series("bach")
    assert not is_series(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros((2, 2, 2, 2))}, r"'a' must be \[steps\], .* got \[2, 2, 2, 2\]"),
        ({"a": np.zeros((0, 3))}, r"'a' must be \[steps\], .* got \[0, 3\]"),
        ({"a": np.full((9, 1), np.nan)}, "'a' must hold finite values, step 0 does not"),
        ({"a": np.full((9, 1), 1e300)}, "'a' must hold values of float32, got 1e[+]300"),
        ({"a": np.zeros((9, 2)), "b": np.zeros((9, 3))}, "'b' must have 2 features as the first, got 3"),
        ({"train": np.zeros((9, 2)), "b": np.zeros((9, 2))}, "'b' must begin with train, valid or test"),
        (
            {"train": np.zeros((9, 2)), "test": np.zeros((9, 2))},
            "nothing is for valid, its pieces begin",
        ),
        ({"a": np.zeros((6, 2))}, "'a' has 6 steps, too few to cut into train, valid and test"),
        ({"a": np.zeros((6, 2), complex)}, "must be a plain array of integers or real numbers"),
        ({"a": np.array([["x"]])}, "must be a plain array of integers or real numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "x.npz")
    assert str(tmp_path / "x.npz") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no numbers"),
        ("a,b\n", "holds no numbers"),
        ("1,2\n3,x\n", "line 2: 'x' is not a number"),
        ("1,2\n3\n", "line 2 has 1 columns, others 2"),
        ("1\ninf\n" + "1\n" * 20, "must hold finite values, step 1 does not"),
        ("1\n\x00\n", "not a"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "x.csv")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not a readable"):
        load(tmp_path / "x.npz")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00\x02\x00{}")
    with pytest.raises(DataError, match="must be a plain array"):
        load(tmp_path / "x.npy")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe1")
    with pytest.raises(DataError, match="not a text file"):
        load(tmp_path / "x.csv")
    with pytest.raises(DataError, match="is no corpus, no such file and no folder"):
        load(tmp_path / "none.npz")


def test_changes_that_float32_rounds_away_are_told(tmp_path):
    np.save(tmp_path / "late.npy", np.linspace(1e8, 1e8 + 5, 120))
    with pytest.raises(DataError, match=r"feature 1 must vary by more than float32 .* subtract the mean"):
        load(tmp_path / "late.npy")
    np.save(tmp_path / "late.npy", np.linspace(1e8, 1e8 + 5, 120) - 1e8)
    assert load(tmp_path / "late.npy").real


def test_a_file_of_another_kind_is_no_missing_file(tmp_path):
    (tmp_path / "data.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"must be a \.npz, \.npy, \.csv file or a folder, got another kind"):
        load(tmp_path / "data.txt")
