"""LSTM and GRU: torch.nn's interface and values, packing, states, and a variance that agrees with masks."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import fastdropout as fd
from fastdropout import Moments

SHAPES = [
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"bias": False, "num_layers": 2}),
    ("LSTM", {"proj_size": 3}),
    ("LSTM", {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    ("GRU", {}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("GRU", {"bias": False, "num_layers": 2}),
]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
shapes = pytest.mark.parametrize(("layer", "options"), SHAPES, ids=str)
layers = pytest.mark.parametrize("layer", ["LSTM", "GRU"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
NOISE = {"drop_input": 0.1, "drop_hidden": 0.3}
DEEP = {**NOISE, "num_layers": 2, "bidirectional": True, "drop_between": 0.2}


def parts_of(state):
    return list(state) if isinstance(state, tuple) else [state]


def given_state(parts):
    return tuple(parts) if len(parts) == 2 else parts[0]


def close(a, b, tolerance):
    assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def data_of(output):
    data = output.data if isinstance(output, PackedSequence) else output
    return data.mean if isinstance(data, Moments) else data


def inputs(kind, dtype):
    torch.manual_seed(1)
    if kind == "packed":
        return pack_sequence([torch.randn(n, 4, dtype=dtype) for n in (5, 2, 7)], enforce_sorted=False)
    return torch.randn(*((7, 4) if kind == "unbatched" else (7, 7, 4)), dtype=dtype)


def state_for(rnn, kind, dtype):
    batch = {"padded": (7,), "packed": (3,), "unbatched": ()}[kind]
    depth = rnn.num_layers * (2 if rnn.bidirectional else 1)
    sizes = [rnn.proj_size or rnn.hidden_size]
    sizes += [rnn.hidden_size] if isinstance(rnn, torch.nn.LSTM | fd.nn.LSTM) else []
    return given_state([torch.randn(depth, *batch, size, dtype=dtype) for size in sizes])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@shapes
@dtypes
@pytest.mark.parametrize("kind", ["padded", "packed", "unbatched"])
@pytest.mark.parametrize("variance", ["certain", "zero"])
def test_without_dropout_it_is_torch(layer, options, dtype, kind, variance):
    """Both through torch's own kernel (a certain input) and through ours (a variance of zeros)."""
    torch.manual_seed(0)
    plain = getattr(torch.nn, layer)(4, 6, dtype=dtype, **options)
    ours = getattr(fd.nn, layer)(4, 6, dtype=dtype, **options)
    ours.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(ours.state_dict(), strict=True)
    x = inputs(kind, dtype)
    ours_x = x
    if variance == "zero":
        data = x.data if kind == "packed" else x
        random = Moments(data, torch.zeros_like(data))
        ours_x = x._replace(data=random) if kind == "packed" else random
    for given in (None, state_for(plain, kind, dtype)):
        expected, expected_last = plain(x, given)
        output, last = ours(ours_x, given)
        close(data_of(output), data_of(expected), TOLERANCE[dtype])
        for a, b in zip(parts_of(last), parts_of(expected_last), strict=True):
            close(a.mean, b, TOLERANCE[dtype])
            assert a.var.abs().max() == 0
        plain.zero_grad()
        ours.zero_grad()
        (data_of(expected).square().sum() + sum(p.sum() for p in parts_of(expected_last))).backward()
        (data_of(output).square().sum() + sum(p.mean.sum() for p in parts_of(last))).backward()
        for (name, p), (other, q) in zip(plain.named_parameters(), ours.named_parameters(), strict=True):
            assert name == other
            close(q.grad, p.grad, 10 * TOLERANCE[dtype])


@layers
def test_moments_are_those_of_the_equations(layer):
    """Step by step with the functions of `functional`, an independent forward pass."""
    torch.manual_seed(0)
    rnn = getattr(fd.nn, layer)(4, 6, dtype=torch.float64, **NOISE)
    f, x = fd.functional, torch.randn(9, 3, 4).double()
    h = c = Moments.certain(torch.zeros(3, 6).double())
    for x_t, expected in zip(x, rnn(x)[0].unbind(0), strict=True):
        a = f.linear(f.dropout(Moments.certain(x_t), 0.1), rnn.weight_ih_l0, rnn.bias_ih_l0)
        b = f.linear(f.dropout(h, 0.3), rnn.weight_hh_l0, rnn.bias_hh_l0)
        gates = zip(a.chunk(a.shape[-1] // 6, -1), b.chunk(a.shape[-1] // 6, -1), strict=True)
        if layer == "LSTM":
            i, forget, g, o = (f.add_independent(p, q) for p, q in gates)
            i, forget, a_var, g = f.sigmoid(i), f.sigmoid(forget), g.var, f.tanh(g)
            # What returns: 0.7^2 times the mean variance of the units, through the rows of the candidate.
            recurring = 0.49 * h.var.mean(1, keepdim=True) * (rnn.weight_hh_l0[12:18] ** 2).sum(1)
            returning = f.recurring_covariance(forget, c, i, g, a_var, recurring)
            c = f.add_independent(f.multiply_independent(forget, c), f.multiply_independent(i, g))
            c = Moments(c.mean, c.var + returning)
            h = f.multiply_independent(f.sigmoid(o), f.tanh(c))
        else:
            (r_x, r_h), (z_x, z_h), (n_x, n_h) = gates
            r, z = f.sigmoid(f.add_independent(r_x, r_h)), f.sigmoid(f.add_independent(z_x, z_h))
            h = f.mix_independent(z, f.tanh(f.add_independent(n_x, f.multiply_independent(r, n_h))), h)
        torch.testing.assert_close(h.mean, expected.mean)
        torch.testing.assert_close(h.var, expected.var)


@layers
@pytest.mark.parametrize("drops", [(0.1, 0.2), (0.2, 0.5)], ids=str)
@pytest.mark.parametrize(
    ("scale", "forget", "sparse"),
    [(1.0, 1, False), (2.0, 1, False), (2.0, 1, True), (2.0, 0, True), (1.0, 2, True)],
)
def test_variance_agrees_with_1500_masks(layer, drops, scale, forget, sparse):
    """128 units, 60 steps, `scale` times torch's initial weights: within 10 %, mean over units and steps.

    `forget` is added to the bias of an LSTM's forget gate (1 is the usual start); `sparse` inputs are 1 with
    probability .05, as notes are.
    """

    def make(**options):
        torch.manual_seed(0)
        rnn = getattr(fd.nn, layer)(40, 128, drop_input=drops[0], drop_hidden=drops[1], **options)
        with torch.no_grad():
            for name, parameter in rnn.named_parameters():
                if name.startswith("weight"):
                    parameter.mul_(scale)
            if layer == "LSTM":
                rnn.bias_ih_l0[128:256] += forget
        return rnn

    torch.manual_seed(1)
    x = (torch.rand(60, 1, 40) < 0.05).float() if sparse else torch.randn(60, 1, 40)
    with torch.no_grad():
        predicted, drawn = make()(x)[0], make(method="mask")(x.expand(60, 1500, 40))[0].mean
    assert 0.9 < predicted.var.mean() / drawn.var(1).mean() < 1.1
    error = (predicted.mean[:, 0] - drawn.mean(1)).abs().mean() / drawn.std(1).mean()
    assert error < 0.15
    together = torch.stack([predicted.std.flatten(), drawn.std(1).flatten()])
    assert torch.corrcoef(together)[0, 1] > 0.9


@layers
def test_packed_equals_piece_by_piece(layer):
    torch.manual_seed(0)
    rnn = getattr(fd.nn, layer)(4, 6, **DEEP).double()
    pieces = [torch.randn(n, 4).double() for n in (5, 2, 7)]
    count = 2 if layer == "LSTM" else 1
    hx = [Moments(torch.randn(4, 3, 6).double(), torch.rand(4, 3, 6).double()) for _ in range(count)]
    packed, last = rnn(pack_sequence(pieces, enforce_sorted=False), given_state(hx))
    padded, lengths = fd.nn.pad_packed_sequence(packed)
    assert lengths.tolist() == [5, 2, 7]
    for i, piece in enumerate(pieces):
        alone, last_alone = rnn(piece, given_state([part[:, i] for part in hx]))
        torch.testing.assert_close(padded[: len(piece), i].mean, alone.mean)
        torch.testing.assert_close(padded[: len(piece), i].var, alone.var)
        for a, b in zip(parts_of(last), parts_of(last_alone), strict=True):
            torch.testing.assert_close(a[:, i].var, b.var)


@layers
@pytest.mark.parametrize("options", [{}, {"proj_size": 3}], ids=str)
def test_state_can_be_carried_from_chunk_to_chunk(layer, options):
    if layer == "GRU" and options:
        pytest.skip("torch.nn.GRU has no proj_size")
    rnn = getattr(fd.nn, layer)(4, 6, num_layers=2, drop_hidden=0.3, drop_between=0.1, **options)
    x = torch.randn(10, 2, 4)
    whole, _ = rnn(x)
    first, h = rnn(x[:6])
    second, _ = rnn(x[6:], h)
    torch.testing.assert_close(torch.cat([first.var, second.var]), whole.var)


@layers
def test_cell_is_one_step_of_the_layer(layer):
    rnn = getattr(fd.nn, layer)(4, 6, **NOISE)
    cell, plain = getattr(fd.nn, f"{layer}Cell")(4, 6, **NOISE), getattr(torch.nn, f"{layer}Cell")(4, 6)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in rnn.state_dict().items()})
    plain.load_state_dict(cell.state_dict())
    x, state = torch.randn(4, 2, 4), None
    for x_t in x:
        state = cell(x_t, state)
    for a, b in zip(parts_of(state), parts_of(rnn(x)[1]), strict=True):
        torch.testing.assert_close(a.var, b.var[0])
    cell.drop_input = cell.drop_hidden = 0.0
    for a, b in zip(parts_of(cell(x[0])), parts_of(plain(x[0])), strict=True):
        torch.testing.assert_close(a.mean, b)


@layers
def test_learnt_initial_state_gets_gradients(layer):
    rnn = getattr(fd.nn, layer)(4, 6, num_layers=2, learn_initial=True, drop_hidden=0.1)
    rnn(torch.randn(5, 3, 4))[0].var.sum().backward()
    learnt = {name: p for name, p in rnn.named_parameters() if name.startswith("initial")}
    assert len(learnt) == (4 if layer == "LSTM" else 2)
    assert all(p.grad.abs().sum() > 0 for p in learnt.values())


@layers
def test_weight_noise_in_closed_form_agrees_with_drawn_weights(layer):
    torch.manual_seed(0)
    rnn = getattr(fd.nn, layer)(4, 10, weight_noise=True, weight_std=0.1)
    x = torch.randn(3, 1, 4)
    exact = rnn(x)[0][-1, 0]
    rnn.method = "mask"
    with torch.no_grad():
        drawn = torch.stack([rnn(x)[0].mean[-1, 0] for _ in range(3000)])
    assert ((exact.mean - drawn.mean(0)).abs() < 0.1 * drawn.std(0)).all()
    # One draw of the weights serves all steps, the closed form takes a fresh one at each: a little less.
    assert 0.6 < (exact.var / drawn.var(0)).mean() < 1.2


@layers
def test_survives_copy_pickle_and_double(layer):
    rnn, x = getattr(fd.nn, layer)(4, 6, **DEEP), torch.randn(5, 2, 4)
    expected = rnn(x)[0]
    for other in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert torch.equal(other(x)[0].var, expected.var)
    torch.testing.assert_close(rnn.double()(x.double())[0].var.float(), expected.var, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "x", "hx"),
    [
        ("LSTM", torch.zeros(5, 2, 3), None),
        ("LSTM", torch.zeros(5, 2, 4), (torch.zeros(1, 3, 6), torch.zeros(1, 2, 6))),
        ("LSTM", torch.zeros(5, 2, 4), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 5))),
        ("LSTM", torch.zeros(5, 2, 4), (torch.zeros(1, 6), torch.zeros(1, 6))),
        ("GRU", torch.zeros(5, 2, 4), torch.zeros(1, 3, 6)),
        ("GRU", torch.zeros(5), None),
        ("GRU", torch.zeros(0, 2, 4), None),
    ],
)
def test_bad_input_raises_what_torch_raises(layer, x, hx):
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        getattr(torch.nn, layer)(4, 6)(x, hx)
    with pytest.raises((ValueError, RuntimeError)) as ours:
        getattr(fd.nn, layer)(4, 6, drop_hidden=0.3)(x, hx)
    assert ours.type is theirs.type or ours.type is ValueError
    assert "got" in str(ours.value) or str(ours.value) == str(theirs.value)


def test_what_a_cell_cannot_have_is_an_error():
    with pytest.raises(ValueError, match="proj_size is for LSTM only, got 3"):
        fd.nn.GRU(4, 6, proj_size=3)
    with pytest.raises(TypeError, match="nonlinearity"):
        fd.nn.LSTM(4, 6, nonlinearity="relu")
    with pytest.raises(TypeError, match=r"hx must be a pair \(h_0, c_0\), got Tensor"):
        fd.nn.LSTM(4, 6)(torch.zeros(5, 2, 4), torch.zeros(1, 2, 6))
    with pytest.raises(ValueError, match=r"drop_hidden must lie in \[0, 1\), got 1.5"):
        fd.nn.LSTM(4, 6).drop_hidden = 1.5


def test_repr_shows_what_is_not_default():
    text = repr(fd.nn.LSTM(4, 6, 2, drop_hidden=0.3, bidirectional=True))
    assert text == "LSTM(4, 6, num_layers=2, bidirectional=True, drop_hidden=0.3, path=fused)"
    assert "path=reference" in repr(fd.nn.LSTM(4, 6, proj_size=2, drop_hidden=0.3))
    assert "path=torch" in repr(fd.nn.GRU(4, 6))
