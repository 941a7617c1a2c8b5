"""Sequences that are no music, from a file to a report."""

import numpy as np
import pytest

from fastdropout.music.cli import main
from fastdropout.music.training.run import Run

TINY = ["--hidden", "8", "--nu", "3", "--epochs", "3", "--chunk", "20", "--threads", "1", "--momentum", "0.9"]


@pytest.fixture
def wave(tmp_path):
    t = np.arange(200)[:, None]
    noise = np.random.default_rng(0).normal(size=(200, 2)) / 10
    np.savez(tmp_path / "wave.npz", 50 + 10 * np.sin(t / [5, 9]) + noise)
    return tmp_path / "wave.npz"


def test_real_values_from_a_file_to_a_forecast(wave, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", str(wave), *TINY, "--out", str(run)]) == 0
    config, model = Run(run).config, Run(run).model()
    assert (config.output, config.transpose, config.pad) == ("gaussian", 0, "end")
    assert model.output.centre.tolist() == pytest.approx([50, 50], abs=2)
    page = (run / "report.html").read_text()
    assert "summed over 2 values" in page
    assert "feature 2" in page
    assert "share below" in page
    capsys.readouterr()
    assert main(["evaluate", str(run), "--output", str(tmp_path / "e.json")]) == 0
    assert "quantile" in capsys.readouterr().out
    out = tmp_path / "next.csv"
    arguments = ["--prime", "1", "--prime-frames", "10", "--frames", "25", "-o", str(out)]
    assert main(["generate", str(run), *arguments]) == 0
    drawn = np.loadtxt(out, delimiter=",")
    assert drawn.shape == (25, 2)
    assert np.abs(drawn - 50).max() < 60
    with np.load(wave) as file:
        np.testing.assert_allclose(drawn[:10], file["arr_0"][170:180], rtol=1e-5)
    assert out.with_suffix(".png").exists()
    assert main(["generate", str(run), "-o", str(tmp_path / "x.mid")]) == 2
    assert "output must end in .csv" in capsys.readouterr().err


def test_a_rule_for_notes_is_nothing_to_real_values(wave, tmp_path):
    """What a preset for music sets must not make a run folder that cannot be read."""
    run = tmp_path / "run"
    assert main(["train", str(wave), *TINY, "--output-rule", "paper", "--out", str(run)]) == 0
    assert Run(run).config.output_rule == "fast"


def test_bits_with_a_nade_and_a_memory(tmp_path):
    rng = np.random.default_rng(0)
    page = (rng.random((30, 6)) < 0.4).astype(int)
    for split, repeats in (("train", 4), ("valid", 2), ("test", 2)):
        np.savetxt(tmp_path / f"{split}.csv", np.tile(page, (repeats, 1)), "%d", ",")
    options = ["--output", "nade", "--memory", "--nade-hidden", "5"]
    run = str(tmp_path.parent / "bits-run")
    assert main(["train", str(tmp_path), *TINY, *options, "--out", run]) == 0
    assert Run(run).model().features == 6
    assert main(["generate", run, "-o", f"{run}/x.csv", "--frames", "9"]) == 0
    assert set(np.loadtxt(f"{run}/x.csv", delimiter=",").ravel()) <= {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "nade"], "output must be gaussian for real values, got nade"),
        (["--memory"], "memory and similar are for zeros and ones"),
        (["--pad", "front"], "pad must be end and score_first false for real values"),
        (["--transpose", "3"], "transpose is for piano rolls: set it to 0, got 3"),
        (["--steps-per-quarter", "4"], "steps_per_quarter is for folders of MIDI files"),
    ],
)
def test_options_that_do_not_fit_are_named(wave, options, message, capsys, monkeypatch):
    monkeypatch.chdir(wave.parent)
    assert main(["train", str(wave), *TINY, *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_music_is_not_real(capsys, tmp_path):
    assert main(["train", "bach", "--output", "gaussian", "--out", str(tmp_path / "r")]) == 2
    assert "output gaussian is for real values" in capsys.readouterr().err
