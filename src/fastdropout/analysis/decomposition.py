"""The gradient of a network as the sum of a training loss and a regulariser (the paper, sec. 2.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fastdropout.analysis.split import Leaves, Product, SplitWeight


@dataclass(frozen=True)
class Regimes:
    """Shares of units or weights by what the regulariser does to them; they sum to 1.

    >>> import torch, fastdropout as fd
    >>> fd.analysis.Regimes.of(torch.tensor([-1.0, 0.0, 2.0, 3.0]))
    Regimes(zero=0.25, rewards=0.25, penalises=0.5)
    """

    zero: float
    """delta = 0: the variance is as it should be, or nothing depends on it."""
    rewards: float
    """delta < 0: more variance would lower the loss, so weights are driven to grow."""
    penalises: float
    """delta > 0: less variance would lower the loss, so weights are driven to shrink."""

    @classmethod
    def of(cls, delta: Tensor) -> Regimes:
        """The shares of the signs in `delta`."""
        n = max(delta.numel(), 1)
        below, above = int((delta < 0).sum()), int((delta > 0).sum())
        return cls((n - below - above) / n, below / n, above / n)


@dataclass(frozen=True)
class Call:
    """One use of a weight in a pass: rows are examples, or steps and examples, of the incoming units.

    >>> import torch, fastdropout as fd
    >>> net, x = fd.nn.Linear(2, 1, drop=0.5), torch.ones(4, 2)
    >>> parts = fd.analysis.decompose(net, lambda net: net(x).var.mean())
    >>> call = parts.weights["weight"].calls[0]
    >>> call.spread.shape, call.delta.flatten()
    (torch.Size([4, 2]), tensor([0.2500, 0.2500, 0.2500, 0.2500]))
    """

    spread: Tensor
    """dV[a]/d(w_i^2) = keep drop E[x_i]^2 + keep V[x_i], (*, in)."""
    delta: Tensor
    """delta^a = dJ/dV[a], (*, out)."""


@dataclass(frozen=True)
class Part:
    """What the gradient of one weight matrix, (out, in), is made of.

    >>> import torch, fastdropout as fd
    >>> net, x = fd.nn.Linear(2, 1, drop=0.5), torch.ones(4, 2)
    >>> part = fd.analysis.decompose(net, lambda net: net(x).var.mean()).weights["weight"]
    >>> part.loss, part.decay  # V[a] = (w_1^2 + w_2^2) / 4: a weight decay, and nothing else
    (tensor([[0., 0.]]), tensor([[0.2500, 0.2500]]))
    """

    weight: Tensor
    loss: Tensor
    """dL^a/dw = dJ/dE[a] dE[a]/dw."""
    decay: Tensor
    """lambda_i = sgn(delta^a) eta^a_i, summed over the rows of the batch: the coefficient of a weight decay
    lambda_i w_i^2 of that weight alone; negative where the weight is driven to grow."""
    eta: Tensor
    """eta^a_i = |delta^a| dV[a]/d(w_i^2), summed over the rows: at least |lambda_i|, more where signs of
    delta differ between rows."""
    calls: tuple[Call, ...]
    """The uses of the weight; empty where no variance comes in, so that there is nothing to regularise."""

    @property
    def regulariser(self) -> Tensor:
        """dR^a/dw = dJ/dV[a] dV[a]/dw = 2 lambda w."""
        return 2 * self.decay * self.weight

    @property
    def gradient(self) -> Tensor:
        """Their sum: dJ/dw."""
        return self.loss + self.regulariser

    @property
    def delta(self) -> Tensor | None:
        """delta^a = dJ/dV[a] of every row and unit, (rows, out); None where no variance comes in."""
        return torch.cat([c.delta.flatten(0, -2) for c in self.calls]) if self.calls else None

    @property
    def regimes(self) -> Regimes:
        """Shares of units (at each row) that are rewarded and penalised for their variance."""
        return Regimes.of(torch.zeros(1) if self.delta is None else self.delta)

    @property
    def weight_regimes(self) -> Regimes:
        """Shares of weights with negative and positive lambda."""
        return Regimes.of(self.decay)

    def by_example(self, examples: int, batch_first: bool = False) -> Tensor:
        """lambda of each example, (examples, out, in), summed over its steps; these sum to `decay`.

        Rows are read as (steps, examples), as recurrent layers lay them out; `batch_first` says that a
        linear layer was given (examples, steps, in).
        """
        total = self.weight.new_zeros(examples, *self.weight.shape)
        for call in self.calls:
            swap = batch_first and call.delta.ndim > 2
            delta, spread = (_by_example(t, examples, swap) for t in (call.delta, call.spread))
            total += torch.einsum("tbo,tbi->boi", delta, spread)
        return total


@dataclass(frozen=True)
class Decomposition:
    """The gradient of a network in parts.

    >>> import torch, fastdropout as fd
    >>> net, x = fd.nn.Linear(2, 1, drop=0.5), torch.ones(4, 2)
    >>> parts = fd.analysis.decompose(net, lambda net: net(x).var.mean())
    >>> parts.decays, parts.regimes
    (tensor([0.2500, 0.2500]), Regimes(zero=0.0, rewards=0.0, penalises=1.0))
    """

    value: Tensor
    """J."""
    weights: Mapping[str, Part]
    """By the name of the weight matrix."""
    others: Mapping[str, Tensor]
    """Gradients of what is no weight matrix: biases, initial states, the spread of noisy weights."""

    @property
    def decays(self) -> Tensor:
        """All lambda_i in a row."""
        return torch.cat([part.decay.flatten() for part in self.weights.values()])

    @property
    def regimes(self) -> Regimes:
        """Shares of all weights with negative and positive lambda."""
        return Regimes.of(self.decays)

    def share(self) -> float:
        """The norm of the regulariser's gradient over that of the training loss's, all weights together."""
        r, loss = (
            torch.cat([getattr(p, name).flatten() for p in self.weights.values()]).norm()
            for name in ("regulariser", "loss")
        )
        return float(r / loss)


def decompose(model: nn.Module, loss_fn: Callable[[Any], Tensor]) -> Decomposition:
    """Split dJ/dw of every weight matrix into dL^a/dw + dR^a/dw, where J = loss_fn(model).

        dL^a/dw_i = dJ/dE[a] dE[a]/dw_i                      the training loss, seen from unit a
        dR^a/dw_i = dJ/dV[a] dV[a]/dw_i = 2 lambda_i w_i     the regulariser
        lambda_i  = sgn(delta^a) eta^a_i,   eta^a_i = |delta^a| dV[a]/d(w_i^2),   delta^a = dJ/dV[a]

    `loss_fn` is given the model and returns the scalar J; it may run the model in any way. Every layer that
    goes through `functional.linear` is split: `Linear`, `RNN` of any depth and direction, `RNNCell`, of
    feed-forward or recurrent networks, also under `method="gaussian"`, where the second part is the paper's
    R_draw for the numbers that happen to be drawn. The model and its gradients are left as they are.

    >>> import fastdropout as fd
    >>> unit = fd.nn.Linear(1, 1, bias=False, drop=0.5)
    >>> _ = unit.weight.data.fill_(2.0)
    >>> J = lambda unit: fd.losses.gaussian_nll(unit(torch.ones(1)), torch.zeros(1)).sum()
    >>> part = decompose(unit, J).weights["weight"]      # E[a] = w/2, V[a] = w^2/4, J = 1/2 + log w + ...
    >>> part.loss.item(), part.regulariser.item(), part.gradient.item()
    (0.5, 0.0, 0.5)
    """
    if not callable(loss_fn):
        raise ValueError(f"loss_fn must be a function of the model, got {type(loss_fn).__name__}")
    named = dict(model.named_parameters())
    leaves = {n: Leaves.of(p) for n, p in named.items() if p.ndim == 2 and not _is_state(n)}
    plain = {n: p.detach().clone().requires_grad_() for n, p in named.items() if n not in leaves}
    replaced: dict[str, Tensor] = {n: SplitWeight.over(x) for n, x in leaves.items()} | plain
    with torch.enable_grad():
        value = functional_call(_Closure(model, loss_fn), {f"model.{n}": t for n, t in replaced.items()}, ())
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss_fn must return a scalar, got {got}: take the mean or the sum")
    products = [p for x in leaves.values() for p in x.of_variance]
    wanted = [
        *plain.values(),
        *(x.weight for x in leaves.values()),
        *(x.square for x in leaves.values()),
        *(p.outgoing for p in products),
    ]
    found = torch.autograd.grad(value, wanted, allow_unused=True)
    grads = {id(t): torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)}
    return Decomposition(
        value.detach(),
        {n: _part(x, grads) for n, x in leaves.items()},
        {n: grads[id(t)] for n, t in plain.items()},
    )


def _part(leaves: Leaves, grads: Mapping[int, Tensor]) -> Part:
    calls = tuple(_call(p, grads) for p in leaves.of_variance)
    eta = torch.zeros_like(leaves.weight)
    for call in calls:
        eta = eta + call.delta.abs().flatten(0, -2).t() @ call.spread.flatten(0, -2)
    weight = leaves.weight.detach()
    return Part(weight, grads[id(leaves.weight)], grads[id(leaves.square)], eta.detach(), calls)


def _call(product: Product, grads: Mapping[int, Tensor]) -> Call:
    spread, delta = product.incoming.detach(), grads[id(product.outgoing)]
    if delta.ndim == 1:  # a single example, without a dimension for it
        spread, delta = spread.unsqueeze(0), delta.unsqueeze(0)
    return Call(spread, delta)


def _by_example(rows: Tensor, examples: int, swap: bool) -> Tensor:
    """As (steps, examples, features)."""
    rows = rows.transpose(0, 1) if swap else rows
    flat = rows.flatten(0, -2)
    if not examples or len(flat) % examples:
        raise ValueError(f"rows must be a multiple of examples, got {len(flat)} rows, {examples} examples")
    return flat.view(-1, examples, flat.shape[-1])


def _is_state(name: str) -> bool:
    """Matrices that multiply nothing: learnt initial states and the spread of noisy weights."""
    return name.endswith("_log_std") or name.rsplit(".", 1)[-1] in ("initial_mean", "initial_log_var")


class _Closure(nn.Module):
    """Gives `functional_call` a module whose forward pass is the loss."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self) -> Tensor:
        return self.loss_fn(self.model)
