"""The fast path is the same function as the reference: values, all gradients, every option."""

import functools
import logging

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import fastdropout as fd
from fastdropout import Moments
from fastdropout.functional import propagate, transfer
from fastdropout.recurrent import compiler, fused, kernel
from fastdropout.recurrent.cells import CELLS, State
from fastdropout.recurrent.options import Options, Weights

OPTIONS = [
    {"drop_input": 0.1, "drop_hidden": 0.3},
    {"drop_hidden": 0.3},
    {"drop_input": 0.2},
    {"noise_hidden": 0.4, "bias": False},
    {"drop_input": 0.1, "drop_hidden": 0.3, "drop_between": 0.2, "num_layers": 2, "bidirectional": True},
    {"drop_hidden": 0.3, "noise_hidden": 0.2, "bidirectional": True},
    {"drop_hidden": 0.3, "drop_input": 0.1, "nonlinearity": "relu", "bidirectional": True},
    {"drop_hidden": 0.3, "drop_input": 0.1, "rule": "accurate"},
    {"drop_hidden": 0.3, "drop_input": 0.1, "rule": "paper"},
    {"rule": "paper"},
    {"drop_hidden": 0.3, "learn_initial": True},
    {"weight_noise": True, "bias": False},
    {"weight_noise": True, "drop_input": 0.1, "drop_hidden": 0.3, "bidirectional": True, "rule": "paper"},
    {"weight_noise": True, "weight_std": 0.5, "drop_hidden": 0.3, "nonlinearity": "relu", "num_layers": 2},
]
GATED = [options for options in OPTIONS if "nonlinearity" not in options]
CASES = [
    *(("RNN", options) for options in OPTIONS),
    *(("LSTM", options) for options in GATED),
    *(("GRU", options) for options in GATED),
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTHS = {"padded": None, "packed": [7, 2, 5, 5], "one step": [1, 1, 1, 1]}


def outcome(rnn, dtype, lengths, variance=True, steps=7):
    """Outputs and all gradients, for one draw of inputs and of weights on the outputs."""
    torch.manual_seed(1)
    depth = rnn.num_layers * (2 if rnn.bidirectional else 1)
    parts = 2 if isinstance(rnn, fd.nn.LSTM) else 1
    leaves = [torch.randn(steps, 4, 5, dtype=dtype), torch.rand(steps, 4, 5, dtype=dtype)]
    for _ in range(parts):
        leaves += [torch.randn(depth, 4, 7, dtype=dtype), torch.rand(depth, 4, 7, dtype=dtype)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    x, *h = [Moments(*leaves[i : i + 2]) for i in range(0, len(leaves), 2)]
    if not variance:
        x, *h = [Moments.certain(m.mean) for m in (x, *h)]
    h = None if rnn.learn_initial else tuple(h) if parts == 2 else h[0]
    given = x
    if lengths is not None:
        packed = [pack_padded_sequence(t, lengths, enforce_sorted=False) for t in (x.mean, x.var)]
        data = Moments(packed[0].data, packed[1].data) if variance else packed[0].data
        given = packed[0]._replace(data=data)
    output, last = rnn(given, h)
    output = output.data if lengths is not None else output
    ends = last if parts == 2 else (last,)
    values = [t for m in (output, *ends) for t in (m.mean, m.var)]
    torch.manual_seed(2)
    total = sum((value * torch.randn_like(value)).sum() for value in values)
    gradients = torch.autograd.grad(total, [*leaves, *rnn.parameters()], allow_unused=True)
    return [*values, *gradients]


def pair(dtype, options, layer="RNN", **fast):
    torch.manual_seed(0)
    make = getattr(fd.nn, layer)
    reference = make(5, 7, dtype=dtype, fused=False, **options)
    quick = make(5, 7, dtype=dtype, **fast, **options)
    quick.load_state_dict(reference.state_dict())
    return reference, quick


def agree(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


@pytest.mark.parametrize(("layer", "options"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("recompute", [False, True])
def test_is_the_same_function_as_the_reference(layer, options, dtype, kind, recompute):
    reference, quick = pair(dtype, options, layer, recompute=recompute)
    for variance in (True, False):
        got = outcome(quick, dtype, LENGTHS[kind], variance)
        agree(got, outcome(reference, dtype, LENGTHS[kind], variance), TOLERANCE[dtype])


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 17])
def test_recomputing_in_chunks_of_any_length(steps, layer):
    reference, quick = pair(torch.float64, OPTIONS[4], layer, recompute=True)
    agree(
        outcome(quick, torch.float64, None, steps=steps),
        outcome(reference, torch.float64, None, steps=steps),
        1e-10,
    )


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
def test_without_a_kernel_it_is_only_slower(monkeypatch, layer):
    monkeypatch.setattr(kernel, "load", lambda cell, dtype: None)
    for options in GATED[:6] + GATED[-2:]:
        reference, quick = pair(torch.float64, options, layer)
        for lengths in LENGTHS.values():
            agree(outcome(quick, torch.float64, lengths), outcome(reference, torch.float64, lengths), 1e-10)


def test_the_kernel_has_the_constants_of_the_rule():
    source = "".join(path.read_text() for path in (*compiler.SOURCES, *compiler.HEADERS))
    for name, value in (
        ("SLOPE", transfer._SLOPE),
        ("BEND_SMALL", transfer._BEND_SMALL),
        ("BEND_LARGE", transfer._BEND_LARGE),
        ("MIX", transfer._MIX),
        ("PAPER_A", transfer._A),
        ("PAPER_B", transfer._B),
        ("SMALLEST_SQUARE", propagate.SMALLEST_SQUARE),
        ("TIE", propagate.TIE),
    ):
        assert f"#define {name} {value}\n" in source


@pytest.mark.parametrize("rule", kernel.RULES)
@pytest.mark.parametrize("large", [False, True], ids=["one thread", "shared"])
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru"])
def test_kernel_alone_over_a_wide_range(large, rule, cell):
    """The element-wise pass against the cell's own step, where a recurrence would not go."""
    if kernel.load(cell, torch.float64) is None:
        pytest.skip("no C compiler on this machine")
    m = torch.cat([-torch.logspace(-4, 6, 90), torch.zeros(1), torch.logspace(-4, 6, 90)]).double()
    v = torch.cat([torch.zeros(1), torch.logspace(-10, 12, 40 if large else 20)]).double()
    m, v = torch.meshgrid(m, v, indexing="ij")
    slots, gates = CELLS[cell].slots, CELLS[cell].gates
    assert (m.numel() > 4096) == large
    torch.manual_seed(0)
    shuffled = [torch.randperm(len(m)) for _ in range(slots)]  # each slot at another place of the range
    pre = torch.stack([torch.cat([t[order] for order in shuffled], 1) for t in (m, v)])
    carried = torch.randn(len(m), m.shape[1]).double(), torch.rand(len(m), m.shape[1]).double()
    norms, level = torch.rand(m.shape[1]).double(), torch.rand(len(m)).double()
    leaves = [t.clone().requires_grad_() for t in (*pre, *carried, norms, level)]
    inward = None if cell == "tanh" else Moments(*leaves[2:4])
    h, c = CELLS[cell].step(Moments(*leaves[:2]), inward, rule, leaves[5][:, None] * leaves[4])
    made = values_of(h, [c])
    got, got_gradients, weights = run_kernel(cell, rule, pre, carried, slots, gates, norms, level)
    for name, a, b in zip(("mean", "var", "cell mean", "cell var"), got, made, strict=False):
        torch.testing.assert_close(a, b.detach(), rtol=1e-9, atol=1e-13, msg=lambda s, n=name: f"{n}: {s}")
    expected = torch.autograd.grad(made, leaves, weights[: len(made)], allow_unused=True)
    for a, b in zip(got_gradients, expected, strict=True):
        if b is not None:
            # Rounding of 1 - tanh^2 is multiplied by the largest factor at hand.
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11 * max(1.0, b.abs().max().item()))


def run_kernel(cell, rule, pre, carried, slots, gates, norms, level, drop=0.3):
    """One step of all rows, forward and backward, for random gradients of mean, var, cell mean, cell var.

    Returns these four, and the gradients of `pre`, `carried`, `norms` and `level`.
    """
    step = kernel.load(cell, pre.dtype)
    rows, units = pre.shape[1], pre.shape[2] // slots
    new = functools.partial(torch.zeros, rows, units, dtype=pre.dtype)
    # The input's share stands in the first slots, the recurrent share in the last ones.
    given, recurrent = pre.clone(), pre[:, :, (slots - gates) * units :].clone()
    recurrent[:, :, : (2 * gates - slots) * units] = 0
    mean, var, u, c_mean, c_var = (new() for _ in range(5))
    bias = torch.zeros(slots * units, dtype=pre.dtype)
    tensors = (*given, *recurrent, bias, mean, var, u, c_mean, c_var)
    numbers = (1 - drop, (1 - drop) * drop)
    code = kernel.RULES[rule]
    forward = kernel.Forward(units, code, True, *(t.data_ptr() for t in tensors), 0.0, *numbers)
    # Variances whose mean gives the level that is asked for.
    before, made_level = (level / (1 - drop) ** 2)[:, None].repeat(1, units), torch.zeros_like(level)
    forward.norms, forward.level = norms.data_ptr(), made_level.data_ptr()
    forward.before_v = before.data_ptr()
    step.forward(forward, 0, rows, *kernel.pointers(carried))
    if cell == "lstm":
        torch.testing.assert_close(made_level, level)
    torch.testing.assert_close(u, (1 - drop) * var + (1 - drop) * drop * mean**2)
    torch.manual_seed(1)
    weights = [torch.randn_like(mean) for _ in range(4)]
    gradient, flow, nothing = torch.zeros_like(pre), [new(), new()], [new(), new()]
    tensors = (*given, mean, c_mean, c_var, *weights[:2], *nothing, *nothing, *flow, *weights[2:], *gradient)
    backward = kernel.Backward(units, code, *(t.data_ptr() for t in tensors), *numbers)
    sums, d_level = torch.zeros(step.most_threads(), units, dtype=pre.dtype), torch.zeros_like(level)
    backward.norms, backward.level = norms.data_ptr(), level.data_ptr()
    backward.dnorms, backward.dlevel = sums.data_ptr(), d_level.data_ptr()
    if cell == "gru":  # whose last state is the output
        backward.end_m, backward.end_v = (t.data_ptr() for t in nothing)
    step.backward(backward, 0, rows, 0, *kernel.pointers(carried))
    return [mean, var, c_mean, c_var], [*gradient, *flow, sums.sum(0), d_level], weights


def test_nan_is_passed_on():
    rnn = fd.nn.RNN(2, 3, drop_hidden=0.1)
    x = torch.zeros(2, 1, 2)
    x[0, 0, 0] = float("nan")
    assert rnn(x)[0].mean.isnan().any()


def small_problem(cell, noisy=False):
    """Leaves for pieces of lengths 4, 3 and 1, and a layer as a function of them."""
    torch.manual_seed(0)
    units, gates, slots = 3, cell.gates, cell.slots
    shapes = [(8, 2), (3, units), *([(3, units)] if cell.carries == "cell" else [])]
    tensors = [t for shape in shapes for t in (torch.randn(shape), torch.rand(shape))]
    state_end = len(tensors)
    tensors += [torch.randn(gates * units, 2), torch.randn(gates * units, units), torch.randn(slots * units)]
    tensors += [torch.rand_like(w) for w in tensors[state_end:]] if noisy else []

    def split(tensors):
        x, *state = [Moments(*tensors[i : i + 2]) for i in range(0, state_end, 2)]
        weights = tensors[state_end:]
        if noisy:
            weights = [Moments(m, v) for m, v in zip(weights[:3], weights[3:], strict=True)]
        return x, State(*state), Weights(*weights)

    return [t.double().requires_grad_() for t in tensors], split


def values_of(output, last):
    return tuple(t for m in (output, *last) if m is not None for t in (m.mean, m.var))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("options", [{"reverse": False}, {"reverse": True}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("noisy", [False, True], ids=["weights", "noisy weights"])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_by_finite_differences(cell, options, noisy, check):
    """Also second derivatives, which go through the reference by themselves."""
    tensors, split = small_problem(cell, noisy)
    told = Options((3, 2, 2, 1), drop_input=0.2, drop_hidden=0.3, noise=0.1, **options)

    def call(*tensors):
        return values_of(*fused.fused_layer(cell, *split(tensors), told))

    assert check(call, tensors, fast_mode=True)
    assert check is not torch.autograd.gradcheck or check(call, tensors)


def test_backward_twice_with_retained_graph():
    rnn = fd.nn.RNN(5, 7, drop_hidden=0.3)
    output, _ = rnn(torch.randn(6, 2, 5))
    loss = output.mean.sum() + output.var.sum()
    first = torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(rnn.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_output_changed_in_place_is_noticed():
    rnn = fd.nn.RNN(5, 7, drop_hidden=0.3)
    output, _ = rnn(torch.randn(6, 2, 5))
    loss = (output.mean**2).sum()
    output.mean.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def kept_numbers(steps, layer="RNN", **options):
    """Numbers that autograd keeps for the backward pass, for each step, piece and unit, weights apart."""
    rnn = getattr(fd.nn, layer)(3, 50, drop_hidden=0.3, drop_input=0.1, **options)
    weights = {p.shape for p in rnn.parameters()}
    storages = {}

    def pack(t):
        if t.shape not in weights:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output, _ = rnn(torch.randn(steps, 8, 3))
    for t in (output.mean, output.var):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
    return sum(storages.values()) / (steps * 8 * 50)


def test_at_most_six_numbers_are_kept():
    assert kept_numbers(100) < 6
    assert kept_numbers(100, recompute=True) < 2.3  # the outputs, and the input of three features


def test_gated_layers_keep_their_slots_their_outputs_and_their_cells():
    assert kept_numbers(100, "GRU") < 12  # 2 moments of 4 slots, and 3 of the output
    assert kept_numbers(100, "LSTM") < 14  # and 2 of the cell
    assert kept_numbers(400, "GRU", recompute=True) < 2.3
    assert kept_numbers(400, "LSTM", recompute=True) < 2.4  # and the cells that enter each of 20 chunks


def test_the_reference_is_taken_where_the_fast_path_cannot_go():
    x, h = Moments.certain(torch.zeros(4, 2)), State(Moments.certain(torch.zeros(2, 3)))
    w = Weights(torch.zeros(3, 2), torch.zeros(3, 3), torch.zeros(3))
    assert fused.supports(x, h, w)
    assert not fused.supports(x.to("meta"), h, w)
    assert not fused.supports(Moments.certain(torch.zeros(0, 2)), h, w)
    assert not fused.supports(x, h, w._replace(bias=torch.zeros(3).double()))
    assert not fused.supports(x, h, w._replace(w_hr=torch.zeros(3, 3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused.supports(x, h, w)
    with torch.autograd.forward_ad.dual_level():
        assert not fused.supports(x, h, w)
    seen = []
    torch.func.vmap(lambda t: seen.append(fused.supports(x, h, w)) or t)(torch.zeros(2))
    assert seen == [False]


def test_which_path_is_taken_can_be_seen(caplog):
    assert "path=fused" in repr(fd.nn.RNN(2, 3, drop_hidden=0.1))
    assert "path=fused" in repr(fd.nn.RNN(2, 3, drop_hidden=0.1, weight_noise=True))
    assert "path=reference" in repr(fd.nn.RNN(2, 3, weight_noise=True, method="gaussian"))
    assert "path=torch" in repr(fd.nn.RNN(2, 3))
    with caplog.at_level(logging.DEBUG, "fastdropout"):
        fd.nn.RNN(2, 3, drop_hidden=0.1)(torch.zeros(1, 1, 2))
        fd.nn.RNN(2, 3, drop_hidden=0.1, fused=False)(torch.zeros(1, 1, 2))
        fd.nn.RNN(2, 3)(torch.zeros(1, 1, 2))
    paths = [record.message for record in caplog.records if "path" in record.message]
    assert [message.split("path: ")[1] for message in paths] == ["fused", "reference", "torch"]
