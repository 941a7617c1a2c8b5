import struct

import numpy as np
import pytest
import symusic

from fastdropout.errors import DataError
from fastdropout.music.data import midi
from fastdropout.music.data.midi import load_folder, read_midi, write_midi


def tune(seed, steps=40):
    rng = np.random.default_rng(seed)
    roll = (rng.random((steps, 88)) < 0.04).astype(np.uint8)
    roll[[0, -1], 40] = 1  # Silence at the ends is not kept by MIDI.
    return roll


def raw(events, division=480, form=0):
    track = events + b"\x00\xff\x2f\x00"
    header = b"MThd" + struct.pack(">IHHH", 6, form, 1, division)
    return header + b"MTrk" + struct.pack(">I", len(track)) + track


def number(value):
    """A variable-length quantity."""
    out = [value & 127]
    while value := value >> 7:
        out.append(value & 127 | 128)
    return bytes(reversed(out))


def save(path, score):
    path.write_bytes(score.dumps_midi())
    return path


def simple(*notes, drum=False, ticks=480):
    score = symusic.Score(ticks)
    track = symusic.Track(is_drum=drum)
    for time, duration, pitch in notes:
        track.notes.append(symusic.Note(time, duration, pitch, 64))
    score.tracks.append(track)
    return score


def sounding(roll):
    return [(np.flatnonzero(frame) + 21).tolist() for frame in roll]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 48])
def test_a_roll_comes_back(tmp_path, steps):
    roll = tune(steps)
    write_midi(roll, tmp_path / "a.mid", steps_per_quarter=steps)
    np.testing.assert_array_equal(read_midi(tmp_path / "a.mid", steps_per_quarter=steps), roll)


def test_what_is_written(tmp_path):
    roll = np.zeros((5, 88), np.uint8)
    roll[1:4, 39] = 1
    roll[4, 0] = roll[0, 87] = 1
    write_midi(roll, tmp_path / "a.mid", steps_per_quarter=2, tempo=90, program=19)
    score = symusic.Score(tmp_path / "a.mid")
    (track,) = score.tracks
    notes = sorted((n.time, n.duration, n.pitch) for n in track.notes)
    assert notes == [(0, 240, 108), (240, 720, 60), (960, 240, 21)]
    assert track.program == 19
    assert score.tempos[0].qpm == pytest.approx(90, abs=0.01)


def test_an_empty_roll_can_be_written(tmp_path):
    write_midi(np.zeros((0, 88), np.uint8), tmp_path / "a.mid")
    with pytest.raises(DataError, match="no notes"):
        read_midi(tmp_path / "a.mid")
    with pytest.raises(DataError, match=r"\[steps, 88\]"):
        write_midi(np.zeros((3, 87), np.uint8), tmp_path / "b.mid")
    assert not (tmp_path / "b.mid").exists()


def test_notes_go_to_the_nearest_line_and_last_a_frame(tmp_path):
    played = simple((10, 225, 60), (470, 5, 62), (590, 130, 64))  # Played by hand: a little early or late.
    assert sounding(read_midi(save(tmp_path / "a.mid", played))) == [[60], [], [62, 64]]


def test_silence_before_the_music_is_cut_off(tmp_path):
    assert sounding(read_midi(save(tmp_path / "a.mid", simple((4800, 480, 60), (5280, 240, 62))))) == [
        [60], [60], [62]
    ]  # fmt: skip


def test_drums_and_keys_off_the_piano_are_left_out(tmp_path):
    score = simple((0, 480, 60), (0, 480, 20), (0, 480, 109))
    score.tracks.append(simple((0, 4800, 40), drum=True).tracks[0])
    assert sounding(read_midi(save(tmp_path / "a.mid", score))) == [[60], [60]]
    with pytest.raises(DataError, match="no notes on the 88 keys"):
        read_midi(save(tmp_path / "b.mid", simple((0, 480, 40), drum=True)))


def test_notes_of_a_key_may_overlap(tmp_path):
    score = simple((0, 960, 60))
    score.tracks.append(simple((240, 240, 60)).tracks[0])
    assert sounding(read_midi(save(tmp_path / "a.mid", score))) == [[60]] * 4


@pytest.mark.parametrize("steps", [0, -1, 49])
def test_a_strange_grid_is_refused(tmp_path, steps):
    path = save(tmp_path / "a.mid", simple((0, 480, 60)))
    with pytest.raises(DataError, match=r"1\.\.48"):
        read_midi(path, steps_per_quarter=steps)


def test_absurd_files_are_refused_before_memory_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "a.mid"
    on, off = b"\x90\x3c\x40", b"\x80\x3c\x00"
    for events, division, message in (
        (b"\x00" + on + number(2**28 - 1) + off, 1, "536870910 frames"),
        (b"\x00" + on + number(2**28 - 1) + off, 480, "1118481 frames"),
        (b"\x00" + on + b"\x00" + off, 480, "1 frames"),
        (b"\x00" + on + b"\x00" + off, 0, "ticks a quarter|broken"),
        (b"\x00" + on + b"\x00" + off, 0xE728, "broken"),  # Frames of film instead of quarters.
    ):
        path.write_bytes(raw(events, division))
        with pytest.raises(DataError, match=message):
            read_midi(path)
    monkeypatch.setattr(midi, "MAX_BYTES", 1 << 20)
    path.write_bytes(b"MThd" + bytes(2 << 20))
    with pytest.raises(DataError, match="larger than 1 MB"):
        read_midi(path)


def test_many_long_notes_take_no_time(tmp_path):
    """Two hundred thousand notes that each last for all of the longest piece: filled one by one, hours."""
    start = b"".join(b"\x00\x90" + bytes([21 + i % 88, 64]) for i in range(200_000))
    end = b"".join(b"\x00\x80" + bytes([21 + i % 88, 0]) for i in range(200_000))
    path = tmp_path / "a.mid"
    path.write_bytes(raw(start + number(480 * 90_000) + end[1:]))
    assert read_midi(path).shape == (180_000, 88)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "midis"
    for i in range(40):
        write_midi(tune(i, 20 + i), root / f"book{i % 3}" / f"piece{i}.{'MID' if i % 2 else 'midi'}")
    (root / "notes.txt").write_text("not music")
    (root / "._piece0.mid").write_bytes(b"\x00\x05\x16\x07")
    return root


def test_a_folder_becomes_a_corpus(folder):
    seen = []
    corpus = load_folder(folder, progress=lambda done, total: seen.append((done, total)))
    assert corpus.name == "midis"
    assert not corpus.skipped
    assert seen == [(i + 1, 40) for i in range(40)]
    assert sum(row.pieces for row in corpus.statistics().values()) == 40
    for split in corpus.splits:
        for name, roll in zip(corpus.names[split], corpus.splits[split], strict=True):
            number = int(name.split("piece")[1].split(".")[0])
            np.testing.assert_array_equal(roll, tune(number, 20 + number))
    assert load_folder(folder).sha256 == corpus.sha256
    assert load_folder(folder, steps_per_quarter=1).sha256 != corpus.sha256


def test_a_new_file_moves_no_other(folder):
    before = load_folder(folder).names
    write_midi(tune(99), folder / "aaa.mid")
    after = load_folder(folder).names
    for split in before:
        assert [name for name in after[split] if name != "aaa.mid"] == before[split]


def test_the_folder_may_be_elsewhere(folder, tmp_path):
    before = load_folder(folder)
    folder.rename(tmp_path / "other")
    assert load_folder(tmp_path / "other").sha256 == before.sha256


def test_broken_files_are_listed_together(folder):
    (folder / "empty.mid").write_bytes(b"")
    (folder / "cut.mid").write_bytes((folder / "book0" / "piece0.midi").read_bytes()[:-20])
    (folder / "text.mid").write_text("MThd hello")
    (folder / "dir.mid").mkdir()
    corpus = load_folder(folder)
    assert [name for name, _ in corpus.skipped] == ["cut.mid", "empty.mid", "text.mid"]
    assert all(why and "\n" not in why and str(folder) not in why for _, why in corpus.skipped)
    assert sum(row.pieces for row in corpus.statistics().values()) == 40


@pytest.mark.parametrize("count", [3, 4, 5])
def test_three_files_are_enough(tmp_path, count):
    for trial in range(20):
        root = tmp_path / str(trial)
        for i in range(count):
            write_midi(tune(i), root / f"{trial} {i}.mid")
        assert all(load_folder(root).splits.values())


def test_too_few_files_are_an_error(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_folder(tmp_path / "none")
    with pytest.raises(DataError, match=r"no \.mid"):
        load_folder(tmp_path)
    (tmp_path / "a.mid").write_bytes(b"")
    with pytest.raises(DataError, match=r"at least 3 .*got 0 of 1; a\.mid: not a MIDI file"):
        load_folder(tmp_path)
    for name in "bc":
        write_midi(tune(1), tmp_path / f"{name}.mid")
    with pytest.raises(DataError, match="got 2 of 3"):
        load_folder(tmp_path)


def test_a_folder_too_large_for_memory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(midi, "MAX_FRAMES", 500)
    with pytest.raises(DataError, match="more than 500 frames"):
        load_folder(folder)


def test_without_symusic_the_error_says_what_to_do(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "symusic", None)
    with pytest.raises(DataError, match="pip install"):
        load_folder(folder)
