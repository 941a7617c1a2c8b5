import os
import pickle
import time
import tracemalloc

import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.music.data import pickles
from fastdropout.music.data.pickles import read_pickle


def notes(splits):
    return {
        split: [[tuple(int(k) + 21 for k in np.flatnonzero(frame)) for frame in piece] for piece in pieces]
        for split, pieces in splits.items()
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reads_every_protocol(splits, protocol):
    got = read_pickle(pickle.dumps(notes(splits), protocol), "x")
    for split, pieces in splits.items():
        for a, b in zip(got[split], pieces, strict=True):
            np.testing.assert_array_equal(a, b)


def test_reads_the_texts_of_python_2():
    # What Python 2 wrote for {'train': [[(60,)]], 'valid': ..., 'test': ...} in protocols 0 and 2.
    text = b"(dp0\n" + b"".join(
        b"S'%s'\np1\n(lp2\n(lp3\n(I60\ntp4\naas" % s for s in (b"train", b"valid", b"test")
    )
    binary = b"\x80\x02}q\x00(" + b"".join(
        b"U%c%sq\x01]q\x02]q\x03K<\x85q\x04aa" % (len(s), s) for s in (b"train", b"valid", b"test")
    )
    for data in (text + b".", binary + b"u."):
        got = read_pickle(data, "x")
        assert [np.flatnonzero(got[s][0][0]).tolist() for s in ("train", "valid", "test")] == [[39]] * 3


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_runs_nothing(tmp_path, splits, protocol):
    path = tmp_path / "made"
    data = pickle.dumps({**notes(splits), "train": [Hostile(path)]}, protocol)
    with pytest.raises(DataError, match="instruction"):
        read_pickle(data, "x")
    assert not path.exists()
    pickle.loads(data)  # The payload is a real one.
    assert path.exists()


@pytest.mark.parametrize(
    "code", b"cioRbBCPQ\x81\x82\x83\x84\x8d\x8e\x8f\x90\x91\x92\x93\x96\x97\x98FG2\x88\x8b"
)
def test_instructions_that_call_or_are_not_needed_do_not_exist(code):
    with pytest.raises(DataError, match=r"instruction .* at byte 0"):
        read_pickle(bytes([code]) + b"os\nsystem\n(S'true'\ntR.", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a dict"),
        ({"train": [], "extra": []}, "split 'extra'"),
        ({"train": 3}, "not a list of pieces"),
        ({"train": [3]}, "not a list of frames"),
        ({"train": [[3]]}, "tuple of notes"),
        ({"train": [[(20,)]]}, "21..108, got 20"),
        ({"train": [[(109,)]]}, "21..108, got 109"),
        ({"train": [[((),)]]}, "21..108, got a tuple"),
        ({"train": [[(None,)]]}, "21..108, got a NoneType"),
        ({"train": [[(60,)]]}, "got train"),
        ({1: []}, "key that is not a text"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        read_pickle(pickle.dumps(content, 2), "x")


BROKEN = (
    *(b"", b".", b"0.", b"}", b"}}s.", b"K", b"(K", b"t.", b"e.", b"]]e.", b"h\x05.", b"s."),
    *(b"Iabc\n.", b"I--1\n.", b"K\x01\x87.", b"U\xff.", b"X\xff\xff\xff\xff"),
)


@pytest.mark.parametrize("data", BROKEN)
def test_broken_programs_are_refused(data):
    with pytest.raises(DataError):
        read_pickle(data, "x")


def test_memory_is_bounded():
    laughs = b"](" + b"K\x3c\x85" * 100 + b"eq\x000" + b"]q\x01(" + b"h\x00" * 100_000 + b"e"
    bombs = [
        # A memo number of two billion: the C machine makes room for all below it.
        (b"}r\xff\xff\xff\x7f.", "got none"),
        (b"\x8a\xff" + b"\xff" * 255 + b".", "text of 255 bytes"),
        # Ten million frames in 200 KB.
        (b"}(X\x05\x00\x00\x00train" + laughs + b"u.", "more than 4000000 frames"),
        (b"(" * 1_000_000, "cut off"),
        # Nested deeper than any recursion.
        (b"]" * 100_000 + b"a" * 99_999 + b".", "not a dict"),
    ]
    tracemalloc.start()
    try:
        for bomb, message in bombs:
            with pytest.raises(DataError, match=message):
                read_pickle(bomb, "x")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_notes_are_counted_not_frames():
    """Four million references to one frame of 880 notes, in a file of 11 KB: each would be read again."""
    frame = b"(" + b"K\x3c" * 880 + b"tq\x000"
    piece = b"](" + b"h\x00" * 2000 + b"eq\x010"
    data = frame + piece + b"}X\x05\x00\x00\x00train](" + b"h\x01" * 2000 + b"es."
    assert len(data) < 11_000
    begin = time.process_time()
    with pytest.raises(DataError, match="more than 8000000 notes"):
        read_pickle(data, "x")
    assert time.process_time() - begin < 5


def test_the_number_of_instructions_is_limited(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", 100)
    with pytest.raises(DataError, match="more than 100 instructions"):
        read_pickle(b"N0" * 60, "x")
