import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import fastdropout as fd
from fastdropout import Moments

SHAPES = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "nonlinearity": "relu"},
    {"num_layers": 3, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "nonlinearity": "relu", "batch_first": True},
]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
shapes = pytest.mark.parametrize("options", SHAPES, ids=str)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def twins(dtype=torch.float64, **options):
    torch.manual_seed(0)
    plain = torch.nn.RNN(4, 6, dtype=dtype, **options)
    ours = fd.nn.RNN(4, 6, dtype=dtype, **options)
    ours.load_state_dict(plain.state_dict(), strict=True)
    return plain, ours


def close(a, b, tolerance):
    assert (a - b).abs().max() <= tolerance * b.abs().max()


def unpacked(output):
    data = output.data if isinstance(output, PackedSequence) else output
    return data.mean if isinstance(data, Moments) else data


def inputs(kind, dtype, options):
    torch.manual_seed(1)
    if kind == "packed":
        return pack_sequence([torch.randn(n, 4, dtype=dtype) for n in (5, 2, 7)], enforce_sorted=False)
    if kind == "unbatched":
        return torch.randn(7, 4, dtype=dtype)
    return torch.randn(7, 7, 4, dtype=dtype)


@shapes
@dtypes
@pytest.mark.parametrize("kind", ["padded", "packed", "unbatched"])
@pytest.mark.parametrize("variance", ["certain", "zero"])
def test_without_dropout_it_is_torch_rnn(options, dtype, kind, variance):
    """Both through torch's own kernel (a certain input) and through our recurrence (a variance of zeros)."""
    plain, ours = twins(dtype, **options)
    x = inputs(kind, dtype, options)
    batch = {"padded": (7,), "packed": (3,), "unbatched": ()}[kind]
    depth = plain.num_layers * (2 if plain.bidirectional else 1)
    hx = torch.randn(depth, *batch, 6, dtype=dtype)
    ours_x = x
    if variance == "zero":
        data = x.data if kind == "packed" else x
        moments = Moments(data, torch.zeros_like(data))
        ours_x = x._replace(data=moments) if kind == "packed" else moments
    for given in (None, hx):
        expected, expected_last = plain(x, given)
        output, last = ours(ours_x, given)
        close(unpacked(output), unpacked(expected), TOLERANCE[dtype])
        close(last.mean, expected_last, TOLERANCE[dtype])
        assert last.var.abs().max() == 0
        plain.zero_grad()
        ours.zero_grad()
        (unpacked(expected).square().sum() + expected_last.sum()).backward()
        (unpacked(output).square().sum() + last.mean.sum()).backward()
        for (name, p), (other, q) in zip(plain.named_parameters(), ours.named_parameters(), strict=True):
            assert name == other
            close(q.grad, p.grad, TOLERANCE[dtype])


def naive(rnn, x, h):
    """One tanh layer, written out: an independent forward pass of moments."""
    outputs = []
    mean, var = h.mean, h.var
    w, u = rnn.weight_ih_l0, rnn.weight_hh_l0
    for x_t in x:
        keep_x, keep_h = 1 - rnn.drop_input, 1 - rnn.drop_hidden
        a = keep_x * x_t @ w.T + keep_h * mean @ u.T + rnn.bias_ih_l0 + rnn.bias_hh_l0
        v = (keep_x * (1 - keep_x) * x_t**2) @ (w**2).T
        v = v + (keep_h * var + keep_h * (1 - keep_h) * mean**2) @ (u**2).T
        post = fd.functional.tanh(Moments(a, v), rnn.rule)
        mean, var = post.mean, post.var
        outputs.append(post)
    return Moments.stack(outputs)


@pytest.mark.parametrize("rule", fd.functional.RULES)
def test_moments_are_those_of_the_equations(rule):
    torch.manual_seed(0)
    rnn = fd.nn.RNN(4, 6, drop_input=0.1, drop_hidden=0.3, rule=rule, dtype=torch.float64)
    x = torch.randn(9, 3, 4, dtype=torch.float64)
    h = Moments(torch.randn(3, 6).double(), torch.rand(3, 6).double())
    output, last = rnn(x, h.unsqueeze(0))
    expected = naive(rnn, x, h)
    torch.testing.assert_close(output.mean, expected.mean)
    torch.testing.assert_close(output.var, expected.var)
    torch.testing.assert_close(last.var[0], expected.var[-1])


def options_with_noise():
    return {
        "num_layers": 2,
        "bidirectional": True,
        "drop_input": 0.1,
        "drop_hidden": 0.3,
        "drop_between": 0.2,
    }


def test_packed_equals_piece_by_piece():
    torch.manual_seed(0)
    rnn = fd.nn.RNN(4, 6, **options_with_noise()).double()
    pieces = [torch.randn(n, 4).double() for n in (5, 2, 7)]
    hx = Moments(torch.randn(4, 3, 6).double(), torch.rand(4, 3, 6).double())
    packed, last = rnn(pack_sequence(pieces, enforce_sorted=False), hx)
    padded, lengths = fd.nn.pad_packed_sequence(packed)
    assert lengths.tolist() == [5, 2, 7]
    assert torch.equal(pad_packed_sequence(packed.mean)[0], padded.mean)
    assert torch.equal(pad_packed_sequence(packed.var)[0], padded.var)
    for i, piece in enumerate(pieces):
        alone, last_alone = rnn(piece, hx[:, i])
        torch.testing.assert_close(padded[: len(piece), i].mean, alone.mean)
        torch.testing.assert_close(padded[: len(piece), i].var, alone.var)
        torch.testing.assert_close(last[:, i].var, last_alone.var)


def test_state_can_be_carried_from_chunk_to_chunk():
    rnn = fd.nn.RNN(4, 6, num_layers=2, drop_hidden=0.3, drop_between=0.1)
    x = torch.randn(10, 2, 4)
    whole, _ = rnn(x)
    first, h = rnn(x[:6])
    second, _ = rnn(x[6:], h)
    torch.testing.assert_close(torch.cat([first.var, second.var]), whole.var)


def radius_rnn(radius, seed, method="moments", **options):
    torch.manual_seed(seed)
    rnn = fd.nn.RNN(20, 100, drop_hidden=0.2, drop_input=0.1, method=method, **options)
    with torch.no_grad():
        fd.nn.init.gaussian_(rnn.weight_ih_l0, 0.09)
        fd.nn.init.gaussian_(rnn.weight_hh_l0, 1.0)
        fd.nn.init.spectral_radius_(rnn.weight_hh_l0, radius)
    return rnn


@pytest.mark.parametrize("radius", [0.9, 1.2, 2.0])
def test_variance_agrees_with_4000_masks(radius):
    """100 tanh units, 40 steps, averaged over 5 seeds: the default rule is within 5 %."""
    ratios = []
    for seed in range(5):
        rnn = radius_rnn(radius, seed)
        x = torch.randn(40, 1, 20)
        with torch.no_grad():
            predicted = rnn(x)[0].var.mean()
            masked = radius_rnn(radius, seed, method="mask")
            drawn = masked(x.expand(40, 4000, 20))[0].mean
        ratios.append((predicted / drawn.var(1).mean()).item())
    assert abs(sum(ratios) / 5 - 1) < 0.05, ratios


def test_the_three_methods_agree_on_the_same_weights():
    torch.manual_seed(0)
    x = torch.randn(15, 1, 20).expand(15, 20_000, 20)
    with torch.no_grad():
        exact = radius_rnn(1.1, 0)(x[:, :1])[0]
        masked = radius_rnn(1.1, 0, "mask")(x)[0].mean
        gaussian = radius_rnn(1.1, 0, "gaussian")(x)[0].mean
    for drawn in (masked, gaussian):
        assert (drawn.mean(1) - exact.mean[:, 0]).abs().mean() < 0.02
        assert abs(exact.var.mean() / drawn.var(1).mean() - 1) < 0.07
    # The draws are fresh at every step: the noise of neighbouring steps is not one mask used twice.
    noise = masked - masked.mean(1, keepdim=True)
    assert noise.std() > 0.05


def test_in_evaluation_nothing_is_drawn():
    x = torch.randn(5, 2, 20)
    mean_only = radius_rnn(1.0, 0, "mask").eval()
    output = mean_only(x)[0]
    assert output.is_certain
    assert torch.equal(output.mean, mean_only(x)[0].mean)
    torch.testing.assert_close(radius_rnn(1.0, 0, "gaussian").eval()(x)[0].var, radius_rnn(1.0, 0)(x)[0].var)
    plain = torch.nn.RNN(20, 100)
    plain.load_state_dict(mean_only.state_dict())
    with torch.no_grad():
        plain.weight_ih_l0 *= 0.9
        plain.weight_hh_l0 *= 0.8
    torch.testing.assert_close(output.mean, plain(x)[0])


def test_learnt_initial_state_gets_gradients_and_is_overridden_by_hx():
    rnn = fd.nn.RNN(4, 6, num_layers=2, learn_initial=True, drop_hidden=0.1)
    output, _ = rnn(torch.randn(5, 3, 4))
    output.mean.sum().backward()
    assert rnn.initial_mean.grad.abs().sum() > 0
    assert rnn.initial_log_var.grad.abs().sum() > 0
    x, hx = torch.randn(5, 3, 4), torch.zeros(2, 3, 6)
    before = rnn(x, hx)[0].mean
    with torch.no_grad():
        rnn.initial_mean.fill_(2.0)
    assert torch.equal(rnn(x, hx)[0].mean, before)
    assert not torch.equal(rnn(x)[0].mean, before)


def test_noise_hidden_is_a_variance_in_every_unit():
    torch.manual_seed(0)
    options = {"noise_hidden": 0.4}
    x = torch.randn(6, 1, 4)
    rnn = fd.nn.RNN(4, 50, **options)
    drawn = fd.nn.RNN(4, 50, method="mask", **options)
    drawn.load_state_dict(rnn.state_dict())
    with torch.no_grad():
        exact, sample = rnn(x)[0], drawn(x.expand(6, 40_000, 4))[0].mean
    torch.testing.assert_close(exact.var[:, 0], sample.var(1), rtol=0.08, atol=0.01)


def module():
    return fd.nn.RNN(4, 6, **options_with_noise(), learn_initial=True)


def test_survives_copy_pickle_and_state_dict():
    rnn, x = module(), torch.randn(5, 2, 4)
    expected = rnn(x)[0]
    fresh = module()
    fresh.load_state_dict(rnn.state_dict())
    for other in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), fresh):
        assert torch.equal(other(x)[0].var, expected.var)


def test_survives_double_and_meta():
    rnn = module()
    x = torch.randn(5, 2, 4)
    single = rnn(x)[0]
    double = rnn.double()(x.double())[0]
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.var.float(), single.var, rtol=1e-4, atol=1e-6)
    meta = fd.nn.RNN(4, 6, **options_with_noise(), device="meta")
    assert meta(x.to("meta"))[0].shape == (5, 2, 12)
    assert meta.to_empty(device="cpu").weight_hh_l0.device.type == "cpu"


def test_functional_call_uses_the_given_weights():
    rnn, x = module(), torch.randn(5, 2, 4)
    doubled = {k: 2 * v for k, v in rnn.state_dict().items()}
    got = torch.func.functional_call(rnn, doubled, (x,))[0]
    other = module()
    other.load_state_dict(doubled)
    assert torch.equal(got.var, other(x)[0].var)


def test_per_example_gradients_by_vmap():
    rnn = fd.nn.RNN(4, 6, drop_hidden=0.3)
    x = torch.randn(5, 3, 4)
    weights = dict(rnn.named_parameters())

    def loss(weights, piece):
        return torch.func.functional_call(rnn, weights, (piece,))[0].var.sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))(weights, x)
    rnn(x)[0].var.sum().backward()
    torch.testing.assert_close(each["weight_hh_l0"].sum(0), rnn.weight_hh_l0.grad)


@pytest.mark.parametrize("rule", fd.functional.RULES)
def test_a_single_step_compiles_in_one_graph(rule):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4)
    for module in (
        fd.nn.RNNCell(4, 6, drop_input=0.1, drop_hidden=0.3, rule=rule),
        fd.nn.RNN(4, 6, drop_input=0.1, drop_hidden=0.3, rule=rule),
    ):
        argument = x[0] if isinstance(module, fd.nn.RNNCell) else x
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        got, expected = compiled(argument), module(argument)
        if isinstance(module, fd.nn.RNN):
            got, expected = got[0], expected[0]
        torch.testing.assert_close(got.mean, expected.mean)
        torch.testing.assert_close(got.var, expected.var)


def test_cell_is_one_step_of_the_layer():
    rnn = fd.nn.RNN(4, 6, drop_input=0.1, drop_hidden=0.3)
    cell = fd.nn.RNNCell(4, 6, drop_input=0.1, drop_hidden=0.3)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in rnn.state_dict().items()})
    x, h = torch.randn(4, 2, 4), None
    for x_t in x:
        h = cell(x_t, h)
    torch.testing.assert_close(h.var, rnn(x)[1].var[0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drop_hidden": 1.3}, r"drop_hidden must lie in \[0, 1\), got 1.3"),
        ({"drop_input": -0.1}, r"drop_input must lie in \[0, 1\), got -0.1"),
        ({"drop_between": 1}, r"drop_between must lie in \[0, 1\), got 1"),
        ({"dropout": 1.0, "num_layers": 2}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": 0.1, "drop_between": 0.2}, "dropout or drop_between, which are the same"),
        ({"rule": "best"}, "rule must be one of fast, accurate, paper, got 'best'"),
        ({"method": "mc"}, "method must be one of moments, gaussian, mask, got 'mc'"),
        ({"nonlinearity": "gelu"}, "nonlinearity must be one of tanh, relu, got 'gelu'"),
        ({"noise_hidden": -1.0}, "noise_hidden must be finite and at least 0, got -1.0"),
        (
            {"weight_noise": True, "weight_std": 0.0},
            "standard deviation of weight noise must be positive, got 0.0",
        ),
        ({"hidden_size": 0}, "hidden_size must be greater than zero"),
    ],
)
def test_bad_arguments_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        fd.nn.RNN(**{"input_size": 4, "hidden_size": 6, **options})


@pytest.mark.parametrize(
    ("x", "hx"),
    [
        (torch.zeros(5, 2, 3), None),
        (torch.zeros(5), None),
        (torch.zeros(5, 2, 4, dtype=torch.float64), None),
        (torch.zeros(5, 2, 4), torch.zeros(1, 3, 6)),
        (torch.zeros(5, 2, 4), torch.zeros(1, 6)),
        (torch.zeros(5, 4), torch.zeros(1, 1, 6)),
        (torch.zeros(0, 2, 4), None),
        (torch.zeros(5, 2, 4).long(), None),
    ],
)
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_bad_input_raises_what_torch_raises(x, hx, drop):
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        torch.nn.RNN(4, 6)(x, hx)
    with pytest.raises((ValueError, RuntimeError)) as ours:
        fd.nn.RNN(4, 6, drop_hidden=drop)(x, hx)
    assert ours.type is theirs.type or ours.type is ValueError
    assert "got" in str(ours.value) or str(ours.value) == str(theirs.value)


def test_repr_shows_what_is_not_default():
    text = repr(fd.nn.RNN(4, 6, 2, drop_hidden=0.3, rule="paper"))
    assert text == "RNN(4, 6, num_layers=2, drop_hidden=0.3, rule='paper', path=fused)"
