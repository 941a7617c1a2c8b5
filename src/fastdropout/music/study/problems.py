"""Small problems that can be trained to convergence, to see what regularisers do there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastdropout.functional import dropout, tanh
from fastdropout.functional.losses import bernoulli_nll
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.nn import RNN, Linear, Sequential, Tanh

DROP = 0.3
DECAY = 0.002
"""The coefficient of weight decay that fast dropout is compared with."""


class TinyRNN(nn.Module):
    """Three tanh units and one logit."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.rnn = RNN(1, 3, drop_input=drop, drop_hidden=drop)
        self.out = Linear(3, 1, drop=drop)

    def forward(self, x: Tensor) -> Moments:
        """Logits, (steps, batch, 1)."""
        return self.out(self.rnn(x)[0])


@dataclass(frozen=True)
class Problem:
    """Inputs, targets, and a network for a drop probability."""

    name: str
    inputs: Tensor
    targets: Tensor
    build: Callable[[float], nn.Module]

    def network(self, drop: float, seed: int, scale: float = 1.0) -> nn.Module:
        """A network with Gaussian weights."""
        generator = torch.Generator().manual_seed(seed)
        model = self.build(drop).double()
        with torch.no_grad():
            for p in model.parameters():
                spread = scale / p.shape[-1] ** 0.5 if p.ndim == 2 else 0.1
                p.normal_(0, spread, generator=generator)
        return model

    def loss(self, model: nn.Module) -> Tensor:
        """Nats an example."""
        return bernoulli_nll(model(self.inputs), self.targets).mean()


def problems() -> list[Problem]:
    """Logistic regression, separable and not, a small network and a tiny recurrent one."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def flipped(z: Tensor, share: float) -> Tensor:
        flip = torch.rand(z.shape, generator=generator, dtype=torch.float64) < share
        return torch.where(flip, 1 - z, z)

    x = normal(60, 5)
    side = (x @ normal(5, 1) > 0).double()
    square = normal(200, 2)
    cross = torch.sigmoid(3 * torch.tanh(square[:, :1]) * torch.tanh(square[:, 1:]))
    series = normal(8, 30, 1)
    before = torch.cat([torch.zeros(1, 30, 1, dtype=torch.float64), series[:-1]])

    def blurred(p: Tensor) -> Tensor:
        """Targets between 0.1 and 0.9 that no network meets: hidden units need not become steps to fit them,
        so that the plain loss has its minimum at finite weights."""
        return 0.8 * p + 0.2 * torch.rand(p.shape, generator=generator, dtype=torch.float64)

    def logistic(drop: float) -> nn.Module:
        return Linear(5, 1, drop=drop)

    def small(drop: float) -> nn.Module:
        return Sequential(Linear(2, 4, drop=drop), Tanh(), Linear(4, 1, drop=drop))

    return [
        Problem("logistic,\nseparable", x, side, logistic),
        Problem("logistic,\nnot separable", x, flipped(side, 0.15), logistic),
        Problem("4 tanh units,\nnot separable", square, blurred(cross), small),
        Problem("3 recurrent units,\nnot separable", series, blurred(torch.sigmoid(1.5 * before)), TinyRNN),
    ]


def decay_of(model: nn.Module) -> Tensor:
    """DECAY times the squared weights, without biases."""
    return DECAY * sum((p**2).sum() for p in model.parameters() if p.ndim == 2)  # type: ignore[return-value]


def minimise(variables: Iterable[Tensor], value: Callable[[], Tensor], most: int) -> float:
    """Minimise by L-BFGS in float64, and return the norm of the gradient that is left."""
    leaves = list(variables)
    optimiser = torch.optim.LBFGS(
        leaves,
        max_iter=most,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=30,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        found = value()
        found.backward()
        return found

    optimiser.step(closure)
    closure()
    return float(torch.cat([p.grad.flatten() for p in leaves if p.grad is not None]).norm())


def converge(
    model: nn.Module, objective: Callable[[nn.Module], Tensor], most: int, enough: float = 1e-7
) -> float:
    """Minimise until `enough` is left of the gradient, and return what is left of it.

    L-BFGS stops where its line search fails; begun anew, with no memory, it goes on.
    """
    left = float("inf")
    for _ in range(6):
        left = minimise(model.parameters(), lambda: objective(model), most)
        if left < enough:
            break
    return left


class TwoWeights:
    """w2 tanh(w1 x), run from many starts at once by gradient descent.

    The targets are the probabilities of a network with weights (1, 2), so that the least loss lies there and,
    by symmetry, at (-1, -2); for `fast dropout` both are divided by the probability of being kept.
    """

    METHODS = ("plain", "weight decay", "fast dropout", "weight noise")

    def __init__(self, decay: float, drop: float) -> None:
        self.decay, self.drop = decay, drop
        self.x = torch.linspace(-2, 2, 10, dtype=torch.float64)
        self.z = torch.sigmoid(2 * torch.tanh(self.x))

    def loss(self, method: str, w: Tensor, log_std: Tensor) -> Tensor:
        """The objective of each start; `w` and `log_std` are (starts, 2)."""
        drop = self.drop if method == "fast dropout" else 0.0
        var = torch.exp(2 * log_std) if method == "weight noise" else torch.zeros_like(w)
        x = Moments.certain(self.x.expand(len(w), -1))
        hidden = tanh(_scale(dropout(x, drop), w[:, :1], var[:, :1]))
        logits = _scale(dropout(hidden, drop), w[:, 1:], var[:, 1:])
        value = bernoulli_nll(logits, self.z.expand(len(w), -1)).mean(1)
        if method == "weight decay":
            value = value + self.decay * (w**2).sum(1)
        if method == "weight noise":  # the prior of both weights is learnt, as in `nn.weight_noise_kl`
            prior = (var + (w - w.mean(1, keepdim=True)) ** 2).mean(1)
            value = value + (prior.log() - log_std.sum(1)) / (10 * len(self.x))
        return value

    def descend(
        self, method: str, starts: Tensor, updates: int, every: int, most: int = 0
    ) -> tuple[Tensor, Tensor, float]:
        """Weights every so many updates, (points, starts, 2), the optima behind them, and the gradient left.

        Valleys are long: `most` steps of L-BFGS lead from where gradient descent stops to the optimum.
        """
        w = starts.clone().requires_grad_()
        log_std = torch.full_like(starts, -2.0).requires_grad_()
        path = []
        for update in range(updates + 1):
            if update % every == 0:
                path.append(w.detach().clone())
            value = self.loss(method, w, log_std).sum()
            by_w, by_std = torch.autograd.grad(value, (w, log_std), allow_unused=True)
            with torch.no_grad():
                w -= 0.5 * by_w
                if by_std is not None:
                    log_std -= 0.5 * by_std
        leaves = (w, log_std) if method == "weight noise" else (w,)
        left = minimise(leaves, lambda: self.loss(method, w, log_std).sum(), most)
        return torch.stack(path), w.detach(), left


def _scale(x: Moments, w: Tensor, var: Tensor) -> Moments:
    """A product with a Gaussian weight for each start."""
    return unchecked_moments(x.mean * w, (w**2 + var) * x.var + var * x.mean**2)
