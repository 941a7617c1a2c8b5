"""What all three loops are told: one record of options and one of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fastdropout.functional.affine import Method
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments

Weight = Tensor | Moments


@dataclass(frozen=True)
class Options:
    """What is not a tensor. `sizes` are the pieces of each step, never growing, as in a `PackedSequence`."""

    sizes: tuple[int, ...]
    drop_input: float = 0.0
    drop_hidden: float = 0.0
    noise: float = 0.0
    rule: Rule = "fast"
    method: Method = "moments"
    reverse: bool = False
    recompute: bool = False
    frozen: bool = False
    """Gradients go through the means only, as a trace of predictions wants them: half the products."""


class Weights(NamedTuple):
    """Of one layer and direction, certain or Gaussian: rows and biases in the order of the cell's slots.

    Shapes: `w_ih` (gates * units, inputs), `w_hh` (gates * units, hidden), `bias` (slots * units), and of a
    projected LSTM `w_hr` (hidden, units).
    """

    w_ih: Weight
    w_hh: Weight
    bias: Weight | None
    w_hr: Weight | None = None
