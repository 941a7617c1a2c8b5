"""The matrix product of a step: mean and variance of all units with weights that stay the same for all steps.

Large weights that many steps share are packed once into the layout of oneDNN's products. `torch.bmm` packs
them at every call, and is a fifth slower for 64 rows, 400 units and four gates; but a call of it costs less,
so it serves small products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

FEWEST_STEPS = 8
"""Packing costs about as much as a step of a few rows."""
SMALLEST_PRODUCT, SMALLEST_SIDE = 10_000_000, 300
"""Multiplications, and rows or columns of the weights. Measured on two cores over 100 steps, forward and
backward: at 64 rows and 400 units `bmm` takes 13 % longer, at 16 to 64 rows and 200 or 300 units 7 to 35 %
less."""

Product = Callable[[Tensor], tuple[Tensor, ...]]
"""Of matrices (count, rows, in) as many products (rows, out)."""


def step_product(weights: Tensor, steps: int, rows: int) -> Product:
    """The products x W' of up to `rows` rows with `weights`, (count, out, in), for as many steps.

    What it returns holds until the next call.
    """
    _, *sides = weights.shape
    is_large = rows * math.prod(sides) >= SMALLEST_PRODUCT and min(sides) >= SMALLEST_SIDE
    return (_Packed if steps >= FEWEST_STEPS and is_large and _packs(weights) else _Batched)(weights, rows)


def _packs(weights: Tensor) -> bool:
    # The operators that torch's compiler takes for linear layers on processors. They are not part of the
    # public interface: a torch without them is served by bmm.
    return (
        weights.device.type == "cpu"
        and weights.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class _Packed:
    def __init__(self, weights: Tensor, rows: int) -> None:
        pack = torch.ops.mkldnn._reorder_linear_weight
        self.weights = [pack(w.contiguous(), rows) for w in weights]

    def __call__(self, units: Tensor) -> tuple[Tensor, ...]:
        product = torch.ops.mkldnn._linear_pointwise
        pairs = zip(units, self.weights, strict=True)
        return tuple(product(x, w, None, "none", [], "") for x, w in pairs)


class _Batched:
    def __init__(self, weights: Tensor, rows: int) -> None:
        self.weights = weights.transpose(1, 2).contiguous()
        self.out = weights.new_empty(len(weights), rows, weights.shape[1])

    def __call__(self, units: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(units, self.weights, out=self.out[:, : units.shape[1]]).unbind()
