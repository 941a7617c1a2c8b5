import hashlib
import io
import pickle
import shutil

import numpy as np
import pytest
import scipy.io

from fastdropout.errors import DataError
from fastdropout.music.data import canonical
from fastdropout.music.data.baselines import frequencies_nll
from fastdropout.music.data.canonical import CANONICAL, load_canonical
from fastdropout.music.data.npz import dump_arrays
from fastdropout.music.data.rolls import Corpus, pack

# Pieces, frames, and the note 1-gram figures of the data sets' description.
KNOWN = {
    "piano-midi": ((87, 12, 25), (75911, 8540, 19036), 11.046, 12.903),
    "nottingham": ((694, 173, 170), (176561, 45513, 44463), 10.252, 16.242),
    "musedata": ((524, 135, 124), (245202, 82755, 64339), 11.510, 14.055),
    "jsb-chorales": ((229, 76, 77), (13807, 4602, 4725), 11.061, 15.927),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_canonical_figures(name, data_dir):
    pieces, frames, marginals, shared = KNOWN[name]
    corpus = load_canonical(name, data_dir)
    rows = corpus.statistics()
    assert tuple(row.pieces for row in rows.values()) == pieces
    assert tuple(row.frames for row in rows.values()) == frames
    # Rounded to three digits: they match only with the first frames scored and the average over frames.
    assert round(frequencies_nll(corpus.train, corpus.test), 3) == marginals
    p = np.concatenate(corpus.train).mean()  # One probability for all notes.
    counts = np.concatenate(corpus.test).sum(axis=1)
    assert round(float(-(counts * np.log(p) + (88 - counts) * np.log1p(-p)).mean()), 3) == shared


def test_every_known_name_has_figures():
    assert set(KNOWN) == set(CANONICAL)


def mat(splits):
    buffer, content = io.BytesIO(), {}
    for split, pieces in splits.items():
        content[f"{split}data"] = np.empty((1, len(pieces)), object)
        content[f"{split}data"][0, :] = pieces
    scipy.io.savemat(buffer, content)
    return buffer.getvalue()


def as_pickle(splits):
    lists = {
        s: [[tuple(np.flatnonzero(f).tolist()) for f in p] for p in pieces] for s, pieces in splits.items()
    }
    return pickle.dumps(
        {s: [[tuple(n + 21 for n in f) for f in p] for p in ps] for s, ps in lists.items()}, 0
    )


@pytest.fixture
def known(splits, monkeypatch):
    """The tiny corpus as if it were the canonical one."""
    files = {
        "jsb-chorales.npz": dump_arrays(pack(splits)),
        "JSB_Chorales.mat": mat(splits),
        "JSB Chorales.pickle": as_pickle(splits),
    }
    hashes = [hashlib.sha256(data).hexdigest() for data in files.values()]
    names = list(files)
    entry = canonical.Canonical(
        names[0], hashes[0], names[1], hashes[1], names[2], Corpus("x", splits).sha256
    )
    monkeypatch.setitem(CANONICAL, "jsb-chorales", entry)
    return files


@pytest.mark.parametrize("number", range(3))
def test_each_kind_of_file_gives_the_same_corpus(tmp_path, known, splits, number):
    name, data = list(known.items())[number]
    (tmp_path / name).write_bytes(data)
    corpus = load_canonical("jsb-chorales", tmp_path)
    assert corpus.sha256 == Corpus("x", splits).sha256
    assert corpus.source == str(tmp_path / name)


@pytest.mark.parametrize("number", range(3))
def test_another_hash_is_refused_unless_asked_for(tmp_path, known, splits, number):
    splits["train"][0][0, 0] ^= 1
    name = list(known)[number]
    data = [dump_arrays(pack(splits)), mat(splits), as_pickle(splits)][number]
    (tmp_path / name).write_bytes(data)
    entry = CANONICAL["jsb-chorales"]
    expected = [entry.npz_sha256, entry.mat_sha256, entry.content_sha256][number]
    got = Corpus("x", splits).sha256 if number == 2 else hashlib.sha256(data).hexdigest()
    with pytest.raises(DataError) as caught:
        load_canonical("jsb-chorales", tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert expected in str(caught.value)
    assert got in str(caught.value)
    assert load_canonical("jsb-chorales", tmp_path, verify=False).sha256 == Corpus("x", splits).sha256


def test_a_truncated_file_is_refused(tmp_path, data_dir):
    path = tmp_path / "jsb-chorales.npz"
    path.write_bytes((data_dir / path.name).read_bytes()[:-1000])
    with pytest.raises(DataError, match="sha256"):
        load_canonical("jsb-chorales", tmp_path)
    with pytest.raises(DataError, match="not a readable"):
        load_canonical("jsb-chorales", tmp_path, verify=False)


def test_the_folder_comes_from_the_argument_or_the_variable(tmp_path, known, monkeypatch):
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)
    with pytest.raises(DataError, match=r"--data DIR or \$FASTDROPOUT_DATA"):
        load_canonical("jsb-chorales")
    (tmp_path / "jsb-chorales.npz").write_bytes(known["jsb-chorales.npz"])
    monkeypatch.setenv("FASTDROPOUT_DATA", str(tmp_path))
    assert load_canonical("jsb-chorales").train
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"--data DIR or \$FASTDROPOUT_DATA.*'JSB Chorales.pickle'"):
        load_canonical("jsb-chorales", empty)
    shutil.rmtree(empty)
    with pytest.raises(DataError, match="no such folder"):
        load_canonical("jsb-chorales", empty)
