"""The table that the laws are tested on: every closed form, with a brute-force and a sampled twin."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout import Moments
from fastdropout import functional as fd
from fastdropout.functional import losses, quadrature

DRAWS = 1_000_000


@dataclass(frozen=True)
class Transfer:
    """A function of one Gaussian: `closed` propagates moments, `plain` is the function itself."""

    name: str
    closed: Callable[[Moments], Moments]
    plain: Callable[[Tensor], Tensor]
    mean_error: float
    var_error: float
    exact_at_zero: bool = True
    step: float = 0.02  # of the quadrature; a kink needs a finer one
    to_four: tuple[float, float] | None = (
        None  # the errors up to a variance of 4, where they are much smaller
    )
    slope_error: float = 1e-7  # of V[f(a)] / V[a] for a small variance
    limit: float = float("inf")  # of |mean| and variance: beyond, the function itself overflows
    jumps: bool = False

    def __str__(self) -> str:
        return self.name


TRANSFERS = [
    Transfer("identity", fd.identity, lambda a: a, 1e-12, 1e-10),
    Transfer("relu", fd.relu, torch.relu, 1e-5, 1e-4, step=0.002),
    Transfer("tanh fast", lambda x: fd.tanh(x, "fast"), torch.tanh, 1.2e-3, 1.05e-2),
    Transfer("tanh accurate", lambda x: fd.tanh(x, "accurate"), torch.tanh, 1e-4, 1e-4, slope_error=1e-3),
    Transfer("tanh paper", lambda x: fd.tanh(x, "paper"), torch.tanh, 3.6e-2, 0.11, exact_at_zero=False),
    Transfer("sigmoid fast", lambda x: fd.sigmoid(x, "fast"), torch.sigmoid, 6e-4, 2.7e-3),
    Transfer(
        "sigmoid accurate",
        lambda x: fd.sigmoid(x, "accurate"),
        torch.sigmoid,
        5e-5,
        2.5e-5,
        slope_error=1e-3,
    ),
    Transfer(
        "sigmoid paper", lambda x: fd.sigmoid(x, "paper"), torch.sigmoid, 1.8e-2, 2.8e-2, exact_at_zero=False
    ),
]

TARGETS = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64)


@dataclass(frozen=True)
class Loss:
    """A loss of one random variable: `closed` of moments, `brute` by quadrature, `sampled` from draws."""

    name: str
    closed: Callable[[Moments, Tensor], Tensor]
    brute: Callable[[Moments, Tensor], Tensor]
    sampled: Callable[[Tensor, Tensor], Tensor]
    certain: Callable[[Tensor, Tensor], Tensor] | None
    error: float

    def __str__(self) -> str:
        return self.name


def _of_mean_probability(p: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy(p, target.expand_as(p), reduction="none")


def _bce(a: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(a, target.expand_as(a), reduction="none")


def _gaussian(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mean, target.expand_as(mean), var, full=True, reduction="none")


LOSSES = [
    Loss(
        "squared error",
        losses.squared_error,
        lambda x, t: (quadrature.expectation(lambda a: a, x) - t) ** 2,
        lambda a, t: (a.mean(0) - t) ** 2,
        lambda m, t: F.mse_loss(m, t, reduction="none"),
        1e-10,
    ),
    Loss(
        "gaussian",
        losses.gaussian_nll,
        lambda x, t: _gaussian(*(lambda y: (y.mean, y.var))(quadrature.transform(lambda a: a, x)), t),
        lambda a, t: _gaussian(a.mean(0), a.var(0), t),
        None,  # the density of a certain value is infinite
        1e-8,
    ),
    Loss(
        "bernoulli of the mean",
        losses.bernoulli_nll,
        lambda x, t: _of_mean_probability(quadrature.expectation(torch.sigmoid, x), t),
        lambda a, t: _of_mean_probability(a.sigmoid().mean(0), t),
        _bce,
        0.02,
    ),
    Loss(
        "expected bernoulli",
        losses.expected_bernoulli_nll,
        lambda x, t: quadrature.expectation(lambda a: _bce(a, t[..., None]), x),
        lambda a, t: _bce(a, t).mean(0),
        _bce,
        2e-4,
    ),
]


@dataclass(frozen=True)
class Layer:
    """A map of several independent variables; exact, so `brute` must agree to rounding."""

    name: str
    closed: Callable[[Moments], Moments]
    brute: Callable[[Moments], Moments]
    sampled: Callable[[Tensor], Tensor]

    def __str__(self) -> str:
        return self.name


_g = torch.Generator().manual_seed(0)
W, B = torch.randn(3, 4, generator=_g).double(), torch.randn(3, generator=_g).double()
W_VAR, B_VAR = torch.rand(3, 4, generator=_g).double(), torch.rand(3, generator=_g).double()
THIRD = Moments(torch.randn(4, generator=_g).double(), torch.rand(4, generator=_g).double())
OTHER = Moments(torch.randn(4, generator=_g).double(), torch.rand(4, generator=_g).double())
DROP = 0.3


def _gauss(mean: Tensor, var: Tensor, n: int) -> Tensor:
    return mean + var.sqrt() * torch.randn(n, *mean.shape, dtype=mean.dtype)


def _masked_product(x: Moments, keep_var: bool) -> Moments:
    """All 2^4 masks, with the law of total variance."""
    mean, square = torch.zeros(3, dtype=x.dtype), torch.zeros(3, dtype=x.dtype)
    for bits in itertools.product([0.0, 1.0], repeat=4):
        d = torch.tensor(bits, dtype=x.dtype)
        probability = (d * (1 - DROP) + (1 - d) * DROP).prod()
        m = W @ (d * x.mean) + B
        v = (W * d) ** 2 @ x.var if keep_var else torch.zeros(3, dtype=x.dtype)
        mean, square = mean + probability * m, square + probability * (v + m**2)
    return Moments(mean, square - mean**2)


def _double_quadrature(f: Callable[[Tensor, Tensor], Tensor], a: Moments, b: Moments) -> Moments:
    z = torch.arange(-9, 9.01, 0.1, dtype=a.dtype)
    w = torch.exp(-0.5 * z**2)
    w = w / w.sum()
    va = (a.mean[:, None] + a.std[:, None] * z)[:, :, None]
    vb = (b.mean[:, None] + b.std[:, None] * z)[:, None, :]
    values, weight = f(va, vb), w[:, None] * w
    mean = (values * weight).sum((1, 2))
    return Moments(mean, ((values - mean[:, None, None]) ** 2 * weight).sum((1, 2)))


def _mix(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (1 - z) * a + z * b


def _mixed_brute(x: Moments) -> Moments:
    """Quadrature over z, a and b together; exact for a polynomial."""
    nodes = torch.arange(-9, 9.01, 0.25, dtype=x.dtype)
    w = torch.exp(-0.5 * nodes**2)
    w = w / w.sum()
    z, a, b = (m.mean[:, None] + m.std[:, None] * nodes for m in (x, OTHER, THIRD))
    values = _mix(z[:, :, None, None], a[:, None, :, None], b[:, None, None, :])
    weight = w[:, None, None] * w[:, None] * w
    mean = (values * weight).sum((1, 2, 3))
    return Moments(mean, ((values - mean[:, None, None, None]) ** 2 * weight).sum((1, 2, 3)))


def _noisy_brute(x: Moments) -> Moments:
    """Product by product, by quadrature over weight and unit; sums of independent terms."""
    mean, var = B.clone(), B_VAR.clone()
    for i in range(3):
        y = _double_quadrature(torch.mul, x, Moments(W[i], W_VAR[i]))
        mean[i] += y.mean.sum()
        var[i] += y.var.sum()
    return Moments(mean, var)


LAYERS = [
    Layer(
        "dropout, linear",
        lambda x: fd.linear(fd.dropout(x, DROP), W, B),
        lambda x: _masked_product(x, keep_var=True),
        lambda a: F.linear(a * (torch.rand_like(a) >= DROP), W, B),
    ),
    Layer(
        "mask, linear",  # the sampler itself, against the closed form
        lambda x: fd.linear(fd.dropout(x, DROP), W, B),
        lambda x: _masked_product(x, keep_var=True),
        lambda a: F.linear(fd.sampled_dropout(a, DROP), W, B),
    ),
    Layer(
        "dropout of the mean, linear",
        lambda x: fd.linear(fd.dropout_of_mean(x, DROP), W, B),
        lambda x: _masked_product(x, keep_var=False),
        # The draws stand around the mean: put all of them onto it.
        lambda a: F.linear(a.mean(0).expand_as(a) * (torch.rand_like(a) >= DROP), W, B),
    ),
    Layer(
        "noisy linear",
        lambda x: fd.noisy_linear(x, Moments(W, W_VAR), Moments(B, B_VAR)),
        _noisy_brute,
        lambda a: (a[:, None, :] * _gauss(W, W_VAR, len(a))).sum(-1) + _gauss(B, B_VAR, len(a)),
    ),
    Layer(
        "add",
        lambda x: fd.add_independent(x, OTHER),
        lambda x: _double_quadrature(torch.add, x, OTHER),
        lambda a: a + _gauss(OTHER.mean, OTHER.var, len(a)),
    ),
    Layer(
        "multiply",
        lambda x: fd.multiply_independent(x, OTHER),
        lambda x: _double_quadrature(torch.mul, x, OTHER),
        lambda a: a * _gauss(OTHER.mean, OTHER.var, len(a)),
    ),
    Layer(
        "mix",
        lambda x: fd.mix_independent(x, OTHER, THIRD),
        _mixed_brute,
        lambda a: _mix(a, _gauss(OTHER.mean, OTHER.var, len(a)), _gauss(THIRD.mean, THIRD.var, len(a))),
    ),
]
