import numpy as np
import pytest

from fastdropout.music.data.baselines import marginals_nll, shared_nll


def test_one_key_by_hand():
    train = [np.zeros((3, 88), np.uint8)]
    train[0][:2, 10] = 1
    test = [np.zeros((1, 88), np.uint8), np.zeros((1, 88), np.uint8)]
    test[0][0, 10] = 1
    sounding, silent = 3 / 5, 1 / 5  # (2 + 1) / (3 + 2) and (0 + 1) / (3 + 2)
    by_hand = -(np.log(sounding) + np.log(1 - sounding)) / 2 - 87 * np.log(1 - silent)
    assert marginals_nll(train, test) == pytest.approx(by_hand)
    p = 2 / (3 * 88)
    assert shared_nll(train, test) == pytest.approx(-(np.log(p) + (2 * 88 - 1) * np.log(1 - p)) / 2)


def test_the_average_is_over_frames_not_pieces():
    rng = np.random.default_rng(0)
    pieces = [(rng.random((n, 88)) < 0.1).astype(np.uint8) for n in (1, 50)]
    assert marginals_nll(pieces, pieces) == pytest.approx(marginals_nll(pieces, [np.concatenate(pieces)]))


def test_a_note_never_heard_in_training_is_finite():
    assert np.isfinite(marginals_nll([np.zeros((9, 88), np.uint8)], [np.ones((1, 88), np.uint8)]))
