"""The page that plays: sounds that read back, pictures of the same notes, names that are no code."""

import base64
import io
import re
import wave
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from fastdropout.music.cli import main
from fastdropout.music.study import listen
from fastdropout.music.training import NoteRNN, make_config


def roll_of(*notes, steps=8):
    out = np.zeros((steps, 88), np.uint8)
    for key, start, end in notes:
        out[start:end, key] = 1
    return out


def samples_of(uri):
    head, data = str(uri).split(",")
    assert head == "data:audio/wav;base64"
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, listen.RATE)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767


def strongest(samples, at):
    part = samples[at : at + 4096] * np.hanning(4096)
    return np.abs(np.fft.rfft(part)).argmax() * listen.RATE / 4096


def bars(track):
    rects = ElementTree.fromstring(str(track.roll)).findall("rect[@class='note']")
    return [(float(r.get("x")), float(r.get("width")), float(r.get("opacity"))) for r in rects]


def test_a_track_sounds_as_it_looks():
    track = listen.track("t", "n", roll_of((48, 0, 4), (60, 4, 8)), 0.5)  # A4, A5
    samples = samples_of(track.audio)
    assert len(samples) / listen.RATE == pytest.approx(track.seconds + 0.5, abs=0.01)
    assert strongest(samples, listen.RATE // 2) == pytest.approx(440, abs=6)
    assert strongest(samples, int(2.5 * listen.RATE)) == pytest.approx(880, abs=6)
    assert sorted(bars(track)) == [(0, 4, 1), (4, 4, 1)]
    assert [name for name, _ in track.labels] == ["C5"]
    assert track.seconds == 4


def test_what_is_predicted_is_as_loud_as_it_is_probable():
    p = np.zeros((8, 88), np.float32)
    p[:4, 48], p[4:, 48] = 0.9, 0.3
    p[:, 20] = 0.05  # Below what is played.
    piece = roll_of((30, 0, 9), steps=9)
    written, predicted = listen.predicted(piece, p, 0.5)
    assert bars(written) == [(0, 8, 1)]
    assert sorted(bars(predicted)) == [(n, 1, 0.9 if n < 4 else 0.3) for n in range(8)]
    # A held tone dies away too: the share is that beside the same tone at one strength.
    even = samples_of(listen.track("", "", roll_of((48, 0, 8)), 0.5).audio)
    own = samples_of(predicted.audio)
    early, late = slice(8_000, 16_000), slice(44_000, 52_000)
    ratio = (own[late].std() / own[early].std()) / (even[late].std() / even[early].std())
    assert ratio == pytest.approx(1 / 3, rel=0.02)


def test_silence_is_a_page_too():
    track = listen.track("t", "n", roll_of(), 0.1)
    assert not samples_of(track.audio).any()
    assert not bars(track)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return NoteRNN(88, 9, drop_hidden=0.3)


def test_names_are_no_code(network):
    page = listen.listen_html(
        "<script>alert(1)</script>",
        network,
        make_config({}),
        test=("<b>piece</b>", roll_of((40, 0, 8))),
        missing="",
        frames=8,
        seconds=0.1,
        temperature=None,
        seed=0,
    )
    assert "<script>alert" not in page
    assert "<b>piece" not in page
    assert page.count("<script>") == 1
    assert page.count("<audio") == 3
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("frames", [0, 3001])
def test_pages_are_bounded(network, frames):
    with pytest.raises(ValueError, match=r"frames must lie in 1\.\.3000 at this tempo"):
        listen.listen_html(
            "n",
            network,
            make_config({}),
            test=None,
            missing="",
            frames=frames,
            seconds=0.1,
            temperature=None,
            seed=0,
        )


def test_a_published_model_plays_without_its_data(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FASTDROPOUT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["listen", "--model", "jsb-chorales", "--frames", "6"]) == 0
    assert "listen.html" in capsys.readouterr().out
    page = (tmp_path / "listen.html").read_text("utf-8")
    assert page.count("<audio") == 1
    assert "No test piece is shown" in page
    uri = re.search(r'src="(data:audio[^"]+)"', page)[1]
    assert np.abs(samples_of(uri)).max() > 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "jsb-chorales", "--tempo", "0"], "tempo must lie in"),
        (["--model", "jsb-chorales", "--frames", "0"], "frames must lie in 1.."),
        (["--model", "nobody"], "'nobody' is no published model"),
        ([], "give a run folder or --model NAME"),
    ],
)
def test_faults_are_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["listen", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
