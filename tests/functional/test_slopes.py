"""Moments with the slope of the mean: the values of the rules, and the slope that autograd finds of them."""

import pytest
import torch
from torch.nn import functional as F

from fastdropout import Moments, functional, integrate
from fastdropout.functional import slopes


def grid(dtype, largest):
    m = torch.linspace(-8, 8, 161, dtype=dtype)[:, None]
    v = torch.cat([torch.zeros(1), torch.logspace(-8, 0, 39)]).to(dtype) * largest
    return m.expand(161, 40).contiguous(), v.expand(161, 40).contiguous()


def by_autograd(name, m, v):
    m = m.clone().requires_grad_()
    y = getattr(functional, name)(Moments(m, v))
    (slope,) = torch.autograd.grad(y.mean.sum(), m)
    return y.mean.detach(), y.var.detach(), slope


# Name, largest variance, error of mean, variance over V[a], slope. The slope of a smooth function is that of
# the integral, while autograd has that of the sum: they part where half a standard deviation is a long way.
CASES = [
    ("relu", 100.0, 1e-12, 1e-12, 1e-12),
    ("tanh", 100.0, 1e-12, 1e-12, 1e-12),
    ("sigmoid", 100.0, 1e-12, 1e-12, 1e-12),
    ("gelu", 100.0, 1e-12, 1e-12, 1e-12),
    ("silu", 1.0, 1e-12, 1e-12, 2e-5),
    ("mish", 1.0, 1e-12, 1e-12, 2e-5),
    ("softplus", 1.0, 1e-12, 1e-12, 2e-5),
]


@pytest.mark.parametrize(("name", "largest", "mean", "var", "slope"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_are_those_of_the_rules(name, largest, mean, var, slope, dtype):
    m, v = grid(dtype, largest)
    own = getattr(slopes, name, None)
    got = own(m, v) if own is not None else slopes.smooth(getattr(F, name), m, v)
    rounding = 0 if dtype == torch.float64 else 1e-4
    away = m != 0 if name == "relu" else torch.ones_like(m, dtype=torch.bool)  # no slope at 0 without noise
    scales = (torch.ones_like(v), v.clamp(min=1e-6 if dtype == torch.float64 else 1e-3), torch.ones_like(v))
    for a, b, scale, error in zip(got, by_autograd(name, m, v), scales, (mean, var, slope), strict=True):
        assert ((a - b).abs() / scale)[away].max() <= error + rounding
    assert (got[1] >= 0).all()
    assert not got[1][:, 0].any()


def test_gelu_by_tanh():
    m, v = grid(torch.float64, 4.0)
    got, expected = slopes.gelu(m, v, approximate="tanh"), functional.gelu(Moments(m, v), "tanh")
    torch.testing.assert_close(got[0], expected.mean)
    torch.testing.assert_close(got[1], expected.var)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus"])
def test_prediction_has_the_values_of_the_rule_far_out(name):
    """Means in [-10, 10], variances in [0, 100]: without gradients as with them."""
    m = torch.linspace(-10, 10, 101, dtype=torch.float64)[:, None].expand(101, 51).contiguous()
    v = torch.linspace(0, 100, 51, dtype=torch.float64).expand(101, 51).contiguous()
    f = getattr(F, name)
    with integrate():
        x = Moments(m.clone().requires_grad_(), v)
        ordinary = f(x)
        with torch.no_grad():
            predicted = f(Moments(m, v))
    with integrate(train_variance=False):
        cut = f(Moments(m.clone().requires_grad_(), v))
    expected = getattr(functional, name)(Moments(m, v))
    for y in (ordinary, predicted, cut):
        torch.testing.assert_close(y.mean, expected.mean, rtol=0, atol=1e-6, check_dtype=False)
        torch.testing.assert_close(y.var, expected.var, rtol=0, atol=1e-6)
