"""Damaged files of every kind give our own error or a valid corpus, in bounded time and memory."""

import io
import pickle
import random
import zipfile

import numpy as np
import pytest
import scipy.io

from fastdropout.errors import DataError
from fastdropout.music.data.matlab import read_mat
from fastdropout.music.data.midi import read_midi, write_midi
from fastdropout.music.data.npz import dump_arrays, load_arrays
from fastdropout.music.data.pickles import read_pickle
from fastdropout.music.data.rolls import pack, unpack


def cells(pieces):
    array = np.empty((1, len(pieces)), object)
    array[0, :] = pieces
    return array


@pytest.fixture
def kinds(splits, tmp_path, mutations):
    """For each kind: good files, a reader, and how to damage."""

    def mat(compress):
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, {f"{s}data": cells(splits[s]) for s in splits}, do_compression=compress)
        return buffer.getvalue()

    def midi(seed):
        rng = np.random.default_rng(seed)
        write_midi((rng.random((30, 88)) < 0.03).astype(np.uint8), tmp_path / "good.mid")
        return (tmp_path / "good.mid").read_bytes()

    def read_midi_bytes(data):
        (tmp_path / "bad.mid").write_bytes(data)
        return read_midi(tmp_path / "bad.mid")

    def inside(data: bytes, rng: random.Random) -> bytes:
        """Damage one array and zip it again: else the checksums of the zip file hide all that lies behind."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        victim = rng.choice(sorted(members))
        members[victim] = mutations.mutate(members[victim], rng)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    lists = {s: [[tuple((np.flatnonzero(f) + 21).tolist()) for f in p] for p in splits[s]] for s in splits}
    pickles = [pickle.dumps(lists, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    npz = [dump_arrays(pack(splits))]
    return {
        "npz": (npz, lambda data: unpack(load_arrays(data, "x"), "x"), mutations.mutate),
        "npz-inside": (npz, lambda data: unpack(load_arrays(data, "x"), "x"), inside),
        "mat": ([mat(False), mat(True)], lambda data: read_mat(data, "x"), mutations.mutate),
        "pickle": (pickles, lambda data: read_pickle(data, "x"), mutations.mutate),
        "midi": ([midi(1), midi(2)], read_midi_bytes, mutations.mutate),
    }


KINDS = ("npz", "npz-inside", "mat", "pickle", "midi")


def fuzz(mutations, kinds, kind, count, seed):
    samples, read, damage = kinds[kind]
    for sample in samples:
        read(sample)  # Undamaged, each is read.
    outcomes = mutations.survive(samples, read, DataError, count, seed=seed, damage=damage)
    assert outcomes["refused"] > count / 4, "the mutations damage nothing"
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(mutations, kinds, kind):
    fuzz(mutations, kinds, kind, 400, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_damaged_files(mutations, kinds, kind):
    print(kind, dict(fuzz(mutations, kinds, kind, 10_000, seed=2)))  # Shown by pytest -s.
