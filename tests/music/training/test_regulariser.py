import numpy as np
import pytest
import torch

from fastdropout.analysis import decompose
from fastdropout.music.training import fit, new_state, prepare, regulariser


def run(settings, corpus):
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    return state, data, [step.record for step in fit(state, data) if step.record]


def test_every_epoch_has_its_shares(config, corpus):
    state, data, records = run(config(), corpus)
    for record in records:
        assert 0 < record.rewarded + record.penalised <= 1
        q = record.lambda_quantiles
        assert len(q) == len(regulariser.QUANTILES)
        assert q == sorted(q)
        assert q[0] < q[-1]
    # The last is that of the network as it is now.
    again = regulariser.measure(state, regulariser.sample(data.train))
    assert again.rewarded == records[-1].rewarded
    assert again.lambda_quantiles == records[-1].lambda_quantiles


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"noise_hidden": 0.0, "drop_input": 0.0},
        {"drop_hidden": 0.0, "loss": "expected"},
        {"drop_output": 0.0, "rule": "accurate"},
        {"drop_output": 0.0, "propagate_output": False},
        {"drop": 0, "rule": "paper"},
        {"method": "gaussian", "averaging": 0.0},
        {"output": "nade", "nade_hidden": 6, "drop_nade_input": 0.2, "drop_nade_hidden": 0.4},
        {"output": "nade", "nade_hidden": 6, "memory": True, "drop_memory": 0.3},
        {"similar": True, "drop_memory": 0.3},
    ],
    ids=str,
)
def test_the_fast_way_is_the_decomposition(config, corpus, options):
    """Of the fused recurrence, against `decompose`, which runs the reference and knows of no formula."""
    state, data, _ = run(config(epochs=1, **options), corpus)
    batch, model = regulariser.sample(data.train), state.evaluated.double().eval()
    batch = type(batch)(batch.inputs.double(), batch.targets.double(), batch.mask, batch.fresh, batch.pieces)
    assert model.rnn.path == "fused"
    loss = state.config.loss
    parts = decompose(model, lambda m: m(batch.inputs)[0].nll(batch.targets, loss, batch.mask).mean())
    found = regulariser.fused_decays(model, batch, loss)
    assert set(found) == set(parts.weights)
    for name, part in parts.weights.items():
        torch.testing.assert_close(found[name], part.decay, rtol=1e-9, atol=1e-15)
    assert any(part.decay.any() for part in parts.weights.values())


def test_the_same_few_chunks_far_from_each_other(config, corpus):
    long = prepare(config(chunk=60), corpus).train
    assert regulariser.sample(long).inputs.shape[:2] == (regulariser.STEPS, regulariser.CHUNKS)
    data = prepare(config(), corpus)
    few = regulariser.sample(data.train)
    assert few.inputs.shape[:2] == (data.train.steps, regulariser.CHUNKS)
    assert few.pieces[0] == data.train.pieces[0]
    assert few.pieces[-1] == data.train.pieces[-1]
    assert len(set(few.pieces.tolist())) > 2
    assert few.mask[-1].all()  # Padding stands at the beginning.
    # Fewer chunks than are wanted, and chunks that go on from one another, are taken as they are.
    for settings in (config(pieces=1, chunk=50), config(carry=True)):
        some = regulariser.sample(prepare(settings, corpus).train)
        assert 1 <= len(some.pieces) <= regulariser.CHUNKS
        assert some.fresh.all()


def test_the_network_is_left_as_it_was(config, corpus):
    for options in ({"averaging": 0.0}, {"averaging": 0.0, "weight_noise": True}):
        settings = config(**options)
        data = prepare(settings, corpus)
        state = new_state(settings, data)
        few = regulariser.sample(data.train)
        drawn = torch.get_rng_state()
        for training in (True, False):
            state.model.train(training)
            assert regulariser.measure(state, few) is not None
            assert state.model.training is training
            assert all(p.grad is None for p in state.model.parameters())
        assert torch.equal(torch.get_rng_state(), drawn)


def test_a_plain_network_and_masks_have_none(config, corpus):
    for options in ({"drop": 0}, {"method": "mask", "noise_hidden": 0.0}):
        _, _, records = run(config(epochs=1, **options), corpus)
        assert records[0].rewarded is None
        assert records[0].lambda_quantiles is None


def test_a_network_that_is_plain_but_for_its_output_has_a_regulariser(config, corpus):
    _, _, records = run(
        config(epochs=1, drop_input=0.0, drop_hidden=0.0, noise_hidden=0.0, drop_output=0.5), corpus
    )
    assert records[0].rewarded + records[0].penalised > 0


def test_weights_that_are_not_finite_have_none(config, corpus):
    state, data, _ = run(config(epochs=1), corpus)
    with torch.no_grad():
        state.evaluated.out.weight[0, 0] = np.nan
    assert regulariser.measure(state, regulariser.sample(data.train)) is None


def test_looking_does_not_change_the_training(config, corpus, monkeypatch):
    for options in ({}, {"method": "gaussian"}, {"averaging": 0.0}, {"carry": True}):
        settings = config(epochs=2, **options)
        looked, _, _ = run(settings, corpus)
        with monkeypatch.context() as patch:
            patch.setattr(regulariser, "measure", lambda state, batch: None)
            blind, _, records = run(settings, corpus)
        assert records[0].rewarded is None
        for one, other in zip(looked.model.parameters(), blind.model.parameters(), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(looked.rng, blind.rng)
