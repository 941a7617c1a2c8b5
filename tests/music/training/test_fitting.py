import copy
import math

import numpy as np
import pytest
import torch

import fastdropout as fd
from fastdropout.music.data.batches import batches
from fastdropout.music.training import fit, load_checkpoint, new_state, prepare, save_checkpoint
from fastdropout.music.training.fitting import _transposed, learning_rate

VARIANTS = {
    "moments": {},
    "carry": {"carry": True, "transpose": 2},
    "members": {"members": 3, "hidden": 18, "carry": True},
    "mask": {"method": "mask", "momentum": 0.9},
    "gaussian-noisy": {"method": "gaussian", "weight_noise": True, "averaging": 0.0},
    "transposed": {"transpose": 3, "score_first": True, "valid": "whole"},
    "nade-memory": {"output": "nade", "nade_hidden": 9, "memory": True, "skip": True, "transpose": 3},
    "similar": {"output": "nade", "nade_hidden": 9, "memory": True, "similar": True, "carry": True},
    "masks-of-everything": {"output": "nade", "drop_nade_hidden": 0.3, "memory": True, "method": "mask"},
    "deep": {"layers": 2, "drop_between": 0.2, "carry": True, "members": 2, "hidden": 24},
    "lstm": {"cell": "lstm", "layers": 2, "carry": True, "members": 2, "hidden": 24},
    "expected": {"loss": "expected", "rule": "accurate", "weight_decay": 0.01, "schedule": "none"},
}


def parameters(state):
    models = [state.model] + ([state.averaged] if state.averaged is not None else [])
    return [p.detach().clone() for model in models for p in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(parameters(a), parameters(b), strict=True))


def records(progress):
    """The records without what a clock says."""
    kept = [dict(p.record.to_json()) for p in progress if p.record]
    return [{k: v for k, v in r.items() if "second" not in k} for r in kept]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_state_saved_anywhere_goes_on_bit_for_bit(name, config, corpus, tmp_path):
    settings = config(**VARIANTS[name])
    data = prepare(settings, corpus)
    whole = new_state(settings, data)
    expected = records(fit(whole, data))

    state, seen = new_state(settings, data), []
    for _ in range(10_000):
        step = next(fit(state, data), None)
        if step is None:
            break
        seen.append(step)
        torch.rand(3)  # What others draw must not matter.
        save_checkpoint(state, tmp_path / "c.safetensors")
        state = load_checkpoint(tmp_path / "c.safetensors").state
    assert len(seen) == settings.epochs * (data.updates + 1)
    assert records(seen) == expected
    assert equal(state, whole)
    assert state.counters.best == whole.counters.best


def test_training_learns(config, corpus):
    settings = config(epochs=60, drop=0.1, noise_hidden=0.0, hidden=30, nu=8, init_var=0.01, batch=8)
    data = prepare(settings, corpus)
    kept = records(fit(new_state(settings, data), data))
    assert kept[-1]["train_nll_per_step"] < 0.6 * kept[0]["train_nll_per_step"]


def test_the_loss_is_nats_per_frame_over_real_frames(config, corpus):
    """Against the definition, computed a chunk at a time with torch's own network."""
    settings = config(drop=0, lr=1e-12, epochs=1, schedule="none", averaging=0.0)
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    plain = torch.nn.RNN(88, settings.hidden)
    plain.load_state_dict(state.model.rnn.state_dict())
    total, frames = 0.0, 0
    for piece in corpus.train:
        for start in range(0, len(piece), settings.chunk):
            chunk = torch.from_numpy(piece[start : start + settings.chunk]).float()
            padded = torch.cat([torch.zeros(settings.chunk - len(chunk), 88), chunk])
            logits = state.model.out(plain(padded[:-1])[0]).mean[-(len(chunk) - 1) :]
            if len(chunk) > 1:
                nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, chunk[1:], reduction="sum")
                total, frames = total + nll.item(), frames + len(chunk) - 1
    (record,) = records(fit(state, data))
    assert data.frames == frames
    assert record["train_nll_per_step"] == pytest.approx(total / frames, rel=1e-5)


def test_records_hold_the_radii(config, corpus):
    settings = config(epochs=1, averaging=0.0)
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    assert fd.nn.init.spectral_radius(state.model.recurrent_weight) == pytest.approx(1.2, rel=1e-4)
    (record,) = records(fit(state, data))
    weight = state.model.recurrent_weight
    assert record["spectral_radius"] == fd.nn.init.spectral_radius(weight)
    assert record["variance_radius"] == fd.nn.init.variance_radius(weight, settings.drop_hidden)


def test_averaged_weights_follow_the_others(config, corpus):
    settings = config(averaging=0.5, epochs=1)
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    average, n = [p.detach().double() for p in state.model.parameters()], 0
    for step in fit(state, data):
        if step.record is None:
            n += 1
            decay = min(0.5, n / (n + 10))
            now = [p.detach().double() for p in state.model.parameters()]
            average = [decay * a + (1 - decay) * p for a, p in zip(average, now, strict=True)]
    assert state.evaluated is state.averaged
    for a, b in zip(average, state.averaged.parameters(), strict=True):
        torch.testing.assert_close(a.float(), b.detach(), rtol=1e-5, atol=1e-7)


def test_patience_stops(config, corpus):
    settings = config(epochs=50, patience=2, lr=1e-30, averaging=0.0)
    data = prepare(settings, corpus)
    kept = records(fit(new_state(settings, data), data))
    assert len(kept) == 3  # The first is the best, two are not better.


def test_divergence_is_recorded_and_ends_the_training(config, corpus):
    settings = config(lr=1000.0, momentum=0.99, epochs=50, drop=0, clip=1e12, schedule="none", alpha=0.0)
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    kept = records(fit(state, data))
    assert kept[-1]["diverged"]
    assert state.finished
    assert len(kept) < 50


def test_a_gradient_that_is_not_finite_changes_nothing(config, corpus):
    settings = config()
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    steps = fit(state, data)
    next(steps)
    with torch.no_grad():
        state.model.out.bias[3] = math.nan
    before = copy.deepcopy(state.model.state_dict())
    step = next(steps)
    assert step.record.diverged
    assert step.record.valid_nll_per_step is None
    for name, value in state.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    assert next(steps, None) is None


def test_cosine_ends_at_zero(config):
    settings = config(schedule="cosine", epochs=10, lr=0.5)
    rates = [learning_rate(settings, n, 7) for n in range(70)]
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.001
    assert learning_rate(config(schedule="none"), 50, 7) == 0.01


def test_transposition_moves_whole_rows(config, corpus):
    settings = config(transpose=5, batch=16)
    batch = next(batches(prepare(settings, corpus).train, 16))
    moved = _transposed(batch, settings, 0)
    shifts, by_piece = set(), {}
    for row in range(batch.inputs.shape[1]):
        real = batch.inputs[:, row].nonzero()
        if len(real):
            by = moved.inputs[:, row].nonzero() - real
            assert (by[:, 0] == 0).all()
            assert by[:, 1].unique().numel() == 1
            shifts.add(int(by[0, 1]))
            assert by_piece.setdefault(int(batch.pieces[row]), int(by[0, 1])) == int(by[0, 1])
    assert shifts <= set(range(-5, 6))
    assert len(shifts) > 2
    again = _transposed(batch, settings, 0)
    assert torch.equal(again.targets, moved.targets)
    assert not torch.equal(_transposed(batch, settings, 1).targets, moved.targets)


def test_the_global_random_state_is_left_alone(config, corpus):
    settings = config(method="mask", epochs=1)
    data = prepare(settings, corpus)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    records(fit(new_state(settings, data), data))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_decides(config, corpus):
    data = prepare(config(), corpus)
    one, same, other = (new_state(config(seed=s), data) for s in (1, 1, 2))
    for state in (one, same, other):
        records(fit(state, data))
    assert equal(one, same)
    assert not equal(one, other)


def test_output_bias_is_the_frequencies(config, corpus):
    data = prepare(config(), corpus)
    bias = new_state(config(), data).model.out.bias.detach()
    frames = sum(map(len, corpus.train))
    p = (np.concatenate(corpus.train).sum(0) + 1) / (frames + 2)
    torch.testing.assert_close(torch.sigmoid(bias), torch.from_numpy(p).float())
    assert (new_state(config(output_bias=-0.8), data).model.out.bias == -0.8).all()


def test_sparse_rows(config, corpus):
    data = prepare(config(), corpus)
    weight = new_state(config(nu=4), data).model.recurrent_weight
    assert ((weight != 0).sum(1) == 4).all()
    assert ((new_state(config(nu=0), data).model.recurrent_weight != 0).sum(1) == 12).all()
