"""The fast path is the same function as the reference: values, all gradients, every option."""

import logging

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import fastdropout as fd
from fastdropout import Moments
from fastdropout.functional import transfer
from fastdropout.recurrent import backward as fused
from fastdropout.recurrent import compiler, kernel

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
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTHS = {"padded": None, "packed": [11, 3, 7, 7], "one step": [1, 1, 1, 1]}


def outcome(rnn, dtype, lengths, variance=True, steps=11):
    """Outputs and all gradients, for one draw of inputs and of weights on the outputs."""
    torch.manual_seed(1)
    depth = rnn.num_layers * (2 if rnn.bidirectional else 1)
    leaves = [
        torch.randn(steps, 4, 5, dtype=dtype),
        torch.rand(steps, 4, 5, dtype=dtype),
        torch.randn(depth, 4, 7, dtype=dtype),
        torch.rand(depth, 4, 7, dtype=dtype),
    ]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    x, h = Moments(*leaves[:2]), Moments(*leaves[2:])
    if not variance:
        x, h = Moments.certain(x.mean), Moments.certain(h.mean)
    if rnn.learn_initial:
        h = None
    given = x
    if lengths is not None:
        packed = [pack_padded_sequence(t, lengths, enforce_sorted=False) for t in (x.mean, x.var)]
        data = Moments(packed[0].data, packed[1].data) if variance else packed[0].data
        given = packed[0]._replace(data=data)
    output, last = rnn(given, h)
    output = output.data if lengths is not None else output
    values = (output.mean, output.var, last.mean, last.var)
    torch.manual_seed(2)
    total = sum((value * torch.randn_like(value)).sum() for value in values)
    gradients = torch.autograd.grad(total, [*leaves, *rnn.parameters()], allow_unused=True)
    return [*values, *gradients]


def pair(dtype, options, **fast):
    torch.manual_seed(0)
    reference = fd.nn.RNN(5, 7, dtype=dtype, fused=False, **options)
    quick = fd.nn.RNN(5, 7, dtype=dtype, **fast, **options)
    quick.load_state_dict(reference.state_dict())
    return reference, quick


def agree(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("recompute", [False, True])
def test_is_the_same_function_as_the_reference(options, dtype, kind, recompute):
    reference, quick = pair(dtype, options, recompute=recompute)
    for variance in (True, False):
        got = outcome(quick, dtype, LENGTHS[kind], variance)
        agree(got, outcome(reference, dtype, LENGTHS[kind], variance), TOLERANCE[dtype])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 17])
def test_recomputing_in_chunks_of_any_length(steps):
    reference, quick = pair(torch.float64, OPTIONS[4], recompute=True)
    agree(
        outcome(quick, torch.float64, None, steps=steps),
        outcome(reference, torch.float64, None, steps=steps),
        1e-10,
    )


def test_without_a_kernel_it_is_only_slower(monkeypatch):
    monkeypatch.setattr(kernel, "load", lambda dtype: None)
    for options in OPTIONS[:6] + OPTIONS[-3:]:
        reference, quick = pair(torch.float64, options)
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
    ):
        assert f"#define {name} {value}\n" in source


@pytest.mark.parametrize("rule", kernel.RULES)
@pytest.mark.parametrize("large", [False, True], ids=["one thread", "shared"])
def test_kernel_alone_over_a_wide_range(large, rule):
    """The element-wise pass against the reference rule, where a recurrence would not go."""
    step = kernel.load(torch.float64)
    if step is None:
        pytest.skip("no C compiler on this machine")
    m = torch.cat([-torch.logspace(-4, 6, 90), torch.zeros(1), torch.logspace(-4, 6, 90)]).double()
    v = torch.cat([torch.zeros(1), torch.logspace(-10, 12, 40 if large else 20)]).double()
    m, v = (t.flatten() for t in torch.meshgrid(m, v, indexing="ij"))
    assert (len(m) > 4096) == large
    zero, (mean, var, u) = torch.zeros_like(m), torch.empty(3, len(m)).double()
    pre = torch.stack([m, v])
    row = len(v) // 181  # one row a mean: threads share rows
    tensors = (pre[0], pre[1], zero, zero.clone(), zero.clone(), mean, var, u)
    step.forward(kernel.Forward(row, kernel.RULES[rule], *(t.data_ptr() for t in tensors), 0.0, 0.3), 0, 181)
    mm, vv = m.clone().requires_grad_(), v.clone().requires_grad_()
    exact = fd.functional.tanh(Moments(mm, vv), rule)
    torch.testing.assert_close(mean, exact.mean.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(var, exact.var.detach(), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(u, 0.7 * var + 0.21 * mean**2)
    gm, gv = torch.randn(2, len(m)).double()
    expected = torch.autograd.grad((exact.mean, exact.var), (mm, vv), (gm, gv))
    dm, dv = torch.empty(2, len(m)).double()
    args = (m, v, mean, gm, gv, zero, zero.clone(), zero.clone(), zero.clone(), dm, dv)
    step.backward(kernel.Backward(row, kernel.RULES[rule], *(t.data_ptr() for t in args), 0.3), 0, 181, 0)
    torch.testing.assert_close(dm, expected[0], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(dv, expected[1], rtol=1e-8, atol=1e-12)


def test_nan_is_passed_on():
    rnn = fd.nn.RNN(2, 3, drop_hidden=0.1)
    x = torch.zeros(2, 1, 2)
    x[0, 0, 0] = float("nan")
    assert rnn(x)[0].mean.isnan().any()


@pytest.mark.parametrize("options", [{"reverse": False}, {"reverse": True}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("noisy", [False, True], ids=["weights", "noisy weights"])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_by_finite_differences(options, noisy, check):
    """Also second derivatives, which go through the reference by themselves."""
    torch.manual_seed(0)
    sizes = [3, 2, 2, 1]
    tensors = [
        torch.randn(8, 2),
        torch.rand(8, 2),
        torch.randn(3, 3),
        torch.rand(3, 3),
        torch.randn(3, 2),
        torch.randn(3, 3),
        torch.randn(3),
    ]
    tensors += [torch.rand_like(w) for w in tensors[4:]] if noisy else []
    tensors = [t.double().requires_grad_() for t in tensors]

    def call(xm, xv, hm, hv, *weights):
        if noisy:
            weights = [Moments(m, v) for m, v in zip(weights[:3], weights[3:], strict=True)]
        output, last = fused.fused_layer(
            Moments(xm, xv),
            Moments(hm, hv),
            *weights,
            sizes,
            drop_input=0.2,
            drop_hidden=0.3,
            noise=0.1,
            **options,
        )
        return output.mean, output.var, last.mean, last.var

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


def kept_numbers(steps, **options):
    """Numbers that autograd keeps for the backward pass, for each step, piece and unit, weights apart."""
    rnn = fd.nn.RNN(3, 50, drop_hidden=0.3, drop_input=0.1, **options)
    storages = {}

    def pack(t):
        if t.shape not in ((50, 3), (50, 50), (50,)):
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


def test_the_reference_is_taken_where_the_fast_path_cannot_go():
    x, h = Moments.certain(torch.zeros(4, 2)), Moments.certain(torch.zeros(2, 3))
    assert fused.fits(x, h)
    assert not fused.fits(x.to("meta"), h)
    assert not fused.fits(Moments.certain(torch.zeros(0, 2)), h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused.fits(x, h)
    with torch.autograd.forward_ad.dual_level():
        assert not fused.fits(x, h)
    seen = []
    torch.func.vmap(lambda t: seen.append(fused.fits(x, h)) or t)(torch.zeros(2))
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
