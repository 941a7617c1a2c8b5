"""A stack of networks of moments: their weights, their outputs, and the spread of those.

`k` networks of one shape are trained and asked together. Their weights are tensors of shape (k, ...), so
that one update serves them all, and plain arrays when they rest in an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fastdropout.functional.affine import Method
from fastdropout.moments import Moments
from fastdropout.nn import Identity, Linear, ReLU, Sequential, Tanh
from fastdropout.nn.activation import Sigmoid

Weights = dict[str, Tensor]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": ReLU,
    "tanh": Tanh,
    "logistic": Sigmoid,
    "identity": Identity,
}


@dataclass(frozen=True)
class Architecture:
    """Sizes of the layers from the inputs to the outputs, and what is dropped before each of them."""

    sizes: tuple[int, ...]
    drops: tuple[float, ...]
    activation: str = "relu"
    method: Method = "moments"

    def build(self) -> Sequential:
        """The network without weights: they are given at every call."""
        layers: list[nn.Module] = []
        for (fan_in, fan_out), drop in zip(pairwise(self.sizes), self.drops, strict=True):
            linear = Linear(fan_in, fan_out, drop=drop, method=self.method, device="meta")
            layers += [linear, ACTIVATIONS[self.activation]()]
        return Sequential(*layers[:-1])

    def draw(self, k: int, rng: np.random.RandomState, dtype: npt.DTypeLike) -> dict[str, npt.NDArray[Any]]:
        """First weights of `k` networks: variance gain / (fan-in keep), biases 0 (He et al., 2015).

        `keep` because units that are dropped are not scaled up here, unlike in `torch.nn.Dropout`.
        """
        gain = 2.0 if self.activation == "relu" else 1.0
        weights: dict[str, npt.NDArray[Any]] = {}
        last = len(self.drops) - 1
        for i, ((fan_in, fan_out), drop) in enumerate(zip(pairwise(self.sizes), self.drops, strict=True)):
            std = math.sqrt((1.0 if i == last else gain) / (fan_in * (1 - drop)))
            weights[f"{2 * i}.weight"] = (std * rng.standard_normal((k, fan_out, fan_in))).astype(dtype)
            weights[f"{2 * i}.bias"] = np.zeros((k, fan_out), dtype)
        return weights


def to_tensors(arrays: dict[str, npt.NDArray[Any]]) -> Weights:
    """Arrays, which may be read-only files in memory, as tensors of their own."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def to_arrays(weights: Weights) -> dict[str, npt.NDArray[Any]]:
    """Tensors as arrays, which any Python can unpickle."""
    return {name: weight.detach().numpy().copy() for name, weight in weights.items()}


def outputs(network: nn.Module, weights: Weights, x: Tensor) -> Moments:
    """Moments of the outputs, (k, rows, outputs), with units taken as independent.

    Shapes: x (k, rows, inputs).
    """
    own = {name: w for name, w in weights.items() if name[0].isdigit()}
    if len(x) == 1:  # vmap costs a third of an update of one small network.
        return functional_call(network, {name: w[0] for name, w in own.items()}, (x[0],)).unsqueeze(0)
    return vmap(lambda w, rows: functional_call(network, w, (rows,)), randomness="different")(own, x)


def check_layers(hidden_layer_sizes: Any, drop_hidden: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes of the hidden layers and the drop rate of each."""
    sizes = (hidden_layer_sizes,) if np.isscalar(hidden_layer_sizes) else tuple(hidden_layer_sizes)
    if any(isinstance(n, bool) or int(n) != n or n < 1 for n in sizes):
        raise ValueError(
            f"hidden_layer_sizes must be whole numbers of at least 1, got {hidden_layer_sizes!r}"
        )
    drops: Any = (drop_hidden,) * len(sizes) if np.isscalar(drop_hidden) else tuple(drop_hidden)
    if len(drops) != len(sizes):
        raise ValueError(
            f"drop_hidden must be one rate or one for each of {len(sizes)} layers, got {drop_hidden!r}"
        )
    return tuple(int(n) for n in sizes), tuple(float(d) for d in drops)
