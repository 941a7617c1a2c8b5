"""One test a law, over the whole table."""

import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fastdropout import Moments
from fastdropout import functional as fd
from fastdropout.functional import losses, quadrature

sys.path.insert(0, str(Path(__file__).parent))
from activation_laws import ACTIVATIONS
from laws import DRAWS, LAYERS, LOSSES, TARGETS, TRANSFERS

TRANSFERS = TRANSFERS + ACTIVATIONS

transfers = pytest.mark.parametrize("law", TRANSFERS, ids=str)
every_loss = pytest.mark.parametrize("law", LOSSES, ids=str)
layers = pytest.mark.parametrize("law", LAYERS, ids=str)


def grid(means, variances, dtype=torch.float64):
    m, v = torch.meshgrid(means.to(dtype), variances.to(dtype), indexing="ij")
    return Moments(m, v)


FINE = grid(torch.linspace(-10, 10, 161), torch.cat([torch.zeros(1), torch.logspace(-4, 2, 61)]))
COARSE = grid(torch.linspace(-10, 10, 81), torch.cat([torch.zeros(1), torch.logspace(-4, 2, 25)]))
FEW = grid(torch.tensor([-3.0, -0.7, 0.0, 1.5]), torch.tensor([0.05, 1.0, 9.0]))
FOUR = Moments(torch.tensor([0.5, -1.0, 2.0, 0.1]).double(), torch.tensor([0.2, 0.0, 1.0, 3.0]).double())


def within(x, law):
    """The points that the function does not overflow at, as a vector."""
    kept = (x.mean.abs() <= law.limit) & (x.var <= law.limit)
    return Moments(x.mean[kept], x.var[kept])


@transfers
def test_agrees_with_quadrature(law):
    x = within(FINE if law.step >= 0.02 else COARSE, law)
    exact = quadrature.transform(law.plain, x, step=law.step)
    got = law.closed(x)
    off_mean, off_var = (got.mean - exact.mean).abs(), (got.var - exact.var).abs()
    assert off_mean.max() < law.mean_error
    assert off_var.max() < law.var_error
    if law.to_four is not None:
        assert off_mean[x.var <= 4].max() < law.to_four[0]
        assert off_var[x.var <= 4].max() < law.to_four[1]


@transfers
def test_agrees_with_sampling(law):
    torch.manual_seed(0)
    x = within(FEW, law)
    y = law.plain(x.sample((DRAWS,)))
    got, std = law.closed(x), y.std(0)
    fourth = ((y - y.mean(0)) ** 4).mean(0)
    var_error = ((fourth - std**4).clamp(min=0) / DRAWS).sqrt()
    assert ((got.mean - y.mean(0)).abs() < law.mean_error + 5 * std / DRAWS**0.5).all()
    assert ((got.var - std**2).abs() < law.var_error + 5 * var_error).all()


@transfers
def test_a_certain_input_gives_the_plain_function(law):
    x = torch.linspace(-12, 12, 97, dtype=torch.float64)
    for moments in (Moments.certain(x), Moments(x, torch.zeros_like(x))):
        got = law.closed(moments)
        torch.testing.assert_close(got.mean, law.plain(x), rtol=5e-16, atol=1e-15)
        assert (got.var == 0).all() == law.exact_at_zero


@transfers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_is_never_negative_nor_nan(law, dtype):
    means = torch.cat([torch.zeros(1), torch.logspace(-6, 6, 121)])
    variances = torch.cat([torch.zeros(1), torch.tensor([1e-45, 1e-38]), torch.logspace(-30, 12, 211)])
    y = law.closed(within(grid(torch.cat([-means, means]), variances, dtype), law))
    assert torch.isfinite(y.mean).all()
    assert torch.isfinite(y.var).all()
    assert (y.var >= 0).all()


@transfers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_and_near_zero_variance(law, dtype):
    x = grid(
        torch.tensor([-1e6, -40.0, -1.0, 0.0, 1e-6, 2.0, 1e6]), torch.tensor([0.0, 1e-38, 1e-20, 1e-8]), dtype
    )
    x = within(x, law)
    mean, var = x.mean.requires_grad_(), x.var.requires_grad_()
    y = law.closed(Moments(mean, var))
    for out in (y.mean, y.var):
        for gradient in torch.autograd.grad(out.sum(), (mean, var), retain_graph=True, allow_unused=True):
            assert gradient is None or torch.isfinite(gradient).all()


@transfers
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_are_those_of_the_values(law, check):
    mean = torch.tensor([-7.0, -1.3, 0.2, 0.9, 4.0], dtype=torch.float64)
    var = torch.tensor([0.3, 2.0, 0.011, 11.0, 40.0], dtype=torch.float64)
    x = within(Moments(mean, var), law)
    mean, var = x.mean.requires_grad_(), x.var.requires_grad_()

    def values(m, v):
        y = law.closed(Moments(m, v))
        return y.mean * 1.0, y.var * 1.0

    assert check(values, (mean, var))


@pytest.mark.parametrize("law", [law for law in TRANSFERS if law.exact_at_zero], ids=str)
def test_small_variance_is_the_delta_method(law):
    x = torch.tensor([-2.0, -0.5, 0.4, 1.7], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(law.plain(x).sum(), x)
    v = torch.full_like(x, 1e-9)
    torch.testing.assert_close(law.closed(Moments(x, v)).var / v, slope**2, rtol=0, atol=law.slope_error)


@every_loss
def test_loss_agrees_with_quadrature(law):
    x = grid(torch.linspace(-6, 6, 49), torch.logspace(-3, 1.5, 31))
    for target in TARGETS:
        t = target.expand(x.shape)
        assert (law.closed(x, t) - law.brute(x, t)).abs().max() < law.error * max(
            1.0, law.brute(x, t).max().item()
        )


@every_loss
def test_loss_agrees_with_sampling(law):
    torch.manual_seed(1)
    draws = FEW.sample((DRAWS,))
    for target in TARGETS:
        t = target.expand(FEW.shape)
        torch.testing.assert_close(law.closed(FEW, t), law.sampled(draws, t), rtol=0.02, atol=0.01)


@every_loss
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_loss_gradients(law, check):
    mean = torch.tensor([-3.0, 0.2, 4.0], dtype=torch.float64, requires_grad=True)
    var = torch.tensor([0.3, 2.0, 0.01], dtype=torch.float64, requires_grad=True)
    assert check(lambda m, v: law.closed(Moments(m, v), TARGETS) + 0 * v, (mean, var))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_is_stable_far_out_and_at_zero_variance(law, dtype):
    x = torch.tensor([-1e4, -50.0, -1.0, 0.0, 1.0, 50.0, 1e4], dtype=dtype)
    for target in TARGETS:
        t = target.to(dtype).expand(x.shape)
        for v in (0.0, 1e-12, 1.0, 100.0):
            mean, var = x.clone().requires_grad_(), torch.full_like(x, v).requires_grad_()
            value = law.closed(Moments(mean, var), t)
            gradients = torch.autograd.grad(value.sum(), (mean, var), allow_unused=True)
            assert torch.isfinite(value).all()
            assert all(g is None or torch.isfinite(g).all() for g in gradients)
        if law.certain is not None:
            for certain in (Moments.certain(x), Moments(x, torch.zeros_like(x))):
                torch.testing.assert_close(law.closed(certain, t), law.certain(x, t))


def test_expected_loss_is_never_below_the_loss_of_the_mean():
    x = grid(torch.linspace(-8, 8, 65), torch.logspace(-3, 2, 41))
    for target in TARGETS:
        t = target.expand(x.shape)
        gap = losses.expected_bernoulli_nll(x, t) - losses.bernoulli_nll(x, t)
        assert gap.min() > -1e-3  # the error of E[p]


@layers
def test_layer_agrees_with_brute_force(law):
    got, exact = law.closed(FOUR), law.brute(FOUR)
    torch.testing.assert_close(got.mean, exact.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(got.var, exact.var, rtol=1e-8, atol=1e-8)


@layers
def test_layer_agrees_with_sampling(law):
    torch.manual_seed(2)
    y, got = law.sampled(FOUR.sample((DRAWS,))), law.closed(FOUR)
    assert ((got.mean - y.mean(0)).abs() < 5 * (y.std(0) / DRAWS**0.5 + 1e-3)).all()
    torch.testing.assert_close(got.var, y.var(0), rtol=0.02, atol=1e-3)


@layers
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_layer_gradients(law, check):
    mean, var = FOUR.mean.clone().requires_grad_(), (FOUR.var + 0.1).requires_grad_()

    def values(m, v):
        y = law.closed(Moments(m, v))
        return y.mean + 0 * v.sum(), y.var + 0 * v.sum()

    assert check(values, (mean, var))


@layers
def test_layer_at_zero_variance_is_certain_or_finite(law):
    for x in (Moments.certain(FOUR.mean), Moments(FOUR.mean, torch.zeros(4).double())):
        got, exact = law.closed(x), law.brute(Moments(x.mean, x.var))
        torch.testing.assert_close(got.var, exact.var, rtol=1e-8, atol=1e-8)


def test_glu_is_a_product_of_independent_halves():
    torch.manual_seed(4)
    x = Moments(torch.randn(3, 4).double(), torch.rand(3, 4).double())
    y = torch.nn.functional.glu(x.sample((DRAWS,)), -1)
    got = fd.glu(x)
    assert (got.mean - y.mean(0)).abs().max() < 5e-3
    torch.testing.assert_close(got.var, y.var(0), rtol=0.02, atol=2e-3)
    torch.testing.assert_close(fd.glu(x.transpose(0, 1), 0).var, got.var.T)
    with pytest.raises(ValueError, match="even size along dim 0, got 3"):
        fd.glu(x, 0)


def test_prelu_has_a_slope_for_each_channel():
    x = Moments(torch.randn(2, 3, 4).double(), torch.rand(2, 3, 4).double())
    weight = torch.tensor([0.1, 0.5, -0.2]).double().requires_grad_()
    got = fd.prelu(x, weight)
    for i, slope in enumerate(weight.tolist()):
        alone = fd.leaky_relu(x[:, i], slope)
        torch.testing.assert_close(got.mean[:, i], alone.mean)
        torch.testing.assert_close(got.var[:, i], alone.var)
    assert gradcheck(lambda w: (fd.prelu(x, w).mean, fd.prelu(x, w).var), (weight,))
    with pytest.raises(ValueError, match="weight must have 1 or 3 elements, got 2"):
        fd.prelu(x, weight[:2])


def test_clamp_takes_tensors_as_bounds():
    x = Moments(torch.randn(5).double(), torch.rand(5).double())
    low, high = -torch.rand(5).double(), torch.rand(5).double()
    got = fd.clamp(x, low, high)
    for i in range(5):
        alone = fd.clamp(x[i], low[i].item(), high[i].item())
        torch.testing.assert_close(got[i].var, alone.var)
    with pytest.raises(ValueError, match="clamp needs min or max"):
        fd.clamp(x)


def test_a_rule_keeps_nothing_but_its_input_for_the_backward_pass():
    kept = []
    mean, var = torch.randn(1000, requires_grad=True), torch.rand(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        for rule in (fd.gelu, fd.silu, fd.elu):
            y = rule(Moments(mean, var))
            assert sum(t.numel() for t in kept) <= 4000, rule
            torch.autograd.grad((y.mean + y.var).sum(), (mean, var))
            kept.clear()


def test_slopes_of_many_outputs_at_once():
    mean, var = torch.randn(4).double().requires_grad_(), torch.rand(4).double().requires_grad_()
    y = fd.gelu(Moments(mean, var))
    batched = torch.autograd.grad(y.mean, mean, torch.eye(4).double(), is_grads_batched=True)[0]
    torch.testing.assert_close(
        batched, torch.autograd.functional.jacobian(lambda m: fd.gelu(Moments(m, var.detach())).mean, mean)
    )


def test_quadrature_is_exact_where_the_answer_is_known():
    x = grid(torch.linspace(-3, 3, 13), torch.tensor([0.0, 0.1, 4.0, 100.0]))
    torch.testing.assert_close(
        quadrature.expectation(lambda a: a**4, x), x.mean**4 + 6 * x.mean**2 * x.var + 3 * x.var**2
    )
    y = quadrature.transform(torch.sin, x)
    torch.testing.assert_close(y.mean, torch.sin(x.mean) * torch.exp(-x.var / 2), atol=1e-10, rtol=0)
    square = (1 - torch.cos(2 * x.mean) * torch.exp(-2 * x.var)) / 2
    torch.testing.assert_close(y.var, square - y.mean**2, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: fd.dropout(x, 1.0), r"drop must lie in \[0, 1\), got 1.0"),
        (lambda x: fd.dropout(x, -0.1), r"drop must lie in \[0, 1\), got -0.1"),
        (lambda x: fd.dropout(x, float("nan")), r"drop must lie in \[0, 1\), got nan"),
        (lambda x: fd.tanh(x, "exact"), "rule must be one of fast, accurate, paper, got 'exact'"),
        (lambda x: losses.bernoulli_nll(x, torch.zeros(2)), r"shape of the moments, \(4,\), got \(2,\)"),
        (
            lambda x: losses.squared_error(x, torch.zeros(4)),
            "dtype of the moments, torch.float64, got torch.float32",
        ),
        (lambda x: losses.gaussian_nll(x, x.mean, eps=0.0), "eps must be positive, got 0.0"),
        (lambda x: quadrature.expectation(torch.tanh, x, step=0), "quadrature needs 0 < step < reach"),
    ],
)
def test_bad_input_says_what_allowed_and_got(call, says):
    with pytest.raises(ValueError, match=says):
        call(FOUR)
