"""Normalisation of moments against sampling and torch's own."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from fastdropout import Moments
from fastdropout import functional as fd

DRAWS = 20_000


def noisy(*shape, var=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Moments(torch.randn(*shape, generator=g), torch.rand(*shape, generator=g) * 2 * var)


def close(got, y, mean, std):
    assert (got.mean - y.mean(0)).abs().max() < mean
    assert (got.var.mean() / y.var(0).mean()).sqrt().sub(1).abs() < std


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize(("var", "mean"), [(0.1, 0.02), (1.0, 0.04), (4.0, 0.06)])
def test_layer_and_rms_norm(n, var, mean):
    torch.manual_seed(0)
    x = noisy(2, n, var=var)
    draws = x.sample((DRAWS,))
    close(fd.layer_norm(x, [n]), F.layer_norm(draws, [n]), mean, 0.03)
    close(fd.rms_norm(x, [n]), F.rms_norm(draws, [n]), mean, 0.03)


def test_noise_of_a_leading_element_is_divided_out():
    x = Moments(torch.cat([torch.tensor([24.0]), torch.randn(63)]), torch.ones(64))
    y = F.layer_norm(x.sample((DRAWS,)), [64])
    got = fd.layer_norm(x, [64])
    assert 0.7 < (got.var[0] / y.var(0)[0]).sqrt() < 1.1
    assert got.var[0] < 0.2 * got.var[1]


def test_two_elements_have_no_noise_left():
    y = fd.layer_norm(Moments(torch.tensor([5.0, -5.0]), torch.tensor([1e-4, 3e-4])), [2])
    assert y.var.max() < 1e-9


def test_group_instance_and_batch_norm():
    torch.manual_seed(1)
    x = noisy(16, 4, 6, var=0.5)
    draws = x.sample((2000,))
    flat = draws.flatten(0, 1)
    close(fd.group_norm(x, 2), F.group_norm(flat, 2).view_as(draws), 0.12, 0.05)
    close(fd.instance_norm(x), F.instance_norm(flat).view_as(draws), 0.2, 0.1)
    batches = torch.stack([F.batch_norm(a, None, None, training=True) for a in draws])
    close(fd.batch_norm(x, None, None, training=True), batches, 0.06, 0.03)


def test_certain_values_are_plain_and_parameters_apply():
    torch.manual_seed(2)
    m = torch.randn(5, 4, 3)
    w, b, rm, rv = torch.randn(4), torch.randn(4), torch.randn(4), torch.rand(4) + 0.5
    w3, b3 = torch.randn(3), torch.randn(3)
    for x in (Moments.certain(m), Moments(m, torch.zeros_like(m))):
        pairs = [
            (fd.layer_norm(x, [3], w3, b3), F.layer_norm(m, [3], w3, b3)),
            (fd.layer_norm(x, [4, 3]), F.layer_norm(m, [4, 3])),
            (fd.rms_norm(x, [3], w3), F.rms_norm(m, [3], w3)),
            (fd.rms_norm(x, [3], None, 0.1), F.rms_norm(m, [3], None, 0.1)),
            (fd.group_norm(x, 2, w, b), F.group_norm(m, 2, w, b)),
            (fd.instance_norm(x, None, None, w, b), F.instance_norm(m, None, None, w, b)),
            (fd.batch_norm(x, rm, rv, w, b), F.batch_norm(m, rm, rv, w, b)),
            (fd.batch_norm(x, None, None, w, b, True), F.batch_norm(m, None, None, w, b, True)),
        ]
        for got, plain in pairs:
            torch.testing.assert_close(got.mean, plain, rtol=1e-5, atol=1e-5)
            assert (got.var == 0).all()


def test_running_statistics_move_as_those_of_torch():
    m = torch.randn(5, 4, 3)
    ours, theirs = (torch.zeros(4), torch.ones(4)), (torch.zeros(4), torch.ones(4))
    fd.batch_norm(m, *ours, training=True, momentum=0.3)
    F.batch_norm(m, *theirs, training=True, momentum=0.3)
    torch.testing.assert_close(ours, theirs)
    ours, theirs = (torch.zeros(4), torch.ones(4)), (torch.zeros(4), torch.ones(4))
    fd.instance_norm(m, *ours, momentum=0.3)
    F.instance_norm(m, *theirs, momentum=0.3)
    torch.testing.assert_close(ours, theirs)
    # The variance over the batch has the noise in it.
    noise = Moments(m, torch.ones_like(m))
    means, variances = torch.zeros(4), torch.zeros(4)
    fd.batch_norm(noise, means, variances, training=True, momentum=1.0)
    drawn = torch.stack([a.transpose(0, 1).flatten(1).var(1) for a in noise.sample((4000,))]).mean(0)
    torch.testing.assert_close(variances, drawn, rtol=0.03, atol=0.03)


def test_gradients():
    mean = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    var = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)

    def values(m, v):
        x = Moments(m, v + 0.05)
        results = (fd.layer_norm(x, [4]), fd.rms_norm(x, [4]), fd.batch_norm(x, None, None, training=True))
        return [t for y in results for t in (y.mean, y.var)]

    assert gradcheck(values, (mean, var))
    zero = torch.zeros_like(var).requires_grad_()
    y = fd.layer_norm(Moments(mean, zero), [4])
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(y.mean.sum() + y.var.sum(), (mean, zero)))


def test_bad_input_says_what_allowed_and_got():
    x = noisy(2, 3)
    with pytest.raises(ValueError, match=r"last dimensions of \(2, 3\), got \(4,\)"):
        fd.layer_norm(x, [4])
    with pytest.raises(ValueError, match=r"2 groups must divide the channels, got shape \(2, 3\)"):
        fd.group_norm(x, 2)
