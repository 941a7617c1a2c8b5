"""Losses with torch's arguments: torch's own of certain values, and its average over draws."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from fastdropout import Moments
from fastdropout.functional import losses

DRAWS = 200_000
G = torch.Generator().manual_seed(0)
X = Moments(torch.randn(4, 3, generator=G).double() * 2, torch.rand(4, 3, generator=G).double() * 2)
T = torch.randn(4, 3, generator=G).double()
P, W = torch.rand(4, 3, generator=G).double(), torch.rand(4, 3, generator=G).double()
NOISE = torch.rand(4, 3, generator=G).double() + 0.1

# (ours, torch's), called with (y, target, reduction); expected losses, exact.
EXACT = {
    "mse": (losses.mse_loss, lambda y, t, r: F.mse_loss(y, t, reduction=r)),
    "mse, weights": (
        lambda y, t, r: losses.mse_loss(y, t, r, W),
        lambda y, t, r: F.mse_loss(y, t, reduction=r, weight=W.expand_as(y)),
    ),
    "l1": (losses.l1_loss, lambda y, t, r: F.l1_loss(y, t, reduction=r)),
    "huber": (
        lambda y, t, r: losses.huber_loss(y, t, r, 0.7),
        lambda y, t, r: F.huber_loss(y, t, reduction=r, delta=0.7),
    ),
    "smooth l1": (
        lambda y, t, r: losses.smooth_l1_loss(y, t, r, 0.4),
        lambda y, t, r: F.smooth_l1_loss(y, t, reduction=r, beta=0.4),
    ),
    "smooth l1, beta 0": (
        lambda y, t, r: losses.smooth_l1_loss(y, t, r, 0.0),
        lambda y, t, r: F.smooth_l1_loss(y, t, reduction=r, beta=0.0),
    ),
    "gaussian": (
        lambda y, t, r: losses.gaussian_nll_loss(y, t, NOISE, True, reduction=r),
        lambda y, t, r: F.gaussian_nll_loss(y, t, NOISE.expand_as(y), True, reduction=r),
    ),
    "gaussian, one variance": (
        lambda y, t, r: losses.gaussian_nll_loss(y, t, 0.3, reduction=r),
        lambda y, t, r: F.gaussian_nll_loss(y, t, 0.3, reduction=r),
    ),
    "bernoulli": (
        lambda y, t, r: losses.binary_cross_entropy_with_logits(y, P, reduction=r, expected=True),
        lambda y, t, r: F.binary_cross_entropy_with_logits(y, P.expand_as(y), reduction=r),
    ),
    "bernoulli, weights": (
        lambda y, t, r: losses.binary_cross_entropy_with_logits(y, P, W, r, 1 + W, expected=True),
        lambda y, t, r: F.binary_cross_entropy_with_logits(
            y, P.expand_as(y), W.expand_as(y), reduction=r, pos_weight=1 + W
        ),
    ),
}
laws = pytest.mark.parametrize("name", EXACT)


@laws
def test_expected_loss_agrees_with_sampling(name):
    ours, plain = EXACT[name]
    torch.manual_seed(0)
    y = X.sample((DRAWS,))
    drawn = plain(y, T.expand_as(y), "none")
    noise = drawn.std(0) / DRAWS**0.5
    assert ((ours(X, T, "none") - drawn.mean(0)).abs() < 5 * noise + 2e-4).all()


@laws
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_certain_predictions_give_torchs_loss(name, reduction):
    ours, plain = EXACT[name]
    for y in (X.mean, Moments.certain(X.mean), Moments(X.mean, torch.zeros_like(X.var))):
        torch.testing.assert_close(ours(y, T, reduction), plain(X.mean, T, reduction))


@laws
def test_reductions_agree_and_gradients_are_right(name):
    ours, _ = EXACT[name]
    each = ours(X, T, "none")
    torch.testing.assert_close(ours(X, T, "sum"), each.sum())
    if "weights" not in name:
        torch.testing.assert_close(ours(X, T, "mean"), each.mean())
    mean, var = X.mean.clone().requires_grad_(), (X.var + 0.05).requires_grad_()
    assert gradcheck(lambda m, v: ours(Moments(m, v), T, "mean"), (mean, var))


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth l1", "smooth l1, beta 0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_at_and_near_zero_variance(name, dtype):
    ours, _ = EXACT[name]
    for m, v in itertools.product((-1e4, -1.0, 0.0, 1.0, 1e4), (0.0, 1e-38, 1e-12, 1.0)):
        mean, var = (torch.full((2,), t, dtype=dtype, requires_grad=True) for t in (m, v))
        value = ours(Moments(mean, var), torch.zeros(2, dtype=dtype), "sum")
        assert torch.isfinite(value)
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(value, (mean, var)))


def test_a_random_target_adds_its_variance():
    other = Moments(T, torch.ones_like(T))
    gap = Moments(X.mean - T, X.var + 1)
    for loss in (losses.mse_loss, losses.l1_loss, losses.huber_loss):
        torch.testing.assert_close(loss(X, other), loss(gap, torch.zeros_like(T)))


def test_the_variance_of_the_noise_learns_from_that_of_the_prediction():
    noise = NOISE.clone().requires_grad_()
    (slope,) = torch.autograd.grad(losses.gaussian_nll_loss(X, T, noise, reduction="sum"), noise)
    error = (X.mean - T) ** 2 + X.var
    torch.testing.assert_close(slope, 0.5 / NOISE - 0.5 * error / NOISE**2)


def test_nll_loss_is_linear():
    target = torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(losses.nll_loss(X, target), F.nll_loss(X.mean, target))


def test_loss_of_the_mean_probability_is_below_the_expected_one():
    of_mean = losses.binary_cross_entropy_with_logits(X, P, W, "none", 1 + W)
    expected = losses.binary_cross_entropy_with_logits(X, P, W, "none", 1 + W, expected=True)
    assert (expected > of_mean).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: losses.mse_loss(X, T, "max"), "one of none, mean, sum, got 'max'"),
        (lambda: losses.l1_loss(X, T[0]), r"shape of the moments, \(4, 3\), got \(3,\)"),
        (lambda: losses.huber_loss(X, T, delta=0.0), "delta must be positive, got 0.0"),
    ],
)
def test_bad_input_says_what_allowed_and_got(call, says):
    with pytest.raises(ValueError, match=says):
        call()
