"""Cells: the element-wise part of a step of a recurrent layer, and nothing else.

A cell has `gates` blocks of rows in each weight matrix and `slots` blocks of pre-synaptic units. The input's
share stands in the first `gates` slots, the recurrent share in the last `gates`; where both fall on one slot
they are added. So a GRU keeps apart what its reset gate multiplies and what it does not.

What a cell carries past the matrix product is `"nothing"`, its `"hidden"` units (GRU) or a state of its own
(`"cell"`, LSTM). `kernel` names its functions in cells.h; without them the fused loop differentiates `step`
by autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fastdropout.functional import transfer
from fastdropout.functional.propagate import (
    add_independent,
    mix_independent,
    multiply_independent,
    recurring_covariance,
)
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, unchecked_moments


class State(NamedTuple):
    """What is known of each piece after a step: hidden units, and what an LSTM carries beside them."""

    h: Moments
    c: Moments | None = None


def level(var: Tensor, drop: float, noise: float) -> Tensor:
    """keep^2 times the mean variance of hidden units, without the noise that is added afresh at each step."""
    mean = var.mean(-1)
    return (1 - drop) ** 2 * ((mean - noise).clamp(min=0) if noise else mean)


@dataclass(frozen=True)
class Cell:
    """h_t = f(a_t): the transfer function of a simple recurrent layer, and the interface of all cells."""

    name: str
    gates: int = 1
    slots: int = 1
    carries: Literal["nothing", "hidden", "cell"] = "nothing"
    kernel: str | None = None
    returning: int | None = None
    """The gate through whose rows noise returns to what is carried, where the cell takes it into account."""

    def step(
        self, pre: Moments, carried: Moments | None, rule: Rule, recurring: Tensor | None = None
    ) -> State:
        """The units after the step, of `pre` (pieces, slots * units) and what is carried (pieces, units).

        `recurring` is that of the method of this name.
        """
        return State(transfer.tanh(pre, rule) if self.name == "tanh" else transfer.relu(pre))

    def input_weight(self, weight: Tensor | Moments) -> Tensor | Moments:
        """The rows of `weight_ih` in the order of the slots."""
        return weight

    def bias(self, of_input: Tensor | Moments, of_hidden: Tensor | Moments) -> Tensor | Moments:
        """One bias for each slot, of both biases of torch.nn."""
        if isinstance(of_input, Moments) and isinstance(of_hidden, Moments):
            return add_independent(of_input, of_hidden)
        assert isinstance(of_input, Tensor)
        assert isinstance(of_hidden, Tensor)
        return of_input + of_hidden

    def returning_rows(self, weight: Tensor) -> Tensor:
        """The rows of `weight_hh` of the gate `returning`."""
        assert self.returning is not None
        return weight.chunk(self.gates)[self.returning]

    def norms(self, weight: Tensor) -> Tensor | None:
        """The squared norms of these rows."""
        return None if self.returning is None else (self.returning_rows(weight) ** 2).sum(1)

    def recurring(self, h: Moments, weight: Tensor, drop: float, noise: float = 0.0) -> Tensor | None:
        """What may return of the noise in a step's pre-synaptic units, (pieces, units); h enters the step.

        sum_j W_ij^2 keep^2 V[h_j], with the mean variance of all units for that of each, which saves a matrix
        product. Fresh noise does not return: neither the masks' nor `noise`.
        """
        norms = None if h.is_certain else self.norms(weight)
        return None if norms is None else level(h.var, drop, noise)[..., None] * norms

    def slot(self, pre: Moments, index: int) -> Moments:
        """One block of units."""
        units = pre.shape[-1] // self.slots
        return pre[..., index * units : (index + 1) * units]

    def join(self, given: Moments, recurrent: Moments) -> Moments:
        """The slots, of the input's share and the recurrent share (pieces, gates * units), without a bias."""
        apart = (self.slots - self.gates) * (given.shape[-1] // self.gates)
        if not apart:
            return add_independent(given, recurrent)
        both = add_independent(given[..., apart:], recurrent[..., :-apart])
        return Moments.cat([given[..., :apart], both, recurrent[..., -apart:]], -1)


class LSTM(Cell):
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t); slots i, f, g, o, as torch.nn.LSTM orders them.

    Gates, cell and candidate are taken as independent, but for the noise that c_{t-1} and g have in common:
    `functional.recurring_covariance`.
    """

    def step(
        self, pre: Moments, carried: Moments | None, rule: Rule, recurring: Tensor | None = None
    ) -> State:
        """See the class."""
        assert carried is not None
        i, f, o = (transfer.sigmoid(self.slot(pre, k), rule) for k in (0, 1, 3))
        g = transfer.tanh(self.slot(pre, 2), rule)
        c = add_independent(multiply_independent(f, carried), multiply_independent(i, g))
        if recurring is not None and not carried.is_certain:
            c = unchecked_moments(
                c.mean, c.var + recurring_covariance(f, carried, i, g, self.slot(pre, 2).var, recurring)
            )
        return State(multiply_independent(o, transfer.tanh(c, rule)), c)


class GRU(Cell):
    """n = tanh(n_x + r n_h), h_t = n + z (h_{t-1} - n); slots n_x, r, z, n_h.

    n_x = W_in x + b_in, n_h = W_hn h + b_hn. r and n_h, and then z, n and h_{t-1}, are taken as independent.
    """

    def step(
        self, pre: Moments, carried: Moments | None, rule: Rule, recurring: Tensor | None = None
    ) -> State:
        """See the class."""
        assert carried is not None
        r, z = (transfer.sigmoid(self.slot(pre, k), rule) for k in (1, 2))
        n = add_independent(self.slot(pre, 0), multiply_independent(r, self.slot(pre, 3)))
        return State(mix_independent(z, transfer.tanh(n, rule), carried))

    def input_weight(self, weight: Tensor | Moments) -> Tensor | Moments:
        """From torch's order r, z, n to n, r, z."""
        if isinstance(weight, Moments):
            return weight.rearrange(self._turned)
        return self._turned(weight)

    def bias(self, of_input: Tensor | Moments, of_hidden: Tensor | Moments) -> Tensor | Moments:
        """n_x and n_h keep a bias each."""
        if isinstance(of_input, Moments) and isinstance(of_hidden, Moments):
            mean = self._joined_bias(of_input.mean, of_hidden.mean)
            return unchecked_moments(mean, self._joined_bias(of_input.var, of_hidden.var))
        assert isinstance(of_input, Tensor)
        assert isinstance(of_hidden, Tensor)
        return self._joined_bias(of_input, of_hidden)

    def _joined_bias(self, of_input: Tensor, of_hidden: Tensor) -> Tensor:
        units = len(of_input) // self.gates
        both = of_input[:-units] + of_hidden[:-units]
        return torch.cat([of_input[-units:], both, of_hidden[-units:]])

    def _turned(self, weight: Tensor) -> Tensor:
        return torch.roll(weight, weight.shape[0] // self.gates, 0)


CELLS: dict[str, Cell] = {
    "tanh": Cell("tanh", kernel="tanh"),
    "relu": Cell("relu"),
    "lstm": LSTM("lstm", 4, 4, "cell", "lstm", returning=2),
    "gru": GRU("gru", 3, 4, "hidden", "gru"),
}
