"""The fast path of the methods that draw is the same function as the reference, for the same draws."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import fastdropout as fd
from fastdropout import Moments
from fastdropout.recurrent.cells import CELLS, State
from fastdropout.recurrent.options import Options, Weights
from fastdropout.recurrent.sampled import sampled_layer

# 16 units: then torch draws Gaussians one by one in the same order, whether a step at a time or all at once.
UNITS = 16
OPTIONS = [
    {"drop_input": 0.1, "drop_hidden": 0.3},
    {"drop_hidden": 0.3, "bias": False},
    {"drop_input": 0.2},
    {"noise_hidden": 0.4, "drop_hidden": 0.2},
    {"drop_hidden": 0.3, "drop_between": 0.2, "num_layers": 2, "bidirectional": True},
    {"drop_hidden": 0.3, "drop_input": 0.1, "nonlinearity": "relu", "bidirectional": True},
    {"drop_hidden": 0.3, "learn_initial": True},
]
CASES = [
    *(("RNN", options) for options in OPTIONS),
    *((layer, options) for layer in ("LSTM", "GRU") for options in OPTIONS if "nonlinearity" not in options),
]
LENGTHS = {"padded": None, "packed": [11, 3, 7, 7], "one step": [1, 1, 1, 1]}


def outcome(rnn, dtype, lengths):
    torch.manual_seed(1)
    depth = rnn.num_layers * (2 if rnn.bidirectional else 1)
    parts = 2 if isinstance(rnn, fd.nn.LSTM) else 1
    shapes = [(11, 4, 5)] * 2 + [(depth, 4, UNITS)] * (2 * parts)
    leaves = [torch.rand(shape, dtype=dtype).requires_grad_() for shape in shapes]
    x, *h = [Moments(*leaves[i : i + 2]) for i in range(0, len(leaves), 2)]
    h = None if rnn.learn_initial else tuple(h) if parts == 2 else h[0]
    given = x
    if lengths is not None:
        packed = [pack_padded_sequence(t, lengths, enforce_sorted=False) for t in (x.mean, x.var)]
        given = packed[0]._replace(data=Moments(packed[0].data, packed[1].data))
    torch.manual_seed(3)
    output, last = rnn(given, h)
    output = output.data if lengths is not None else output
    values = [output, *(last if parts == 2 else [last])]
    assert all(value.is_certain for value in values)
    values = [value.mean for value in values]
    torch.manual_seed(2)
    total = sum((value * torch.randn_like(value)).sum() for value in values)
    gradients = torch.autograd.grad(total, [*leaves, *rnn.parameters()], allow_unused=True)
    return [*values, *gradients]


@pytest.mark.parametrize("method", ["mask", "gaussian"])
@pytest.mark.parametrize(("layer", "options"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LENGTHS)
def test_is_the_same_function_as_the_reference(method, layer, options, dtype, kind):
    torch.manual_seed(0)
    make = getattr(fd.nn, layer)
    reference = make(5, UNITS, dtype=dtype, method=method, fused=False, **options)
    quick = make(5, UNITS, dtype=dtype, method=method, **options)
    quick.load_state_dict(reference.state_dict())
    assert reference.path == "reference"
    assert quick.path == "fused"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for a, b in zip(
        outcome(quick, dtype, LENGTHS[kind]), outcome(reference, dtype, LENGTHS[kind]), strict=True
    ):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("method", ["mask", "gaussian"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_by_finite_differences(cell, method, reverse, check):
    torch.manual_seed(0)
    shapes = [(8, 2), (3, 3), *([(3, 3)] if cell.carries == "cell" else [])]
    tensors = [t for shape in shapes for t in (torch.randn(shape), torch.rand(shape))]
    end = len(tensors)
    tensors += [torch.randn(cell.gates * 3, 2), torch.randn(cell.gates * 3, 3), torch.randn(cell.slots * 3)]
    tensors = [t.double().requires_grad_() for t in tensors]
    options = Options(
        (3, 2, 2, 1), drop_input=0.2, drop_hidden=0.3, noise=0.1, method=method, reverse=reverse
    )

    def call(*tensors):
        torch.manual_seed(4)
        x, *state = [Moments(*tensors[i : i + 2]) for i in range(0, end, 2)]
        output, last = sampled_layer(cell, x, State(*state), Weights(*tensors[end:]), options)
        return tuple(m.mean for m in (output, *last) if m is not None)

    # Under "mask" no variance is seen, and of a cell under either method none.
    unseen = range(1, end, 2) if method == "mask" else range(5, end, 2)
    for i in unseen:
        tensors[i].requires_grad_(False)
    assert check(call, tensors, fast_mode=check is torch.autograd.gradgradcheck)


def test_no_variance_means_no_noise_and_finite_gradients():
    """A Gaussian of zero variance: the root's slope is infinite there, and must not be asked for."""
    rnn = fd.nn.RNN(3, 4, method="gaussian", drop_hidden=0.5, bias=False)
    output, _ = rnn(torch.zeros(2, 1, 3))
    assert output.mean.eq(0).all()
    output.mean.sum().backward()
    assert all(p.grad.isfinite().all() for p in rnn.parameters())


def test_masks_are_drawn_with_the_right_probability():
    """h_1 = relu(sum of kept units of h_0 = 1): binomial, with mean keep n and variance keep drop n."""
    rnn = fd.nn.RNN(1, 400, nonlinearity="relu", method="mask", drop_hidden=0.3, bias=False)
    with torch.no_grad():
        rnn.weight_hh_l0.fill_(1.0)
    torch.manual_seed(0)
    output, _ = rnn(torch.zeros(1, 4000, 1), torch.ones(1, 4000, 400))
    sums = output.mean[0, :, 0]
    assert abs(sums.mean() - 280) < 5 * (84 / 4000) ** 0.5
    assert abs(sums.var() / 84 - 1) < 5 * (2 / 4000) ** 0.5
