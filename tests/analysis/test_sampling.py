"""The sampled regulariser R_draw: what it is, and when its mean is zero."""

import math

import pytest
import torch

import fastdropout as fd
from fastdropout.analysis import decompose, sampled_moments

DRAWS = 20_000
X = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
W = torch.tensor([0.8, 0.3, -1.1], dtype=torch.float64)
DROP = 0.4
SPREAD = 0.6 * 0.4 * X**2
MEAN, VAR = float(0.6 * X @ W), float(SPREAD @ W**2)


def sampled_unit():
    unit = fd.nn.Linear(3, 1, bias=False, drop=DROP, method="gaussian", dtype=torch.float64)
    unit.weight.data[0] = W
    return unit


def draws_of_the_regulariser(loss):
    """dR_draw/dw of many draws, (draws, weights)."""
    torch.manual_seed(0)
    x = X.expand(DRAWS, 3)
    part = decompose(sampled_unit(), lambda u: loss(u(x).mean).sum()).weights["weight"]
    return 2 * part.by_example(DRAWS)[:, 0] * W


def deviations(draws, expected):
    """How many standard errors the mean is away from what is expected, the largest of all weights."""
    error = draws.std(0) / math.sqrt(len(draws))
    return float(((draws.mean(0) - expected) / error).abs().max())


def test_the_sampled_term_against_differences_and_against_the_printed_equation():
    """a = E[a] + s sqrt(V[a]); the printed equation takes the root for each weight and loses w_i."""
    unit = sampled_unit()
    torch.manual_seed(3)
    s = torch.randn(1, 1, dtype=torch.float64)
    torch.manual_seed(3)
    part = decompose(unit, lambda u: u(X[None]).mean.exp().sum()).weights["weight"]
    a = MEAN + float(s) * math.sqrt(VAR)
    ours = math.exp(a) * float(s) * W * SPREAD / math.sqrt(VAR)
    torch.testing.assert_close(part.regulariser[0], ours)
    for i in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = 1e-6
        up, down = (MEAN + float(s) * float((SPREAD @ (W + d) ** 2).sqrt()) for d in (step, -step))
        assert float(ours[i]) == pytest.approx((math.exp(up) - math.exp(down)) / 2e-6, rel=1e-6)
    printed = math.exp(a) * SPREAD.sqrt() * float(s)
    assert (printed / ours - 1).abs().min() > 0.2  # wrong for every weight, not by rounding
    assert printed[2] * ours[2] < 0  # and of the wrong sign for a negative one


def test_the_printed_equation_holds_for_one_positive_weight():
    w, spread, s = 0.7, 0.24, 1.3
    assert s * w * spread / math.sqrt(spread * w**2) == pytest.approx(s * math.sqrt(spread))


def test_the_mean_is_zero_where_the_error_signal_does_not_depend_on_the_draw():
    draws = draws_of_the_regulariser(lambda a: 3 * a)
    assert deviations(draws, 0.0) < 4
    assert draws.std(0).min() > 0.1  # each draw is not zero


def test_the_mean_is_not_zero_for_a_curved_loss():
    """Stein: E[s g(a)] = sqrt(V) E[g'(a)], so the mean is E[J''] w_i dV/d(w_i^2)."""
    draws = draws_of_the_regulariser(lambda a: (a - 0.3) ** 2)
    assert deviations(draws, 2 * W * SPREAD) < 4
    assert deviations(draws, 0.0) > 10


def test_the_mean_is_the_regulariser_of_the_expected_loss():
    """Cross entropy: what the draws do on average is what `expected_bernoulli_nll` does without drawing."""
    z = torch.ones(1, dtype=torch.float64)
    draws = draws_of_the_regulariser(lambda a: torch.nn.functional.softplus(-a))
    unit = sampled_unit()
    unit.method = "moments"
    part = decompose(unit, lambda u: fd.losses.expected_bernoulli_nll(u(X), z).sum()).weights["weight"]
    assert deviations(draws, part.regulariser[0]) < 4
    assert deviations(draws, 0.0) > 10
    # The loss of the mean has another one, though of the same sign here.
    mean = decompose(unit, lambda u: fd.losses.bernoulli_nll(u(X), z).sum()).weights["weight"]
    assert deviations(draws, mean.regulariser[0]) > 10


def test_running_moments_equal_those_of_all_draws():
    torch.manual_seed(0)
    draws = torch.randn(1003, 4) * 1e-2 + 100
    position = 0

    def draw(n):
        nonlocal position
        position += n
        return draws[position - n : position]

    found = sampled_moments(draw, 1003, batch=100)
    torch.testing.assert_close(found.mean, draws.double().mean(0))
    torch.testing.assert_close(found.var, draws.double().var(0), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="at least 2 draws, got 1"):
        sampled_moments(lambda n: torch.zeros(n), 1)
