"""The laws of a cell's step: plain where certain, the moments of sampled units, derivatives of its values."""

import pytest
import torch

import fastdropout as fd
from fastdropout import Moments
from fastdropout.functional import RULES
from fastdropout.recurrent import reference
from fastdropout.recurrent.cells import CELLS, State

UNITS, DRAWS = 6, 200_000
cells = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def plain_step(name, pre, carried):
    """Written out from the documentation of torch.nn, with the slots of ours."""
    if name in ("tanh", "relu"):
        return State(getattr(torch, name)(pre))
    a, b, c, d = pre.chunk(4, -1)
    if name == "lstm":
        new = b.sigmoid() * carried + a.sigmoid() * c.tanh()
        return State(d.sigmoid() * new.tanh(), new)
    n, z = (a + b.sigmoid() * d).tanh(), c.sigmoid()
    return State((1 - z) * n + z * carried)


def drawn_inputs(cell, scale=1.0):
    torch.manual_seed(0)
    shape = (3, cell.slots * UNITS)
    pre = Moments(scale * torch.randn(shape).double(), scale * torch.rand(shape).double())
    carried = Moments(torch.randn(3, UNITS).double(), torch.rand(3, UNITS).double() / 2)
    return pre, None if cell.carries == "nothing" else carried


def values(state):
    return [m for m in state if m is not None]


@cells
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "paper"])
def test_a_certain_input_gives_the_plain_step(cell, rule):
    pre, carried = drawn_inputs(cell, scale=3.0)
    expected = values(plain_step(cell.name, pre.mean, None if carried is None else carried.mean))
    for make in (Moments.certain, lambda x: Moments(x, torch.zeros_like(x))):
        inside = None if carried is None else make(carried.mean)
        got = cell.step(make(pre.mean), inside, rule, torch.zeros(3, UNITS).double())
        for ours, plain in zip(values(got), expected, strict=True):
            torch.testing.assert_close(ours.mean, plain, rtol=1e-12, atol=1e-12)
            assert ours.var.abs().max() < 1e-15


@cells
def test_moments_are_those_of_sampled_units(cell):
    """Of independent Gaussians. The cell of an LSTM is no Gaussian, so its tanh is the least exact."""
    pre, carried = drawn_inputs(cell)
    got = values(cell.step(pre, carried, "accurate"))
    sample = plain_step(
        cell.name, pre.sample((DRAWS,)), None if carried is None else carried.sample((DRAWS,))
    )
    for ours, drawn in zip(got, values(sample), strict=True):
        noise = drawn.std(0) / DRAWS**0.5
        assert ((ours.mean - drawn.mean(0)).abs() < 5 * noise + 0.03 * drawn.std(0) + 1e-4).all()
        torch.testing.assert_close(ours.var, drawn.var(0), rtol=0.12, atol=1e-3)
        assert abs(ours.var.mean() / drawn.var(0).mean() - 1) < 0.03


@cells
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_are_those_of_the_values(cell, rule, check):
    pre, carried = drawn_inputs(cell)
    leaves = [pre.mean, pre.var + 0.1, *([] if carried is None else [carried.mean, carried.var + 0.1])]
    leaves += [] if cell.returning is None else [0.1 + torch.rand(3, UNITS).double()]
    leaves = [leaf[:1].clone().requires_grad_() for leaf in leaves]

    def call(*leaves):
        inside = Moments(*leaves[2:4]) if len(leaves) > 2 else None
        made = values(cell.step(Moments(*leaves[:2]), inside, rule, *leaves[4:]))
        return tuple(t for m in made for t in (m.mean, m.var))

    assert check(call, leaves, fast_mode=True)


@cells
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_is_never_negative(cell, dtype):
    torch.manual_seed(1)
    m = 10 ** (8 * torch.rand(2000, cell.slots) - 6) * torch.randn(2000, cell.slots).sign()
    v = 10 ** (10 * torch.rand(2000, cell.slots) - 8)
    inside = Moments(torch.randn(2000, 1).to(dtype), torch.rand(2000, 1).to(dtype))
    for rule in RULES:
        for recurring in (None, 10 ** (10 * torch.rand(2000, 1).to(dtype) - 8)):
            made = cell.step(Moments(m.to(dtype), v.to(dtype)), inside, rule, recurring)
            assert all((x.var >= 0).all() for x in values(made))
            assert all(x.mean.isfinite().all() for x in values(made))


@cells
def test_slots_are_joined_as_the_equations_say(cell):
    """Input and recurrent share fall on the slots that both feed; a GRU keeps its n apart."""
    given, recurrent = (Moments.certain(torch.randn(2, cell.gates * UNITS)) for _ in range(2))
    pre = cell.join(given, recurrent)
    assert pre.shape == (2, cell.slots * UNITS)
    if cell.name == "gru":
        n_x, r_z = given.mean[:, :UNITS], given.mean[:, UNITS:] + recurrent.mean[:, : 2 * UNITS]
        expected = torch.cat([n_x, r_z, recurrent.mean[:, 2 * UNITS :]], 1)
    else:
        expected = given.mean + recurrent.mean
    torch.testing.assert_close(pre.mean, expected)


def test_the_independent_sum_would_be_wrong_for_a_gru():
    """Why `mix_independent` has a formula of its own: z is in both terms of (1 - z) a + z b."""
    z, a, b = (
        Moments(torch.tensor([m]), torch.tensor([v])) for m, v in ((0.5, 0.2), (1.0, 0.1), (-1.0, 0.1))
    )
    exact = fd.functional.mix_independent(z, a, b).var
    fresh, old = fd.functional.multiply_independent(1 - z, a), fd.functional.multiply_independent(z, b)
    assert exact > 1.5 * fd.functional.add_independent(fresh, old).var


def test_the_covariance_solves_its_equation():
    """S^2 + (J - N) S - 2 N f^2 V[c] = 0, and none of it is left where nothing returns."""
    torch.manual_seed(0)
    f, c, i, g = (Moments(torch.rand(50).double() / 2, torch.rand(50).double() / 10) for _ in range(4))
    x = torch.rand(50).double() / 10
    s = fd.functional.recurring_covariance(f, c, i, g, x + 0.1, x)
    noise = i.mean**2 * g.var * x / (x + 0.1)
    received = f.var * (c.mean**2 + c.var) + fd.functional.multiply_independent(i, g).var
    zero = s**2 + (received - noise) * s - 2 * noise * f.mean**2 * c.var
    assert (s > 0).all()
    assert zero.abs().max() < 1e-12
    assert (fd.functional.recurring_covariance(f, c, i, g, x, 0 * x) == 0).all()
    assert (fd.functional.recurring_covariance(f, Moments(c.mean, 0 * c.var), i, g, x, x) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("only", [True, False], ids=["all of it returns", "gates are uncertain"])
def test_noise_that_is_nothing_but_returning_has_one_slope(dtype, only):
    """X = V[a] but for rounding: values and slopes are those of a V[a] that is never the smaller one."""
    f, i = (
        Moments(torch.tensor([m]).to(dtype), torch.tensor([0.0 if only else 0.1]).to(dtype))
        for m in (0.9, 0.5)
    )
    c, g = (Moments(torch.tensor([0.3]).to(dtype), torch.tensor([v]).to(dtype)) for v in (0.2, 0.1))

    def slopes(x, var):
        leaves = [torch.tensor([t]).to(dtype).requires_grad_() for t in (x, var)]
        s = fd.functional.recurring_covariance(f, c, i, g, leaves[1], leaves[0])
        return [s, *torch.autograd.grad(s, leaves)]

    expected = slopes(0.05, 0.05)
    assert expected[1] == -expected[2] != 0  # with X and V[a] alike, X / V[a] stays 1
    eps = torch.finfo(dtype).eps
    for off in (-8 * eps, -eps, eps, 8 * eps):
        for ours, theirs in zip(slopes(0.05 * (1 + off), 0.05), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=40 * eps, atol=0)
    assert all(slope.abs() < 10 * eps for slope in slopes(0.06, 0.05)[1:])  # a mean field above the whole


def test_the_paper_rule_draws_plain_units():
    """Under the methods that draw, no rule applies: the paper's would add a variance to a certain unit."""
    pre = Moments.certain(torch.randn(2, 4 * UNITS))
    before = State(Moments.certain(torch.zeros(2, UNITS)), Moments.certain(torch.randn(2, UNITS)))
    got = reference.step(CELLS["lstm"], pre, before, "paper", "mask")
    assert got.h.is_certain
