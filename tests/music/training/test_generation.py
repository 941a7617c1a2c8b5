import numpy as np
import pytest
import torch

from fastdropout.errors import DataError
from fastdropout.functional import logit_of_expected
from fastdropout.moments import Moments
from fastdropout.music.data.canonical import CANONICAL, data_folder, find, load_canonical
from fastdropout.music.training import NoteRNN, generate, load_model
from fastdropout.music.training.evaluation import expected_frames
from fastdropout.music.training.generation import cadence, compose
from fastdropout.music.training.outputs import NADE, Gaussian, IndependentNotes, Prediction
from fastdropout.music.training.published import models_folder, published_models


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


def sparse_logits(frames=40):
    """Most notes improbable, as in music: without a shift, a low temperature would silence them."""
    generator = torch.Generator().manual_seed(0)
    mean = -4 + 2 * torch.randn(frames, 88, generator=generator)
    return Moments(mean, torch.rand(frames, 88, generator=generator))


@pytest.mark.parametrize("temperature", [0.05, 0.5, 0.8, 1.5, 10.0])
def test_a_temperature_keeps_the_expected_number_of_notes(temperature):
    output, logits = IndependentNotes(88), sparse_logits()
    shift = output.level(logits, temperature)
    p = torch.sigmoid(logit_of_expected(logits) / temperature + shift)
    torch.testing.assert_close(p.sum(-1), output.expected(logits).mean.sum(-1), atol=1e-3, rtol=1e-3)
    noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(output.choose(logits, noise, temperature, shift), (noise < p).float())


def test_without_the_shift_a_low_temperature_is_silent():
    output, logits = IndependentNotes(88), sparse_logits()
    noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))
    kept = output.choose(logits, noise, 0.4, output.level(logits, 0.4)).sum()
    assert output.choose(logits, noise, 0.4, None).sum() < 0.5 * kept


def test_chords_keep_their_number_of_notes_too():
    """A NADE's chords at a low temperature have as many notes as its own, and fewer different ones."""
    torch.manual_seed(0)
    output = NADE(12, 6)
    context = Moments.certain(torch.cat([torch.full((400, 12), -1.5), torch.randn(1, 6).repeat(400, 1)], -1))
    prediction = Prediction([output], [context])
    own = prediction.draw(torch.Generator().manual_seed(1))
    surer = prediction.draw(torch.Generator().manual_seed(2), temperature=0.5)
    assert surer.sum(-1).mean() == pytest.approx(float(own.sum(-1).mean()), rel=0.2)
    assert len(surer.unique(dim=0)) < len(own.unique(dim=0))


def test_real_values_have_no_level():
    assert Gaussian(3).level(Moments.certain(torch.zeros(2, 3)), 0.5) is None


def test_a_lead_is_heard_and_left_out(model):
    lead = cadence()
    assert lead.shape == (16, 88)
    assert (lead.sum(1) == 4).all()
    whole = generate(model, 36, prime=lead, seed=5)
    assert (generate(model, 20, lead=lead, seed=5) == whole[16:]).all()
    assert (compose(model, 20, temperature=1.0, seed=5) == whole[16:]).all()


@pytest.mark.parametrize("name", published_models())
def test_published_models_sound(name):
    """By default about as many notes per frame as the data have: between half and one and a half."""
    found = load_model(name)
    corpus = found.config.corpus
    if corpus not in CANONICAL:
        pytest.skip(f"{corpus} is not one of the canonical data sets")
    folder = data_folder() or models_folder().parents[4] / "shared" / "data"
    try:
        find(corpus, folder)
    except DataError as error:
        pytest.skip(str(error))
    notes = np.concatenate(load_canonical(corpus, folder).train).sum(1).mean()
    drawn = np.mean([compose(found.model, 64, seed=seed).sum(1).mean() for seed in range(3)])
    assert 0.5 * notes < drawn < 1.5 * notes


def test_bad_arguments(model):
    with pytest.raises(ValueError, match=r"temperature must be 0 or at least 0\.001, got 1e-05"):
        generate(model, 3, temperature=1e-5)
    with pytest.raises(ValueError, match="frames must lie in"):
        generate(model, 0)
    with pytest.raises(ValueError, match="temperature must be at least 0, got nan"):
        generate(model, 3, temperature=float("nan"))
