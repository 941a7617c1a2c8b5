"""Predictions of a stack of networks, with the variance traced to the masks.

The trace of `fastdropout.integrate`, for layers in a row: a mask is a source of variance
keep drop (E[h]^2 + V[h]), and its effect on the outputs is a product of weights and slopes dE[f(a)] / dE[a].
The slopes are the same for all outputs, so there is no backward pass for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fastdropout.functional.propagate import dropout, linear
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.nn import Linear, ReLU
from fastdropout.sklearn.network import Weights, outputs

CHUNK = 2**18  # rows x outputs x units at a time: few enough for a processor's cache


@dataclass(frozen=True)
class _Step:
    """A linear layer: what its masks add, and the slopes of the transfer function after it."""

    weight: Tensor  # (out, in)
    keep: float
    source: Tensor | None  # (rows, in)
    slope: Tensor | None  # (rows, out); None after the last layer


def predicted(network: nn.Module, weights: Weights, x: Tensor, trace: bool) -> Moments:
    """Moments of the outputs of each network, (k, rows, outputs), for the rows x, (rows, inputs).

    With `trace` the variance is traced to the masks: true also where training has made units depend on
    each other. Else it is that of independent units, which is far too small there.
    """
    with torch.no_grad():
        if not trace:
            k = len(next(iter(weights.values())))
            parts = [
                outputs(network, weights, r.expand(k, *r.shape)) for r in x.split(_rows_at_once(network))
            ]
            return Moments.cat(parts, 1)
        return Moments.stack([_by_rows(network, w, x) for w in _each(weights)])


def predicted_covariance(network: nn.Module, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the outputs, (k, rows, outputs), and their traced covariances, (k, rows, outputs, outputs)."""
    means, covariances = [], []
    with torch.no_grad():
        for own in _each(weights):
            parts = [_forward(network, own, rows) for rows in x.split(_rows_at_once(network))]
            means.append(torch.cat([mean for mean, _ in parts]))
            covariances.append(torch.cat([_covariance(steps) for _, steps in parts]))
    return torch.stack(means), torch.stack(covariances)


def _rows_at_once(network: nn.Module) -> int:
    layers = [m for m in network.modules() if isinstance(m, Linear)]
    return max(64, CHUNK // (layers[-1].out_features * max(m.in_features for m in layers)))


def _each(weights: Weights) -> list[Weights]:
    k = len(next(iter(weights.values())))
    return [{name: w[i] for name, w in weights.items() if name[0].isdigit()} for i in range(k)]


def _by_rows(network: nn.Module, weights: Weights, x: Tensor) -> Moments:
    parts = [_forward(network, weights, rows) for rows in x.split(_rows_at_once(network))]
    return Moments.cat([unchecked_moments(mean, _variance(steps)) for mean, steps in parts])


def _forward(network: nn.Module, weights: Weights, x: Tensor) -> tuple[Tensor, list[_Step]]:
    """The mean of the outputs, and the steps that lead to them."""
    steps: list[_Step] = []
    h = Moments.certain(x)
    for name, layer in network.named_children():
        if isinstance(layer, Linear):
            weight, keep = weights[f"{name}.weight"], 1 - layer.drop
            source = None
            if layer.drop:
                source = keep * layer.drop * (h.mean**2 if h.is_certain else h.mean**2 + h.var)
            h = linear(dropout(h, layer.drop), weight, weights[f"{name}.bias"])
            steps.append(_Step(weight, keep, source, None))
        else:
            h, slope = _transfer(layer, h)
            steps[-1] = replace(steps[-1], slope=slope)
    return h.mean, steps


def _transfer(layer: nn.Module, a: Moments) -> tuple[Moments, Tensor]:
    """f(a), and dE[f(a)] / dE[a]."""
    if isinstance(layer, ReLU):  # The probability that a > 0.
        return layer(a), (a.mean > 0).to(a.dtype) if a.is_certain else torch.special.ndtr(
            a.mean / a.std.clamp(min=1e-20)  # 0 / 0 where an input is 0 in this row
        )
    with torch.enable_grad():
        mean = a.mean.detach().requires_grad_()
        y = layer(Moments.certain(mean) if a.is_certain else unchecked_moments(mean, a.var))
        (slope,) = torch.autograd.grad(y.mean.sum(), mean)
    return y.detach(), slope


def _variance(steps: list[_Step]) -> Tensor:
    """Sum over the sources of (d output / d source)^2 V[source], (rows, outputs)."""
    total: Tensor | float = 0.0
    for gain, step in _gains(steps):
        if step.source is None:
            continue
        if gain.ndim == 2:
            total = total + step.source @ (gain**2).mT
        else:
            total = total + torch.einsum("rki,ri->rk", gain**2, step.source)
    return total if isinstance(total, Tensor) else _none(steps)


def _covariance(steps: list[_Step]) -> Tensor:
    """Between the outputs of each row, (rows, outputs, outputs)."""
    total: Tensor | float = 0.0
    for gain, step in _gains(steps):
        if step.source is not None:
            total = total + (gain * step.source.unsqueeze(1)) @ gain.mT
    return total if isinstance(total, Tensor) else torch.diag_embed(_none(steps))


def _none(steps: list[_Step]) -> Tensor:
    """No variance: nothing is dropped."""
    rows = [s.slope for s in steps if s.slope is not None]
    n = len(rows[0]) if rows else 1
    return steps[-1].weight.new_zeros(n, len(steps[-1].weight))


def _gains(steps: list[_Step]) -> list[tuple[Tensor, _Step]]:
    """d output / d source of each layer, the last one first: (outputs, in), then (rows, outputs, in)."""
    last = steps[-1]
    gain = last.weight
    found = [(gain, last)]
    if not any(s.source is not None for s in steps[:-1]):
        return found
    down = gain * last.keep
    first = min(i for i, s in enumerate(steps) if s.source is not None)
    for step in reversed(steps[first:-1]):
        assert step.slope is not None
        gain = (down * step.slope.unsqueeze(1)) @ step.weight
        found.append((gain, step))
        down = gain * step.keep
    return found
