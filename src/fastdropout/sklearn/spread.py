"""Predictions of a stack of networks, with the variance traced to the masks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fastdropout.functional.propagate import dropout, linear
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.nn import Linear
from fastdropout.sklearn.network import Weights, outputs

CHUNK = 4096  # rows at a time


def predicted(network: nn.Module, weights: Weights, x: Tensor, trace: bool) -> Moments:
    """Moments of the outputs of each network, (k, rows, outputs), for the rows x, (rows, inputs).

    With `trace` the variance is traced to the masks: true also where training has made units depend on
    each other. Else it is that of independent units, which is far too small there.
    """
    parts = []
    for rows in x.split(CHUNK):
        if trace:
            parts.append(Moments.stack([_traced(network, w, rows) for w in _each(weights)]))
        else:
            with torch.no_grad():
                k = len(next(iter(weights.values())))
                parts.append(outputs(network, weights, rows.expand(k, *rows.shape)))
    return Moments.cat(parts, 1)


def _each(weights: Weights) -> list[Weights]:
    k = len(next(iter(weights.values())))
    return [{name: w[i] for name, w in weights.items() if name[0].isdigit()} for i in range(k)]


def _traced(network: nn.Module, weights: Weights, x: Tensor) -> Moments:
    sources: list[tuple[Tensor, Tensor]] = []
    h = Moments.certain(x)
    for name, layer in network.named_children():
        own = {key: weights[f"{name}.{key}"] for key in ("weight", "bias") if f"{name}.{key}" in weights}
        if isinstance(layer, Linear):
            z = dropout(h, layer.drop)
            if layer.drop:
                eps = torch.zeros_like(z.mean, requires_grad=True)
                sources.append((eps, (1 - layer.drop) * layer.drop * (h.mean**2 + h.var).detach()))
                z = unchecked_moments(z.mean + eps, z.var)
            h = linear(z, own["weight"], own["bias"])
        else:
            h = functional_call(layer, own, (h,))
    var = torch.zeros_like(h.mean)
    leaves = [eps for eps, _ in sources]
    for i in range(h.shape[-1] if sources else 0):
        grads = torch.autograd.grad(h.mean[:, i].sum(), leaves, retain_graph=True)
        var[:, i] = sum((g**2 * s).sum(-1) for g, (_, s) in zip(grads, sources, strict=True))
    return unchecked_moments(h.mean.detach(), var)
