import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import fastdropout as fd
from fastdropout.analysis import Regimes, decompose

DROP = st.sampled_from([0.0, 0.1, 0.5, 0.8])
RULE = st.sampled_from(["fast", "accurate", "paper"])


def gradients(model, loss_fn):
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss_fn(model), list(named.values()), allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)
    }


def assert_sums(model, loss_fn, tolerance=1e-12):
    parts = decompose(model, loss_fn)
    true = gradients(model, loss_fn)
    assert set(true) == set(parts.weights) | set(parts.others)
    scale = max(float(g.abs().max()) for g in true.values())
    for name, g in true.items():
        found = parts.weights[name].gradient if name in parts.weights else parts.others[name]
        assert (found - g).abs().max() <= tolerance * max(scale, 1e-12), name
    return parts


def network(seed, sizes, drops, rule, transfer):
    torch.manual_seed(seed)
    modules = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        modules.append(fd.nn.Linear(inputs, outputs, drop=drops[i % len(drops)], dtype=torch.float64))
        if i < len(sizes) - 2:
            modules.append(fd.nn.ReLU() if transfer == "relu" else fd.nn.Tanh(rule))
    return fd.nn.Sequential(*modules)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    drops=st.lists(DROP, min_size=1, max_size=3),
    rule=RULE,
    transfer=st.sampled_from(["tanh", "relu"]),
    loss=st.sampled_from(["bernoulli_nll", "expected_bernoulli_nll", "squared_error", "gaussian_nll"]),
)
def test_feed_forward_networks_sum_to_the_gradient(seed, sizes, drops, rule, transfer, loss):
    model = network(seed, sizes, drops, rule, transfer)
    x = torch.randn(4, sizes[0], dtype=torch.float64)
    z = torch.rand(4, sizes[-1], dtype=torch.float64)
    # eps keeps the density of a certain output from being infinitely steep.
    options = {"eps": 0.1} if loss == "gaussian_nll" else {}
    assert_sums(model, lambda m: getattr(fd.losses, loss)(m(x), z, **options).mean())


class Recurrent(nn.Module):
    def __init__(self, inputs, units, directions, drop_output, **options):
        super().__init__()
        self.rnn = fd.nn.RNN(inputs, units, bidirectional=directions == 2, dtype=torch.float64, **options)
        self.out = fd.nn.Linear(units * directions, 2, drop=drop_output, dtype=torch.float64)

    def forward(self, x):
        hidden, last = self.rnn(x)
        data = hidden.data if isinstance(hidden, fd.nn.PackedMoments) else hidden
        return self.out(data), last


def recurrent_loss(model, x, z):
    logits, last = model(x)
    # The last states and their variance enter too, so that no path of the gradient is left out.
    return fd.losses.bernoulli_nll(logits, z).mean() + last.mean.sum() / 7 + (last.var**2).sum()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 3),
    directions=st.integers(1, 2),
    nonlinearity=st.sampled_from(["tanh", "relu"]),
    rule=RULE,
    drops=st.tuples(DROP, DROP, DROP, DROP),
    noise=st.sampled_from([0.0, 0.3]),
    learn_initial=st.booleans(),
    packed=st.booleans(),
)
def test_both_paths_of_the_recurrence_sum_to_the_gradient(
    seed, layers, directions, nonlinearity, rule, drops, noise, learn_initial, packed
):
    torch.manual_seed(seed)
    model = Recurrent(
        3,
        4,
        directions,
        drops[3],
        num_layers=layers,
        nonlinearity=nonlinearity,
        rule=rule,
        drop_input=drops[0],
        drop_hidden=drops[1],
        dropout=drops[2] if layers > 1 else 0.0,
        noise_hidden=noise,
        learn_initial=learn_initial,
    )
    lengths = [5, 3, 1] if packed else [5, 5, 5]
    pieces = [torch.randn(n, 3, dtype=torch.float64) for n in lengths]
    x = pack_sequence(pieces) if packed else torch.stack(pieces, 1)
    shape = (sum(lengths), 2) if packed else (5, 3, 2)
    z = torch.rand(shape, dtype=torch.float64)
    parts = {}
    for model.rnn.fused in (True, False):
        parts[model.rnn.fused] = assert_sums(model, lambda m: recurrent_loss(m, x, z), 1e-10)
    for name, part in parts[True].weights.items():
        torch.testing.assert_close(part.decay, parts[False].weights[name].decay, rtol=0, atol=0)


def test_float32_sums_to_a_millionth():
    torch.manual_seed(0)
    model = Recurrent(8, 40, 1, 0.5, drop_input=0.1, drop_hidden=0.3).float()
    x, z = torch.randn(30, 6, 8), torch.rand(30, 6, 2)
    assert_sums(model, lambda m: recurrent_loss(m, x, z), 1e-6)


def test_the_parts_are_the_partial_derivatives_of_the_moments():
    """Against differences of V[a] alone, in which neither autograd nor the split takes part."""
    torch.manual_seed(1)
    x, w = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    unit = fd.nn.Linear(6, 1, bias=False, drop=0.3, dtype=torch.float64)
    unit.weight.data[0] = w

    def loss(mean, var):
        return (mean - 0.7) ** 2 / (2 * var) + 0.5 * torch.log(var)

    def moments(w_mean, w_var):
        return 0.7 * x @ w_mean, 0.21 * x**2 @ w_var**2

    part = decompose(unit, lambda u: loss(u(x).mean[0], u(x).var[0])).weights["weight"]
    for i in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[i] = 1e-6
        along_mean = (loss(*moments(w + step, w)) - loss(*moments(w - step, w))) / 2e-6
        along_var = (loss(*moments(w, w + step)) - loss(*moments(w, w - step))) / 2e-6
        assert part.loss[0, i] == pytest.approx(float(along_mean), rel=1e-6)
        assert part.regulariser[0, i] == pytest.approx(float(along_var), rel=1e-6)


def test_eta_and_lambda_follow_their_definitions():
    torch.manual_seed(2)
    model = network(0, [5, 4, 3], [0.4], "fast", "tanh")
    x, z = torch.randn(9, 5, dtype=torch.float64), torch.rand(9, 3, dtype=torch.float64)
    parts = decompose(model, lambda m: fd.losses.bernoulli_nll(m(x), z).mean())
    part = parts.weights["0.weight"]
    spread = 0.6 * 0.4 * x**2  # certain inputs: keep drop E[x]^2
    torch.testing.assert_close(part.calls[0].spread, spread)
    torch.testing.assert_close(part.eta, part.delta.abs().t() @ spread)
    torch.testing.assert_close(part.decay, (part.delta.sign() * part.delta.abs()).t() @ spread)
    torch.testing.assert_close(part.regulariser, 2 * part.decay * model[0].weight.detach())
    assert (part.eta >= part.decay.abs() - 1e-15).all()
    by_example = part.by_example(9)
    assert by_example.shape == (9, 4, 5)
    torch.testing.assert_close(by_example.sum(0), part.decay)
    # Of one example, eta is the absolute value of lambda.
    torch.testing.assert_close(by_example.abs().sum(0), part.eta)
    shares = parts.regimes
    assert shares.zero + shares.rewards + shares.penalises == pytest.approx(1)


def test_recurrent_weights_are_kept_by_example():
    """The share of an example is what it has alone, all steps together."""
    torch.manual_seed(3)
    model = Recurrent(3, 4, 2, 0.5, num_layers=2, drop_input=0.2, drop_hidden=0.3, dropout=0.1)
    x, z = torch.randn(6, 5, 3, dtype=torch.float64), torch.rand(6, 5, 2, dtype=torch.float64)

    def loss(m, rows):
        return fd.losses.bernoulli_nll(m(x[:, rows])[0], z[:, rows]).sum()

    whole = decompose(model, lambda m: loss(m, slice(None)))
    for b in range(5):
        alone = decompose(model, lambda m, b=b: loss(m, slice(b, b + 1)))
        for name, part in whole.weights.items():
            torch.testing.assert_close(part.by_example(5)[b], alone.weights[name].decay)


def test_batch_first_is_told_to_by_example():
    torch.manual_seed(4)
    layer = fd.nn.Linear(3, 2, drop=0.5, dtype=torch.float64)
    x, z = torch.randn(4, 6, 3, dtype=torch.float64), torch.rand(4, 6, 2, dtype=torch.float64)
    part = decompose(layer, lambda m: fd.losses.bernoulli_nll(m(x), z).sum()).weights["weight"]
    alone = decompose(layer, lambda m: fd.losses.bernoulli_nll(m(x[1]), z[1]).sum()).weights["weight"]
    torch.testing.assert_close(part.by_example(4, batch_first=True)[1], alone.decay)
    with pytest.raises(ValueError, match="multiple of examples, got 24 rows, 5 examples"):
        part.by_example(5)


def test_three_regimes_of_an_output_unit():
    """Gaussian likelihood at V = 1: delta = (1 - error^2) / 2, whose sign is the size of the error."""
    layer = fd.nn.Linear(1, 3, drop=0.5, dtype=torch.float64)
    layer.weight.data.fill_(2.0)
    layer.bias.data.copy_(torch.tensor([-1.0, 0.0, 1.0]))  # means 0, 1, 2
    x, z = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    part = decompose(layer, lambda m: fd.losses.gaussian_nll(m(x), z).sum()).weights["weight"]
    torch.testing.assert_close(part.delta, torch.tensor([[0.5, 0.0, -1.5]], dtype=torch.float64))
    assert part.regimes == Regimes(1 / 3, 1 / 3, 1 / 3)
    assert part.decay[:, 0].sign().tolist() == [1.0, 0.0, -1.0]


def test_what_is_certain_has_no_regulariser():
    torch.manual_seed(5)
    model = Recurrent(3, 4, 1, 0.0)
    x, z = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, 2, 2, dtype=torch.float64)
    parts = assert_sums(model, lambda m: fd.losses.bernoulli_nll(m(x)[0], z).mean())
    for part in parts.weights.values():
        assert part.delta is None
        assert not part.regulariser.any()
    assert parts.regimes == Regimes(1, 0, 0)
    assert parts.share() == 0


def test_shared_weights_and_cells_and_noisy_weights():
    torch.manual_seed(6)
    cell = fd.nn.RNNCell(2, 3, drop_input=0.2, drop_hidden=0.4, dtype=torch.float64)
    x = torch.randn(4, 5, 2, dtype=torch.float64)

    def loss(cell):
        h = cell(x[0])
        for t in range(1, 4):
            h = cell(x[t], h)
        return h.mean.sum() + (h.var**2).sum()

    assert_sums(cell, loss)
    assert len(decompose(cell, loss).weights["weight_hh"].calls) == 4
    tied = fd.nn.Sequential(
        fd.nn.Linear(3, 3, drop=0.5, dtype=torch.float64), fd.nn.Linear(3, 3, dtype=torch.float64)
    )
    tied[1].weight = tied[0].weight
    y = torch.randn(4, 3, dtype=torch.float64)
    assert_sums(tied, lambda m: (m(y).mean ** 3).sum() + (m(y).var ** 2).sum())
    noisy = fd.nn.NoisyLinear(3, 2, drop=0.3, dtype=torch.float64)
    assert_sums(
        noisy, lambda m: (m(y).mean ** 3).sum() + (m(y).var ** 2).sum() + fd.nn.weight_noise_kl(m) / 9
    )


def test_the_model_is_left_alone():
    torch.manual_seed(7)
    model = Recurrent(3, 4, 1, 0.5, drop_hidden=0.5)
    before = {n: p.clone() for n, p in model.named_parameters()}
    kept = dict(model.named_parameters())
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with torch.no_grad():  # also where nobody records gradients
        decompose(model, lambda m: m(x)[0].mean.sum())
    for name, parameter in model.named_parameters():
        assert parameter is kept[name]
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_faults_are_named():
    layer = fd.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="must return a scalar, got \\(3, 2\\)"):
        decompose(layer, lambda m: m(torch.ones(3, 2)).mean)
    with pytest.raises(ValueError, match="must be a function of the model, got Tensor"):
        decompose(layer, torch.ones(()))
