import numpy as np
import pytest
import scipy.stats

from fastdropout.music.data.baselines import frequencies_nll


def test_one_key_by_hand():
    train = [np.zeros((3, 88), np.uint8)]
    train[0][:2, 10] = 1
    test = [np.zeros((1, 88), np.uint8), np.zeros((1, 88), np.uint8)]
    test[0][0, 10] = 1
    sounding, silent = 3 / 5, 1 / 5  # (2 + 1) / (3 + 2) and (0 + 1) / (3 + 2)
    by_hand = -(np.log(sounding) + np.log(1 - sounding)) / 2 - 87 * np.log(1 - silent)
    assert frequencies_nll(train, test) == pytest.approx(by_hand)


def test_the_average_is_over_frames_not_pieces():
    rng = np.random.default_rng(0)
    pieces = [(rng.random((n, 88)) < 0.1).astype(np.uint8) for n in (1, 50)]
    assert frequencies_nll(pieces, pieces) == pytest.approx(frequencies_nll(pieces, [np.concatenate(pieces)]))


def test_the_first_frame_is_left_out_as_the_networks_do():
    rng = np.random.default_rng(0)
    pieces = [(rng.random((n, 5)) < 0.3).astype(np.uint8) for n in (1, 50, 7)]
    scored = frequencies_nll(pieces, [pieces[1][1:], pieces[2][1:]])
    assert frequencies_nll(pieces, pieces, score_first=False) == pytest.approx(scored)


def test_a_note_never_heard_in_training_is_finite():
    assert np.isfinite(frequencies_nll([np.zeros((9, 88), np.uint8)], [np.ones((1, 88), np.uint8)]))


def test_real_values_by_scipy():
    rng = np.random.default_rng(0)
    train, test = ([rng.normal(3, 2, (n, 2)).astype(np.float32)] for n in (30, 9))
    train[0][:, 1] = 4  # Constant: a Gaussian of no width would have no finite loss elsewhere.
    std = [train[0][:, 0].astype(float).std(), 1.0]
    wanted = -scipy.stats.norm(train[0].astype(float).mean(0), std).logpdf(test[0]).sum(1).mean()
    assert frequencies_nll(train, test) == pytest.approx(wanted)
