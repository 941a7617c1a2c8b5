"""Predictions of a stack of networks, with the variance traced to the masks.

The trace of `fastdropout.integrate`, for layers in a row: a mask is a source of variance
keep drop (E[h]^2 + V[h]), and its effect on the outputs is a product of weights and slopes dE[f(a)] / dE[a].
The slopes are the same for all outputs, so there is no backward pass for each of them. Inside are plain
tensors, not `Moments`: most of the time of a small network is that of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastdropout.functional import slopes
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.nn import Identity, Linear, ReLU, Tanh
from fastdropout.nn.activation import Sigmoid
from fastdropout.sklearn.network import Weights

CHUNK = 2**18  # rows x outputs x units at a time: few enough for a processor's cache


@dataclass
class _Step:
    """A linear layer: what its masks add, and the slopes of the transfer function after it."""

    weight: Tensor  # (out, in)
    keep: float
    source: Tensor | None  # (rows, in)
    slope: Tensor | None = None  # (rows, out); None where it is 1


def predicted(network: nn.Module, weights: Weights, x: Tensor, trace: bool) -> Moments:
    """Moments of the outputs of each network, (k, rows, outputs), for the rows x, (rows, inputs).

    With `trace` the variance is traced to the masks: true also where training has made units depend on
    each other. Else it is that of independent units, which is far too small there.
    """
    with torch.no_grad():
        return unchecked_moments(*_each(network, weights, x, _variance if trace else None))


def predicted_covariance(network: nn.Module, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the outputs, (k, rows, outputs), and their traced covariances, (k, rows, outputs, outputs)."""
    with torch.no_grad():
        return _each(network, weights, x, _covariance)


def _each(
    network: nn.Module, weights: Weights, x: Tensor, spread: Callable[[list[_Step], int], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Means and spread of each network of the stack, some rows at a time; None: the diagonal variance."""
    layers = list(network.named_children())
    chunks = x.split(_rows_at_once(weights))
    means, spreads = [], []
    for i in range(len(weights["0.weight"])):
        for rows in chunks:
            mean, var, steps = _forward(layers, weights, i, rows, diagonal=spread is None)
            means.append(mean)
            if spread is not None:
                var = spread(steps, len(rows))
            spreads.append(torch.zeros_like(mean) if var is None else var)
    shape = (-1, len(x), means[0].shape[-1])
    return _joined(means).view(shape), _joined(spreads).view(*shape, *spreads[0].shape[2:])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _rows_at_once(weights: Weights) -> int:
    matrices = [w for name, w in weights.items() if name.endswith(".weight")]
    return max(64, CHUNK // (matrices[-1].shape[1] * max(w.shape[2] for w in matrices)))


def _forward(
    layers: list[tuple[str, nn.Module]], weights: Weights, i: int, x: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor | None, list[_Step]]:
    """The mean of the outputs of network i, their variance if `diagonal`, and the steps that lead to them."""
    steps: list[_Step] = []
    mean, var = x, None
    for name, layer in layers:
        if not isinstance(layer, Linear):
            mean, var, steps[-1].slope = _transfer(layer, mean, var)
            continue
        weight, bias = weights[f"{name}.weight"][i], weights[f"{name}.bias"][i]
        keep, source = 1 - layer.drop, None
        if layer.drop:
            square = mean * mean if var is None else torch.addcmul(var, mean, mean)
            source = square.mul_(keep * layer.drop)
            # Of a masked unit: keep V[h] + keep drop E[h]^2.
            var = source if var is None else torch.add(source, var, alpha=keep * keep)
        steps.append(_Step(weight, keep, source))
        mean = torch.addmm(bias, mean, weight.mT, alpha=keep)
        if var is not None and (diagonal or name != layers[-1][0]):
            var = var @ (weight * weight).mT
    return mean, var, steps


SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], slopes.Sloped]] = {
    ReLU: slopes.relu,
    Tanh: slopes.tanh,
    Sigmoid: slopes.sigmoid,
}


def _transfer(
    layer: nn.Module, mean: Tensor, var: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """f(a), and dE[f(a)] / dE[a]: None where it is 1, and for the variance where a is certain."""
    if isinstance(layer, Identity):
        return mean, var, None
    if var is not None:
        return SLOPES[type(layer)](mean, var)
    if isinstance(layer, ReLU):
        return torch.relu(mean), None, (mean > 0).to(mean.dtype)
    if isinstance(layer, Tanh):
        y = torch.tanh(mean)
        return y, None, 1 - y * y
    y = torch.sigmoid(mean)
    return y, None, y * (1 - y)


def _variance(steps: list[_Step], rows: int) -> Tensor:
    """Sum over the sources of (d output / d source)^2 V[source], (rows, outputs)."""
    total: Tensor | None = None
    for gain, step in _gains(steps):
        if step.source is None:
            continue
        square = gain * gain
        own = step.source @ square.mT if gain.ndim == 2 else square.mul_(step.source.unsqueeze(1)).sum(-1)
        total = own if total is None else total.add_(own)
    return _none(steps, rows) if total is None else total


def _covariance(steps: list[_Step], rows: int) -> Tensor:
    """Between the outputs of each row, (rows, outputs, outputs)."""
    total: Tensor | None = None
    for gain, step in _gains(steps):
        if step.source is not None:
            own = (gain * step.source.unsqueeze(1)) @ gain.mT
            total = own if total is None else total.add_(own)
    return torch.diag_embed(_none(steps, rows)) if total is None else total


def _none(steps: list[_Step], rows: int) -> Tensor:
    """No variance: nothing is dropped."""
    return steps[-1].weight.new_zeros(rows, len(steps[-1].weight))


def _gains(steps: list[_Step]) -> list[tuple[Tensor, _Step]]:
    """d output / d source of each layer, the last one first: (outputs, in), then (rows, outputs, in)."""
    last = steps[-1]
    gain = last.weight
    found = [(gain, last)]
    first = min((i for i, s in enumerate(steps) if s.source is not None), default=len(steps))
    for step, after in zip(reversed(steps[first:-1]), reversed(steps[first + 1 :]), strict=True):
        down = gain * after.keep
        gain = (down if step.slope is None else down * step.slope.unsqueeze(1)) @ step.weight
        found.append((gain, step))
    return found
