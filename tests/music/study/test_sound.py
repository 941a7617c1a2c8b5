import io
import wave

import numpy as np
import pytest

from fastdropout.music.study import figures, sound


def roll(*notes):
    out = np.zeros((8, 88), np.uint8)
    for key, start, end in notes:
        out[start:end, key] = 1
    return out


def strongest(samples, at, length=4096):
    part = samples[at : at + length] * np.hanning(length)
    return np.abs(np.fft.rfft(part)).argmax() * sound.RATE / length


def test_the_right_pitch_at_the_right_time():
    samples = sound.render(roll((48, 0, 4), (60, 4, 8)), 0.25)  # A4, A5
    assert strongest(samples, sound.RATE // 5) == pytest.approx(440, abs=6)
    assert strongest(samples, int(1.3 * sound.RATE)) == pytest.approx(880, abs=6)


def test_no_clipping_and_no_clicks():
    every = np.ones((8, 88), np.uint8)
    samples = sound.render(every, 0.1)
    assert np.abs(samples).max() == pytest.approx(0.9)
    one = sound.render(roll((48, 0, 2)), 0.5)
    assert one[0] == 0
    assert abs(one[-1]) < 1e-3
    assert np.abs(np.diff(one)).max() < 0.35  # A jump would be heard as a click.


def test_silence_is_silent():
    assert not sound.render(roll(), 0.1).any()


def test_wav_reads_back():
    samples = sound.render(roll((40, 0, 8)), 0.1)
    with wave.open(io.BytesIO(sound.to_wav(samples))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, sound.RATE)
        read = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    np.testing.assert_allclose(read, samples, atol=1e-4)


def test_bad_lengths():
    with pytest.raises(ValueError, match="frame_seconds must lie in"):
        sound.render(roll(), 0)
    with pytest.raises(ValueError, match="must last at most 3600 s"):
        sound.render(np.zeros((100_000, 88), np.uint8), 1.0)


def test_piano_roll_is_a_picture():
    for piece in (roll((40, 0, 8)), roll()):
        png = figures.to_png(figures.piano_roll(piece, 3))
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
