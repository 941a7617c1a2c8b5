import math

import numpy as np
import pytest
import torch

import fastdropout as fd
from fastdropout.errors import ConfigError
from fastdropout.moments import Moments
from fastdropout.music.data.batches import whole_pieces
from fastdropout.music.data.memory import Memory, width
from fastdropout.music.data.similar import Similar
from fastdropout.music.training import (
    Ensemble,
    NoteRNN,
    evaluate,
    fit,
    generate,
    load_model,
    make_config,
    new_state,
    prepare,
)
from fastdropout.music.training.build import build_model
from fastdropout.music.training.evaluation import expected_frames
from fastdropout.music.training.outputs import NADE, Gaussian, IndependentNotes, Prediction
from fastdropout.music.training.published import save_model

F = 6
DROPS = {"drop_input": 0.2, "drop_hidden": 0.4, "drop_output": 0.5}


def nade(**options):
    return NADE(F, 5, **{"drop_input": 0.2, "drop_hidden": 0.3, **options})


def frames_of(*shape):
    return (torch.rand(*shape, F) < 0.4).float()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return NoteRNN(F, 7, output=nade(), memory=True, drop_memory=0.1, skip=True, **DROPS)


@pytest.fixture
def with_similar():
    torch.manual_seed(0)
    return NoteRNN(F, 7, output=nade(), memory=True, similar=True, drop_memory=0.1, skip=True, **DROPS)


def test_independent_notes_are_the_losses_of_the_library():
    torch.manual_seed(0)
    logits = Moments(torch.randn(4, 3, F), torch.rand(4, 3, F))
    frames, prediction = frames_of(4, 3), Prediction([IndependentNotes(F)], [logits])
    expected = fd.losses.bernoulli_nll(logits, frames).sum(-1)
    assert torch.equal(prediction.nll(frames), expected)
    mask = torch.rand(4, 3) < 0.5
    assert torch.equal(prediction.nll(frames, mask=mask), expected[mask])
    also = fd.losses.expected_bernoulli_nll(logits, frames).sum(-1)
    assert torch.equal(prediction.nll(frames, "expected"), also)
    assert torch.equal(prediction.expected().mean, fd.functional.sigmoid(logits).mean)
    assert torch.equal(prediction[1:3, 0].nll(frames[1:3, 0]), expected[1:3, 0])


def test_a_nade_scores_a_frame_note_by_note():
    torch.manual_seed(0)
    output = nade()
    context = Moments(torch.randn(4, 3, output.size), torch.rand(4, 3, output.size))
    prediction, frames = Prediction([output], [context]), frames_of(4, 3)
    walk = output.walk(context.reshape(12, -1))
    total = torch.zeros(12)
    for i in range(F):
        v = frames.reshape(12, F)[:, i]
        total = total + fd.losses.bernoulli_nll(walk.logit(i), v)
        walk.observe(i, v)
    torch.testing.assert_close(prediction.nll(frames), total.view(4, 3))
    mask = torch.rand(4, 3) < 0.5
    torch.testing.assert_close(prediction.nll(frames, mask=mask), total.view(4, 3)[mask])
    with pytest.raises(ValueError, match="frames must be given"):
        prediction.expected()


def test_drawn_chords_are_distributed_as_scored():
    """Frequencies of whole frames against exp(-nll), also of two networks together."""
    torch.manual_seed(2)
    outputs = [nade(), nade()]
    for output in outputs:
        torch.nn.init.normal_(output.nade.weight_in, 0, 2)
        torch.nn.init.normal_(output.nade.weight_out, 0, 2)
    contexts = [Moments(torch.randn(1, o.size), torch.rand(1, o.size)) for o in outputs]
    every = (torch.arange(2**F)[:, None] >> torch.arange(F) & 1).float()
    for some in (1, 2):
        prediction = Prediction(outputs[:some], contexts[:some])
        expanded = Prediction(outputs[:some], [c.expand(2**F, -1) for c in contexts[:some]])
        p = (-expanded.nll(every)).exp().detach()
        assert p.sum().item() == pytest.approx(1, abs=1e-4)
        many = Prediction(outputs[:some], [c.expand(20_000, -1) for c in contexts[:some]])
        drawn = many.draw(torch.Generator().manual_seed(0))
        found = torch.bincount((drawn @ 2.0 ** torch.arange(F)).long(), minlength=2**F) / 20_000
        assert (found - p).abs().sum() < 0.08
        greedy = prediction.draw(temperature=0)
        assert torch.equal(greedy, prediction.draw(temperature=0))


def test_members_with_a_nade_predict_together(network):
    torch.manual_seed(1)
    ensemble = Ensemble(2, lambda: NoteRNN(F, 7, output=nade(), **DROPS))
    inputs, frames = frames_of(5, 2), frames_of(5, 2)
    alone = [part(inputs)[0] for part in ensemble.parts]
    each = [prediction.parameters(frames) for prediction in alone]
    together = ensemble.eval()(inputs)[0]
    torch.testing.assert_close(
        together.parameters(frames).mean, (each[0].mean + each[1].mean) / 2, rtol=1e-5, atol=1e-6
    )
    apart = ensemble.train()(inputs)[0].nll(frames, mask=torch.ones(5, 2, dtype=torch.bool))
    assert apart.shape == (2, 10)
    torch.testing.assert_close(apart[1], alone[1].nll(frames).flatten())


def test_gaussian_is_the_density_in_the_units_of_the_data():
    output = Gaussian(2)
    with torch.no_grad():
        output.centre.copy_(torch.tensor([5.0, -3.0]))
        output.scale.copy_(torch.tensor([2.0, 0.1]))
        output.log_var.copy_(torch.tensor([0.3, -1.0]))
    a = Moments(torch.tensor([[0.5, -0.2]]), torch.tensor([[0.4, 0.1]]))
    y = torch.tensor([[4.0, -2.9]])
    prediction = Prediction([output], [a])
    mean = a.mean * output.scale + output.centre
    std = (a.var + output.log_var.exp()).sqrt() * output.scale
    truth = torch.distributions.Normal(mean, std)
    torch.testing.assert_close(prediction.nll(y), -truth.log_prob(y).sum(-1))
    torch.testing.assert_close(prediction.expected().mean, mean)
    torch.testing.assert_close(prediction.expected().std, std)
    drawn = Prediction([output], [a.expand(20_000, 2)]).draw(torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), mean[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(drawn.std(0), std[0], rtol=0.02, atol=0.0)
    # E[-log p(y | a)] over draws of a.
    values = a.sample((200_000,), torch.Generator().manual_seed(1)) * output.scale + output.centre
    nll = -torch.distributions.Normal(values, output.log_var.exp().sqrt() * output.scale).log_prob(y)
    torch.testing.assert_close(prediction.nll(y, "expected"), nll.mean(0).sum(-1), rtol=0.01, atol=0.01)
    assert (prediction.nll(y, "expected") > prediction.nll(y)).all()


def test_a_gaussian_that_is_true_is_calibrated():
    output = Gaussian(1)
    a = Moments(torch.zeros(4000, 1), torch.full((4000, 1), 0.5))
    y = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0)) * math.sqrt(1.5)
    count, p, below = output.tally(a, y, torch.ones(4000, dtype=torch.bool))
    assert (count == 4000).all()
    torch.testing.assert_close(below / count, p / count, atol=0.03, rtol=0)
    wrong = output.tally(a, y * 3, torch.ones(4000, dtype=torch.bool))
    assert (wrong[2] / count - p / count).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["network", "with_similar"])
def test_generation_carries_the_memory(kind, request):
    """Drawn frame by frame, with the memory kept up, equals the whole piece run at once."""
    network = request.getfixturevalue(kind)
    prime = frames_of(9).numpy().astype(np.uint8)
    roll = generate(network, 40, prime=prime, temperature=0)
    assert roll.shape == (40, F)
    assert (generate(network, 40, prime=prime, temperature=0) == roll).all()
    p = expected_frames(network, roll).mean
    assert ((p[8:] > 0.5).numpy() == roll[9:]).all()
    # Without an opening it begins with silence, which is not remembered.
    empty = generate(network, 3, temperature=0)
    with torch.no_grad():
        first = network.eval()(torch.zeros(1, 1, network.rnn.input_size))[0][0, 0].draw(temperature=0)
    assert (empty[0] == first.numpy()).all()


def test_the_inputs_of_two_rates_are_dropped_each_by_its_own(network):
    x = frames_of(3, 2)
    more = (torch.rand(3, 2, width(F)) < 0.5).float()
    read = network.read(torch.cat([x, more], -1))
    torch.testing.assert_close(read.mean, torch.cat([0.8 * x, 0.9 * more], -1))
    torch.testing.assert_close(read.var, torch.cat([0.16 * x, 0.09 * more], -1))


def test_the_linear_path_adds_to_the_context(network):
    inputs = torch.cat([frames_of(3, 2), torch.zeros(3, 2, width(F))], -1)
    with_it = network(inputs)[0].contexts[0]
    skip, network.skip = network.skip, None
    without = network(inputs)[0].contexts[0]
    added = skip(network.read(inputs))
    torch.testing.assert_close(with_it.mean, without.mean + added.mean)
    torch.testing.assert_close(with_it.var, without.var + added.var)


VARIANTS = {
    "nade": {"output": "nade", "nade_hidden": 9, "drop_nade_input": 0.2, "drop_nade_hidden": 0.3},
    "sigmoid": {"output": "nade", "nade_hidden": 9, "nade_nonlinearity": "sigmoid", "skip": True},
    "memory": {"memory": True, "drop_memory": 0.3, "skip": True},
    "similar": {"similar": True, "drop_memory": 0.3, "skip": True},
    "both": {"output": "nade", "memory": True, "similar": True, "drop_memory": 0.3, "transpose": 2},
    "masks": {"output": "nade", "drop_nade_hidden": 0.3, "memory": True, "method": "mask", "skip": True},
    "gaussian draws": {"output": "nade", "memory": True, "method": "gaussian"},
    "plain": {"output": "nade", "memory": True, "skip": True, "drop": 0},
    "deep": {"layers": 3, "drop_between": 0.2, "cell": "relu", "lr": 0.001},
    "members": {"members": 2, "hidden": 24, "output": "nade", "memory": True, "layers": 2},
    "expected": {"output": "nade", "loss": "expected"},
    "lstm": {"cell": "lstm", "layers": 2, "drop_between": 0.1, "lr": 0.003},
    "gru": {"cell": "gru", "output": "nade", "memory": True, "skip": True, "lr": 0.003},
    "gru masks": {"cell": "gru", "method": "mask", "lr": 0.003},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_trains_scores_and_draws(name, config, corpus):
    settings = config(**{"epochs": 8, "momentum": 0.9, "nade_hidden": None, **VARIANTS[name]})
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    kept = [p.record for p in fit(state, data) if p.record]
    assert kept[-1].train_nll_per_step < kept[0].train_nll_per_step
    assert kept[-1].valid_nll_per_step == pytest.approx(kept[-1].valid_nll_per_step)
    scored = evaluate(state.evaluated, corpus.test)
    assert math.isfinite(scored.nll_per_step)
    assert scored.calibration.count.sum() == 88 * scored.frames
    again = evaluate(state.evaluated, corpus.test)  # Nothing is drawn in evaluation.
    assert again.nll_per_step == scored.nll_per_step
    assert generate(state.evaluated, 20, seed=1).shape == (20, 88)
    recorded = kept[-1].rewarded is not None
    assert recorded == (settings.method != "mask" and name != "plain")


@pytest.mark.parametrize("similar", [False, True])
@pytest.mark.parametrize("output", ["notes", "nade"])
def test_evaluation_with_a_memory_is_that_of_one_piece_after_the_other(output, similar, config, corpus):
    settings = config(memory=True, similar=similar, output=output, skip=True)
    data = prepare(settings, corpus)
    model = new_state(settings, data).model.eval()
    scored = evaluate(model, corpus.test)
    for number, piece in enumerate(corpus.test):
        memories = [Memory(88), Similar(88)] if similar else [Memory(88)]
        more = [np.concatenate([memory.hear(frame) for memory in memories]) for frame in piece[:-1]]
        inputs = torch.from_numpy(np.concatenate([piece[:-1], np.stack(more)], 1)).float()[:, None]
        targets = torch.from_numpy(piece[1:]).float()[:, None]
        with torch.no_grad():
            nll = model(inputs)[0].nll(targets)[:, 0]
        # Sums in another order may round to other float16 numbers.
        np.testing.assert_allclose(scored.by_frame[number], nll.numpy(), rtol=2e-3 if similar else 1e-4)


def test_valid_on_chunks_and_on_whole_pieces_are_alike_when_the_state_is_carried(config, corpus):
    """The memory of a chunk is that of the whole piece, so only float rounding differs."""
    records = []
    for valid in ("chunks", "whole"):
        settings = config(memory=True, similar=True, carry=True, valid=valid, epochs=1, output="nade")
        data = prepare(settings, corpus)
        records += [p.record for p in fit(new_state(settings, data), data) if p.record]
    assert records[0].valid_nll_per_step == pytest.approx(records[1].valid_nll_per_step, rel=1e-5)


def test_a_model_of_every_kind_is_published_and_read_again(config, corpus, tmp_path):
    about = {
        "command": "x",
        "corpus_sha256": corpus.sha256,
        "epochs": 1,
        "seconds": 1.0,
        "test": 1.0,
        "valid": 1.0,
        "versions": {},
    }
    for name, options in VARIANTS.items():
        settings = config(**options)
        model = new_state(settings, prepare(settings, corpus)).model
        path = tmp_path / f"{name.replace(' ', '-')}.safetensors"
        save_model(path, model, settings, about)
        found = load_model(path).model
        assert found.features == 88
        batch = next(whole_pieces(corpus.test, memory=settings.memory, similar=settings.similar))
        with torch.no_grad():
            a, b = (m.eval()(batch.inputs)[0].nll(batch.targets) for m in (model, found))
        assert torch.equal(a, b)


def test_a_cell_that_the_library_lacks_is_a_config_error(monkeypatch):
    monkeypatch.delattr(fd.nn, "LSTM", raising=False)
    with pytest.raises(ConfigError, match="cell lstm is not in this version"):
        build_model(make_config({"cell": "lstm"}), 88)


@pytest.mark.parametrize("kind", ["notes", "nade"])
def test_the_papers_sigmoid_at_the_output(kind):
    """E[p] = sigmoid(m / sqrt(1 + pi v / 8)) in the loss, probabilities, draws and calibration."""
    options = {"output": "nade", "nade_hidden": 5} if kind == "nade" else {}
    config = make_config({"hidden": 8, "nu": 3, "output_rule": "paper", **options})
    output = build_model(config, 6).output
    generator = torch.Generator().manual_seed(0)
    logits = Moments(4 * torch.randn(50, 6, generator=generator), 9 * torch.rand(50, 6, generator=generator))
    frames = (torch.rand(50, 6, generator=generator) < 0.5).float()
    p = torch.sigmoid(logits.mean / torch.sqrt(1 + math.pi * logits.var / 8))
    nll = torch.nn.functional.binary_cross_entropy(p, frames, reduction="none").sum(-1)
    torch.testing.assert_close(output.nll(logits, frames), nll, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.expected(logits).mean, p)
    noise = torch.rand(50, 6, generator=generator)
    assert torch.equal(output.choose(logits, noise, 1.0, None), (noise < p).float())
    count, total, _ = output.tally(logits, frames, torch.ones(50, dtype=torch.bool)).sum(-1)
    assert float(total / count) == pytest.approx(float(p.mean()), rel=1e-5)
    ours = build_model(make_config({"hidden": 8, "nu": 3, **options}), 6).output
    assert (ours.nll(logits, frames) - nll).abs().max() > 0.01


def test_preset_paper_has_the_papers_sigmoid():
    small = {"hidden": 8, "nu": 3, "corpus": "jsb-chorales"}
    assert build_model(make_config(small, preset_name="paper"), 6).output.output_rule == "paper"
    assert build_model(make_config(small | {"drop": 0}, preset_name="paper"), 6).output.output_rule == "fast"


@pytest.mark.parametrize("more", [{"method": "mask"}, {"loss": "expected"}, {"output": "gaussian"}])
def test_an_output_rule_that_would_do_nothing_is_refused(more):
    with pytest.raises(ConfigError, match="output_rule is for notes with the loss mean"):
        make_config({"output_rule": "paper", "transpose": 0, **more})
