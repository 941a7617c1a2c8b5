import numpy as np
import pytest
import torch

from fastdropout.music.training import NoteRNN, generate
from fastdropout.music.training.evaluation import expected_frames


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NoteRNN(88, 9, drop_hidden=0.3, drop_output=0.4)


def test_the_opening_is_kept_and_the_rest_drawn(model, corpus):
    prime = corpus.test[0][:10]
    roll = generate(model, 30, prime=prime, seed=3)
    assert roll.shape == (30, 88)
    assert roll.dtype == np.uint8
    assert roll.max() == 1
    assert (roll[:10] == prime).all()
    assert (generate(model, 30, prime=prime, seed=3) == roll).all()
    assert (generate(model, 30, prime=prime, seed=4) != roll).any()
    assert (generate(model, 5, prime=prime) == prime[:5]).all()


def test_draws_have_the_predicted_probabilities():
    model = NoteRNN(88, 3)
    with torch.no_grad():
        model.out.weight.zero_()
        model.out.bias.copy_(torch.linspace(-3, 3, 88))
    roll = generate(model, 2000)
    np.testing.assert_allclose(roll.mean(0), torch.sigmoid(torch.linspace(-3, 3, 88)).numpy(), atol=0.06)
    cold = generate(model, 2, temperature=0)
    assert (cold == (torch.linspace(-3, 3, 88) > 0).numpy()).all()
    surer = generate(model, 2000, temperature=0.5).mean(0)
    np.testing.assert_allclose(surer, torch.sigmoid(torch.linspace(-6, 6, 88)).numpy(), atol=0.06)


def test_each_frame_is_read_before_the_next(model, corpus):
    """Drawn step by step equals the whole piece run at once."""
    roll = generate(model, 12, prime=corpus.test[0][:4], temperature=0)
    p = expected_frames(model, roll).mean
    assert ((p[3:] > 0.5).numpy() == roll[4:]).all()


def test_bad_arguments(model):
    with pytest.raises(ValueError, match="frames must lie in"):
        generate(model, 0)
    with pytest.raises(ValueError, match="temperature must be at least 0, got nan"):
        generate(model, 3, temperature=float("nan"))
