"""Maxima of independent Gaussians against sampling and torch's own."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from fastdropout import Moments
from fastdropout import functional as fd

DRAWS = 400_000
POOLS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
]


def noisy(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Moments(torch.randn(*shape, generator=g).double(), torch.rand(*shape, generator=g).double())


def test_the_larger_of_two_is_exact():
    torch.manual_seed(0)
    a, b = noisy(3, 1), noisy(4, seed=1)
    y = torch.maximum(a.sample((DRAWS,)), b.sample((DRAWS,)).unsqueeze(1))
    got = fd.maximum(a, b)
    assert (got.mean - y.mean(0)).abs().max() < 5 * (y.std(0) / DRAWS**0.5).max()
    torch.testing.assert_close(got.var, y.var(0), rtol=0.015, atol=1e-3)
    least = fd.minimum(-a, -b)
    torch.testing.assert_close(least.mean, -got.mean)
    torch.testing.assert_close(least.var, got.var)


# The errors that `extremes` states, and a little for the sampling.
@pytest.mark.parametrize(
    ("n", "mean", "low"), [(4, 6e-3, 0.96), (9, 0.012, 0.93), (16, 0.022, 0.9), (64, 0.025, 0.86)]
)
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_the_largest_of_many(n, mean, low, scale):
    torch.manual_seed(1)
    x = Moments(torch.randn(n) * scale, torch.ones(n))
    y = x.sample((DRAWS,)).amax(1)
    got = fd.amax(x)
    assert (got.mean - y.mean()).abs() < mean
    assert low < (got.var / y.var()).sqrt() < 1.01


def test_along_dimensions():
    x = noisy(2, 3, 4)
    assert fd.amax(x, 1).shape == (2, 4)
    assert fd.amax(x, (0, 2), keepdim=True).shape == (1, 3, 1)
    assert fd.amax(x).shape == ()
    row = fd.amax(x[1, :, 2])
    torch.testing.assert_close(fd.amax(x, 1).var[1, 2], row.var)
    torch.testing.assert_close(fd.amin(-x, 1).var, fd.amax(x, 1).var)


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_pooling(options):
    torch.manual_seed(2)
    x = noisy(2, 3, 7, 9)
    got = fd.max_pool(x, dims=2, **options)
    y = torch.stack([F.max_pool2d(a, **options) for a in x.sample((4000,))])
    assert (got.mean - y.mean(0)).abs().max() < 0.06
    assert 0.93 < (got.var.mean() / y.var(0).mean()).sqrt() < 1.02
    for plain in (x.mean, Moments(x.mean, torch.zeros_like(x.var))):
        exact = fd.max_pool(plain, dims=2, **options)
        torch.testing.assert_close(exact.mean, F.max_pool2d(x.mean, **options), rtol=0, atol=0)
        assert (exact.var == 0).all()


def test_pooling_of_other_dimensions_and_adaptive():
    sound, volume = noisy(2, 3, 8), noisy(1, 2, 4, 4, 4)
    assert fd.max_pool(sound, 2, dims=1).shape == (2, 3, 4)
    assert fd.max_pool(volume, 2, dims=3).shape == (1, 2, 2, 2, 2)
    image = noisy(2, 3, 7, 9)
    for size in ((3, 4), 1, (None, 2)):
        got = fd.adaptive_max_pool(Moments(image.mean, torch.zeros_like(image.var)), size, dims=2)
        torch.testing.assert_close(got.mean, F.adaptive_max_pool2d(image.mean, size), rtol=0, atol=0)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients(check):
    x = noisy(1, 1, 3, 3)
    mean, var = x.mean.clone().requires_grad_(), (x.var + 0.1).requires_grad_()

    def values(m, v):
        y = fd.max_pool(Moments(m, v), 2, 1, 1, dims=2)
        return y.mean, y.var

    assert check(values, (mean, var))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_everywhere(dtype):
    values = torch.tensor([-1e6, -1.0, 0.0, 1e-6, 3.0, 1e6], dtype=dtype)
    variances = torch.tensor([0.0, 1e-45, 1e-38, 1e-12, 1.0, 1e12], dtype=dtype)
    m_a, m_b, v_a, v_b = torch.meshgrid(values, values, variances, variances, indexing="ij")
    parts = [t.clone().requires_grad_() for t in (m_a, v_a, m_b, v_b)]
    y = fd.maximum(Moments(*parts[:2]), Moments(*parts[2:]))
    assert (y.var >= 0).all()
    for out in (y.mean, y.var):
        assert torch.isfinite(out).all()
        for g in torch.autograd.grad(out.sum(), parts, retain_graph=True, allow_unused=True):
            assert g is None or torch.isfinite(g).all()
