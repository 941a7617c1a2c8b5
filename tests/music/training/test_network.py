import pytest
import torch

from fastdropout.moments import Moments
from fastdropout.music.training import Ensemble, NoteRNN, fit, new_state, prepare

DROPS = {"drop_input": 0.2, "drop_hidden": 0.4, "drop_output": 0.5}


@pytest.fixture
def ensemble():
    torch.manual_seed(0)
    return Ensemble(3, lambda: NoteRNN(88, 5, **DROPS))


def close(a, b):
    torch.testing.assert_close((a.mean, a.var), (b.mean, b.var))


def test_members_of_a_ensemble_answer_alone_in_training_and_together_in_evaluation(ensemble):
    frames = (torch.rand(6, 2, 88) < 0.1).float()
    alone = [member(frames)[0].parameters() for member in ensemble.parts]
    close(ensemble.train()(frames)[0].parameters(), Moments.stack(alone))
    close(
        ensemble.eval()(frames)[0].parameters(),
        Moments(sum(a.mean for a in alone) / 3, sum(a.var for a in alone) / 3),
    )


def test_a_ensemble_is_one_layer_with_block_diagonal_recurrent_weights(ensemble):
    whole = NoteRNN(88, 15, **DROPS).eval()
    parts = ensemble.eval().parts
    with torch.no_grad():
        whole.recurrent_weight.copy_(torch.block_diag(*(part.recurrent_weight for part in parts)))
        for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
            joined = torch.cat([part.rnn.get_parameter(name) for part in parts])
            whole.rnn.get_parameter(name).copy_(joined)
        whole.out.weight.copy_(torch.cat([part.out.weight for part in parts], 1) / 3)
        whole.out.bias.copy_(sum(part.out.bias for part in parts) / 3)
    frames = (torch.rand(6, 2, 88) < 0.1).float()
    (expected, last), (got, own_last) = whole(frames), ensemble(frames)
    close(last, own_last)
    # Independent noise of three would have a third of the variance, which the ensemble does not claim.
    got = got.parameters()
    close(Moments(got.mean, got.var / 3), expected.parameters())


def test_the_state_of_a_ensemble_carries_on(ensemble):
    frames = (torch.rand(9, 2, 88) < 0.1).float()
    whole, last = ensemble.eval()(frames)
    first, state = ensemble(frames[:4])
    second, own_last = ensemble(frames[4:], state)
    close(Moments.cat([first.parameters(), second.parameters()]), whole.parameters())
    close(own_last, last)
    assert last.shape == (1, 2, 15)


def test_a_certain_ensemble_is_certain():
    ensemble = Ensemble(2, lambda: NoteRNN(88, 4)).eval()
    assert ensemble(torch.zeros(3, 1, 88))[0].parameters().is_certain


def test_a_member_learns_as_if_it_were_alone(config, corpus):
    settings = config(members=2, hidden=24)
    data = prepare(settings, corpus)
    together, alone = new_state(settings, data), new_state(config(), data)
    scores = [[p.record.train_nll_per_step for p in fit(s, data) if p.record] for s in (together, alone)]
    first, second = together.averaged.parts
    for name, value in alone.averaged.state_dict().items():
        assert torch.equal(first.state_dict()[name], value)
        assert name.startswith("rnn.bias") or not torch.equal(second.state_dict()[name], value)
    # What is written down is the mean over members, not their sum.
    assert scores[0] == pytest.approx(scores[1], rel=0.1)
