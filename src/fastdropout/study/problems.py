"""Small problems that can be trained to convergence, to see what regularisers do there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastdropout.functional import dropout, tanh
from fastdropout.functional.losses import bernoulli_nll
from fastdropout.moments import Moments, moments
from fastdropout.nn import RNN, Linear, Sequential, Tanh

DROP = 0.3
DECAY = 0.01
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
    square = normal(300, 2)
    cross = (square[:, :1] * square[:, 1:] > 0).double()
    series = normal(12, 40, 1)
    before = torch.cat([torch.zeros(1, 40, 1, dtype=torch.float64), series[:-1]])

    def logistic(drop: float) -> nn.Module:
        return Linear(5, 1, drop=drop)

    def small(drop: float) -> nn.Module:
        return Sequential(Linear(2, 4, drop=drop), Tanh(), Linear(4, 1, drop=drop))

    return [
        Problem("logistic,\nseparable", x, side, logistic),
        Problem("logistic,\nnot separable", x, flipped(side, 0.15), logistic),
        Problem("4 tanh units,\nnot separable", square, flipped(cross, 0.1), small),
        Problem("3 recurrent units,\nnot separable", series, flipped((before > 0).double(), 0.1), TinyRNN),
    ]


def decay_of(model: nn.Module) -> Tensor:
    """DECAY times the squared weights, without biases."""
    return DECAY * sum((p**2).sum() for p in model.parameters() if p.ndim == 2)  # type: ignore[return-value]


def converge(model: nn.Module, objective: Callable[[nn.Module], Tensor], most: int) -> float:
    """Minimise, and return the norm of the gradient that is left."""
    optimiser = torch.optim.LBFGS(
        model.parameters(),
        max_iter=most,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=30,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective(model)
        value.backward()
        return value

    optimiser.step(closure)
    closure()
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())


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
        if method == "weight noise":  # the prior of both weights is learnt, as in `nn.kl`
            prior = (var + (w - w.mean(1, keepdim=True)) ** 2).mean(1)
            value = value + (prior.log() - log_std.sum(1)) / (10 * len(self.x))
        return value

    def descend(self, method: str, starts: Tensor, updates: int, every: int) -> tuple[Tensor, Tensor]:
        """Weights every so many updates, (points, starts, 2), and the gradient norm at the end, (starts,)."""
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
        return torch.stack(path), by_w.norm(dim=1)


def _scale(x: Moments, w: Tensor, var: Tensor) -> Moments:
    """A product with a Gaussian weight for each start."""
    return moments(x.mean * w, (w**2 + var) * x.var + var * x.mean**2)
