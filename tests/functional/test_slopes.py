"""Moments with the slope of the mean: the values of the rules, and the slope that autograd finds of them."""

import pytest
import torch
from torch.nn import functional as F

from fastdropout import Moments, functional
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


# Name, largest variance, error of mean, variance over V[a], slope.
CASES = [
    ("relu", 100.0, 1e-12, 1e-12, 1e-12),
    ("tanh", 100.0, 1e-12, 1e-12, 1e-12),
    ("sigmoid", 100.0, 1e-12, 1e-12, 1e-12),
    ("gelu", 100.0, 1e-12, 9e-3, 1e-12),
    ("gelu", 0.1, 1e-12, 3e-5, 1e-12),
    ("silu", 1.0, 1e-5, 1e-4, 2e-5),
    ("mish", 1.0, 1e-5, 1e-4, 5e-5),
    ("softplus", 1.0, 1e-5, 1e-4, 2e-5),
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
