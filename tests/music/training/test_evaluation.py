import numpy as np
import pytest
import torch

from fastdropout.music.training import NoteRNN, evaluate
from fastdropout.music.training import evaluation as module


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NoteRNN(88, 9, drop_input=0.2, drop_hidden=0.3, drop_output=0.4, noise_hidden=0.1)


def by_hand(model, piece, score_first):
    piece = np.concatenate([np.zeros((1, 88), np.uint8), piece]) if score_first else piece
    frames = torch.from_numpy(piece).float()
    with torch.no_grad():
        prediction, _ = model(frames[:-1].unsqueeze(1))
        return prediction.nll(frames[1:].unsqueeze(1))[:, 0].numpy()


@pytest.mark.parametrize("score_first", [False, True])
def test_whole_pieces_are_scored_as_one_by_one(model, corpus, score_first, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 8)
    pieces = [*corpus.train, corpus.test[1][:1]]  # One of them has a single frame.
    scored = evaluate(model, pieces, score_first=score_first)
    frames = 0
    for number, piece in enumerate(pieces[:-1]):
        expected = by_hand(model, piece, score_first)
        np.testing.assert_allclose(scored.by_frame[number], expected, rtol=1e-4)
        assert scored.by_piece[number] == pytest.approx(expected.mean(), rel=1e-4)
        frames += len(expected)
    assert scored.frames == frames + score_first
    assert len(scored.by_frame[-1]) == score_first
    everything = np.concatenate(scored.by_frame)
    assert scored.nll_per_step == pytest.approx(everything.mean(dtype=np.float64), rel=1e-6)


def test_windows_do_not_change_the_result(model, corpus):
    batch = next(module.whole_pieces(corpus.train))
    with torch.no_grad():
        whole = model(batch.inputs)[0].parameters().mean
        parts = torch.cat([found.parameters().mean for found, _ in module.windows(model, batch, 7)])
    torch.testing.assert_close(parts, whole)


def test_calibration_counts_every_note_once(model, corpus):
    table = evaluate(model, corpus.test).calibration
    scored = sum(len(piece) - 1 for piece in corpus.test)
    assert table.count.sum() == 88 * scored
    used = table.count > 0
    notes = sum(int(piece[1:].sum()) for piece in corpus.test)
    assert (table.frequency[used] * table.count[used]).sum() == pytest.approx(notes)
    assert ((table.mean_probability >= table.edges[:-1]) & (table.mean_probability <= table.edges[1:]))[
        used
    ].all()


def test_a_network_that_knows_the_frequencies_is_calibrated(corpus):
    """With zero weights and the frequencies as bias, each probability is the share that sounds."""
    model = NoteRNN(88, 3)
    targets = np.concatenate([piece[1:] for piece in corpus.train])
    p = torch.from_numpy(targets.mean(0)).clamp(1e-6, 1 - 1e-6)
    with torch.no_grad():
        model.out.weight.zero_()
        model.out.bias.copy_(torch.logit(p))
    assert evaluate(model, corpus.train).calibration.error < 1e-5


def test_the_mode_of_the_model_is_given_back(model, corpus):
    model.train()
    evaluate(model, corpus.test)
    assert model.training


def test_json_has_no_nan(model, corpus):
    content = evaluate(model, [corpus.test[0], corpus.test[0][:1]]).to_json()
    assert content["by_piece"][1] is None
    assert content["piece_frames"] == [40, 0]
