"""The fast path of the methods that draw is the same function as the reference, for the same draws."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import fastdropout as fd
from fastdropout import Moments
from fastdropout.recurrent import sampled as drawn

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
LENGTHS = {"padded": None, "packed": [11, 3, 7, 7], "one step": [1, 1, 1, 1]}


def outcome(rnn, dtype, lengths):
    torch.manual_seed(1)
    depth = rnn.num_layers * (2 if rnn.bidirectional else 1)
    shapes = [(11, 4, 5), (11, 4, 5), (depth, 4, UNITS), (depth, 4, UNITS)]
    leaves = [torch.rand(shape, dtype=dtype).requires_grad_() for shape in shapes]
    x, h = Moments(*leaves[:2]), None if rnn.learn_initial else Moments(*leaves[2:])
    given = x
    if lengths is not None:
        packed = [pack_padded_sequence(t, lengths, enforce_sorted=False) for t in (x.mean, x.var)]
        given = packed[0]._replace(data=Moments(packed[0].data, packed[1].data))
    torch.manual_seed(3)
    output, last = rnn(given, h)
    output = output.data if lengths is not None else output
    assert output.is_certain
    assert last.is_certain
    torch.manual_seed(2)
    total = sum((value * torch.randn_like(value)).sum() for value in (output.mean, last.mean))
    gradients = torch.autograd.grad(total, [*leaves, *rnn.parameters()], allow_unused=True)
    return [output.mean, last.mean, *gradients]


@pytest.mark.parametrize("method", ["mask", "gaussian"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LENGTHS)
def test_is_the_same_function_as_the_reference(method, options, dtype, kind):
    torch.manual_seed(0)
    reference = fd.nn.RNN(5, UNITS, dtype=dtype, method=method, fused=False, **options)
    quick = fd.nn.RNN(5, UNITS, dtype=dtype, method=method, **options)
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


@pytest.mark.parametrize("method", ["mask", "gaussian"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_by_finite_differences(method, reverse, check):
    torch.manual_seed(0)
    tensors = [
        torch.randn(8, 2),
        torch.rand(8, 2),
        torch.randn(3, 3),
        torch.rand(3, 3),
        torch.randn(3, 2),
        torch.randn(3, 3),
        torch.randn(3),
    ]
    tensors = [t.double().requires_grad_() for t in tensors]

    def call(xm, xv, hm, hv, *weights):
        torch.manual_seed(4)
        x, h = Moments(xm, xv), Moments(hm, hv)
        options = {"drop_input": 0.2, "drop_hidden": 0.3, "noise": 0.1, "reverse": reverse}
        output, last = drawn.drawn_layer(x, h, *weights, [3, 2, 2, 1], method=method, **options)
        return output.mean, last.mean

    if method == "mask":  # which sees no variance
        tensors[1].requires_grad_(False)
        tensors[3].requires_grad_(False)
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
