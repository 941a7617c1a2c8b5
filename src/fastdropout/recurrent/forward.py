"""The forward pass of the fused layer: the weights as the products need them, and the walk over the steps.

Shapes, for a chunk of steps whose rows stand one below the other:

    pre     (2, rows, slots * units)  pre-synaptic moments
    state   (3, rows + pieces, units) mean, u, variance; u = keep var + keep drop mean^2, after the mask
    carry   (2, rows + pieces, units) moments of an LSTM's cell; of no rows for other cells
    level   (rows)                    `cells.level` of what enters a step of an LSTM; of no rows for others

`state` and `carry` have the rows that enter the chunk before its own (behind them, in reverse).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastdropout.moments import Moments, unchecked_moments
from fastdropout.recurrent import buffers, kernel
from fastdropout.recurrent.cells import Cell, level
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.options import Options
from fastdropout.recurrent.products import Product, step_product

# Where nothing is kept for a backward pass, the steps are walked in chunks whose `pre` stays in the cache.
CACHED_BYTES = 2**23


class Inputs(NamedTuple):
    """All tensors of a layer, in the order in which autograd is given them; also their gradients."""

    x_mean: Tensor
    x_var: Tensor | None
    h_mean: Tensor
    h_var: Tensor | None
    c_mean: Tensor | None
    c_var: Tensor | None
    w_ih: Tensor
    w_hh: Tensor
    bias: Tensor | None
    w_ih_var: Tensor | None
    w_hh_var: Tensor | None
    bias_var: Tensor | None
    place: Tensor | None = None
    """Zeros, (rows, units), added to the hidden units after the mask: a trace asks for their gradient."""


class Kept(NamedTuple):
    """What the backward pass of a chunk needs."""

    pre: Tensor
    state: Tensor
    carry: Tensor
    level: Tensor


class Forward:
    """One call of the layer: the weights as the products need them, and the walk over the steps."""

    def __init__(
        self,
        cell: Cell,
        inputs: Inputs,
        options: Options,
        weights: Tensor | None = None,
        keeps: bool = True,
    ) -> None:
        """`weights` are those of an earlier `Forward`; `keeps` says whether a backward pass will follow."""
        self.cell, self.inputs, self.options, self.sizes = cell, inputs, options, options.sizes
        self.keeps, self.units = keeps, inputs.w_hh.shape[1]
        self.given, self.apart = cell.gates * self.units, (cell.slots - cell.gates) * self.units
        self.bias = _bias(inputs, cell.slots * self.units)
        # In Python's double precision: near drop = 1 a float32 would lose the digits of 1 - drop.
        self.keep = 1 - options.drop_hidden
        self.spread = self.keep * options.drop_hidden
        # (2, out, in): the probability of being kept is folded into the weights of the mean.
        self.weights = inputs.w_hh.new_empty(2, *inputs.w_hh.shape) if weights is None else weights
        if weights is None:
            torch.mul(inputs.w_hh, self.keep, out=self.weights[0])
            torch.mul(inputs.w_hh, inputs.w_hh, out=self.weights[1])
        self.steps = Steps(options.sizes, options.reverse)
        self.starts = self.steps.starts
        self.even = self.sizes[0] == self.sizes[-1]
        h_mean, h_var = inputs.h_mean, inputs.h_var
        variance = torch.zeros_like(h_mean) if h_var is None else h_var
        self.beginning = torch.stack([h_mean, self.masked(h_mean, variance), variance])
        self.carry_beginning = _stacked(inputs.c_mean, inputs.c_var, self.beginning)
        order = self.steps.order
        length = math.isqrt(len(order) - 1) + 1 if options.recompute else len(order)
        if not keeps:
            step = 2 * cell.slots * self.units * self.sizes[0] * inputs.x_mean.element_size()
            length = max(1, min(length, CACHED_BYTES // step))
        self.chunks = [order[i : i + length] for i in range(0, len(order), length)]
        self.kernel = kernel.serving(cell, options.rule, inputs.x_mean)
        self.norms = cell.norms(inputs.w_hh)
        self._product: Product | None = None

    def masked(self, mean: Tensor, var: Tensor) -> Tensor:
        """u: the variance of hidden units after the mask."""
        return torch.addcmul(self.keep * var, mean, mean, value=self.spread)

    def square(self, entering: Tensor) -> Tensor:
        """Second moment of hidden units after the mask, of their mean and u: what noisy weights multiply."""
        return torch.addcmul(entering[1], entering[0], entering[0], value=self.keep**2)

    def rows(self, steps: range) -> slice:
        """The rows of a chunk in the outputs."""
        first, last = sorted((steps[0], steps[-1]))
        return slice(self.starts[first], self.starts[last + 1])

    def own(self, steps: range) -> slice:
        """The rows of a chunk in its `state`, beside those that enter it."""
        rows, entering = self.rows(steps), self.sizes[steps[0]]
        offset = 0 if self.options.reverse else entering
        return slice(offset, offset + rows.stop - rows.start)

    def last_rows(self, offset: int = 0) -> Tensor | slice:
        """The row of the last step of each piece, counted from `offset`."""
        if self.options.reverse:
            return slice(offset, offset + self.sizes[0])
        if self.even:
            return slice(offset + self.starts[-2], offset + self.starts[-1])
        ends = [
            torch.arange(self.starts[t] + self.steps.common(t, 1), self.starts[t + 1])
            for t in reversed(range(len(self.sizes)))
        ]
        return offset + torch.cat(ends)

    def run(self) -> tuple[Tensor, Tensor, Tensor, list[Tensor], Kept | None]:
        """Walk all chunks.

        Returns mean and variance of the outputs, the last cells (2, pieces, units), the cells that enter each
        chunk, and what the backward pass of a single chunk needs.
        """
        shape = (len(self.inputs.x_mean), self.units)
        if len(self.chunks) == 1:
            kept = self.chunk(self.chunks[0], None, None, self.carry_beginning)
            own = self.own(self.chunks[0])
            mean, var = (_apart(kept.state, k, own.start, shape) for k in (0, 2))
            last = kept.carry[:, self.last_rows(own.start)] if self.cell.carries == "cell" else kept.carry
            return mean, var, last, [self.carry_beginning], kept
        mean, var = (buffers.empty(self.inputs.x_mean, *shape) for _ in range(2))
        carry, entering = self.carry_beginning, []
        last = self.carry_beginning.clone()
        for steps in self.chunks:
            entering.append(carry)
            kept = self.chunk(steps, mean, var, carry)
            rows, own = self.rows(steps), self.own(steps)
            mean[rows], var[rows] = kept.state[0, own], kept.state[2, own]
            if self.cell.carries == "cell":
                carry = self._follow(steps, kept.carry, last)
        return mean, var, last, entering, None

    def _follow(self, steps: range, carry: Tensor, last: Tensor) -> Tensor:
        """The cells that enter the next chunk; those of pieces that end in this one are written to `last`."""
        first, own = self.rows(steps).start, self.own(steps).start
        for t in steps:
            start = self.starts[t] - first + own
            going_on = self.steps.common(t, 1)
            if going_on == self.sizes[t]:
                continue
            last[:, going_on : self.sizes[t]] = carry[:, start + going_on : start + self.sizes[t]]
        start = self.starts[steps[-1]] - first + own
        kept = carry[:, start : start + self.steps.common(steps[-1], 1)]
        return torch.cat([kept, self.carry_beginning[:, kept.shape[1] :]], 1)

    def chunk(self, steps: range, mean: Tensor | None, var: Tensor | None, cells: Tensor) -> Kept:
        """Walk the steps of a chunk; `mean` and `var` hold the outputs before it, `cells` what enters it."""
        rows, own, size = self.rows(steps), self.own(steps), self.sizes[steps[0]]
        pre = self._input_share(rows)
        state = buffers.empty(pre, 3, pre.shape[1] + size, self.units)
        carry = self.carry_beginning
        if self.cell.carries == "cell":
            carry = buffers.empty(pre, 2, pre.shape[1] + size, self.units)
            self._entrance(carry, own)[:] = cells[:, :size]
        self._enter(steps[0], self._entrance(state, own), mean, var)
        kept = Kept(pre, state, carry, pre.new_empty(0 if self.norms is None else pre.shape[1]))
        products = self.entering_blocks(steps, state[:2])
        if self._product is None:
            self._product = step_product(self.weights, len(self.sizes), self.sizes[0])
        spread = None if self.inputs.w_hh_var is None else self.inputs.w_hh_var.t().contiguous()
        bias_var = self.inputs.bias_var
        late = bias_var[self.given :] if self.apart and bias_var is not None else None
        variances = self.entering_blocks(steps, state[2:]) if self.norms is not None else {}
        advance = self._advance(kept, own)
        carried = self.carried(steps, kept)
        for t in steps:
            size = self.sizes[t]
            units = products[t] if self.even else self.entering_step(t, steps, state, self.beginning)
            recurrent = self._product(units[:2])
            if spread is not None:
                recurrent[1].addmm_(self.square(units[:2]), spread)
            if late is not None:
                recurrent[1][:, -self.apart :] += late
            before = None if self.norms is None else variances[t][0] if self.even else units[2]
            advance(self.starts[t] - rows.start, size, recurrent, carried(t), before)
        return kept

    def _entrance(self, array: Tensor, own: slice) -> Tensor:
        """The rows of `state` or `carry` that enter a chunk."""
        return array[:, own.stop :] if self.options.reverse else array[:, : own.start]

    def _enter(self, t: int, out: Tensor, mean: Tensor | None, var: Tensor | None) -> None:
        """What enters a chunk at its first step t: outputs of the step before, and pieces that begin."""
        common = self.steps.common(t, -1)
        if common:
            assert mean is not None
            assert var is not None
            start = self.starts[self.steps.before(t)]
            rows = slice(start, start + common)
            out[0, :common], out[2, :common] = mean[rows], var[rows]
            out[1, :common] = self.masked(mean[rows], var[rows])
        out[:, common:] = self.beginning[:, common : self.sizes[t]]

    def entering_blocks(self, steps: range, array: Tensor) -> dict[int, Tensor]:
        """For pieces of one length: what enters each step, as views of `state` or `carry`."""
        if not self.even:
            return {}
        blocks = array.split(self.sizes[0], 1)
        return dict(zip(sorted(steps), blocks[1:] if self.options.reverse else blocks[:-1], strict=True))

    def entering_step(self, t: int, steps: range, array: Tensor, beginning: Tensor) -> Tensor:
        """What enters step t for pieces of any lengths, of `state` or `carry`."""
        size, own = self.sizes[t], self.own(steps)
        if t == steps[0]:
            return self._entrance(array, own)
        common = self.steps.common(t, -1)
        before = self.starts[self.steps.before(t)] - self.rows(steps).start + own.start
        carried = array[:, before : before + common]
        return carried if common == size else torch.cat([carried, beginning[:, common:size]], 1)

    def all_entering(self, steps: range, state: Tensor) -> Tensor:
        """Mean and u of what enters the steps of a chunk, row by row beside `pre`."""
        if self.even:
            rows, size = self.own(steps), self.sizes[0]
            return state[:2, size:] if self.options.reverse else state[:2, : rows.stop - size]
        return torch.cat([self.entering_step(t, steps, state, self.beginning)[:2] for t in sorted(steps)], 1)

    def carried(self, steps: range, kept: Kept) -> Callable[[int], tuple[Tensor, Tensor] | None]:
        """For a step: mean and variance of what the cell carries into it."""
        if self.cell.carries == "nothing":
            return lambda t: None
        array, beginning, var = kept.carry, self.carry_beginning, 1
        if self.cell.carries == "hidden":
            array, beginning, var = kept.state, self.beginning, 2
        blocks = self.entering_blocks(steps, array)

        def find(t: int) -> tuple[Tensor, Tensor]:
            entering = blocks[t] if self.even else self.entering_step(t, steps, array, beginning)
            return entering[0], entering[var]

        return find

    def input_noise(self, rows: slice) -> Tensor | None:
        """Variance of the inputs after dropout, None where they are certain."""
        drop, x = self.options.drop_input, self.inputs
        noise = ((1 - drop) * drop) * x.x_mean[rows] ** 2 if drop else None
        if x.x_var is None:
            return noise
        kept = (1 - drop) * x.x_var[rows]
        return kept if noise is None else kept + noise

    def input_square(self, rows: slice) -> Tensor:
        """Second moment of the inputs after dropout."""
        square, var = self.inputs.x_mean[rows] ** 2, self.inputs.x_var
        return (1 - self.options.drop_input) * (square if var is None else square + var[rows])

    @functools.cached_property
    def _input_weights(self) -> tuple[Tensor, Tensor]:
        """(in, out), of the mean and of the noise of the inputs."""
        turned = self.inputs.w_ih.t().contiguous()
        return turned * (1 - self.options.drop_input), turned**2

    def _input_share(self, rows: slice) -> Tensor:
        """The input's share of the pre-synaptic moments, still without the bias."""
        x = self.inputs
        pre = buffers.empty(x.x_mean, 2, rows.stop - rows.start, self.given + self.apart)
        mean, var = pre[0, :, : self.given], pre[1, :, : self.given]
        of_mean, of_noise = self._input_weights
        torch.mm(x.x_mean[rows], of_mean, out=mean)
        noise = self.input_noise(rows)
        if noise is None:
            var.zero_()
        else:
            torch.mm(noise, of_noise, out=var)
        if x.w_ih_var is not None:
            var.addmm_(self.input_square(rows), x.w_ih_var.t())
        if x.bias_var is not None:
            var += x.bias_var[: self.given]
        return pre

    def _advance(
        self, kept: Kept, own: slice
    ) -> Callable[[int, int, Sequence[Tensor], tuple[Tensor, Tensor] | None, Tensor | None], object]:
        """Completes `pre` and takes the cell's step.

        The function takes the step's first row, its size, the recurrent share of the pre-synaptic moments,
        what is carried into the step, and the variances of the units before, for cells that have a `level`.
        """
        pre, state, carry = kept.pre, kept.state[:, own], kept.carry
        carry = carry[:, own] if self.cell.carries == "cell" else carry
        if self.kernel is not None:
            arguments = kernel.Forward(
                self.units,
                kernel.RULES[self.options.rule],
                self.keeps,
                *addresses(pre),
                None,
                None,
                self.bias.data_ptr(),
                state[0].data_ptr(),
                state[2].data_ptr(),
                state[1].data_ptr(),
                *addresses(carry),
                self.options.noise,
                self.keep,
                self.spread,
                *((self.norms.data_ptr(), kept.level.data_ptr()) if self.norms is not None else ()),
            )
            call = self.kernel.forward

            def advance(
                row: int,
                size: int,
                recurrent: Sequence[Tensor],
                carried: tuple[Tensor, Tensor] | None,
                before: Tensor | None,
            ) -> None:
                arguments.rec_m, arguments.rec_v = recurrent[0].data_ptr(), recurrent[1].data_ptr()
                if before is not None:
                    arguments.before_v = before.data_ptr()
                call(arguments, row, size, *kernel.pointers(carried))

            return advance
        pre[:, :, self.given :] = 0

        def by_step(
            row: int,
            size: int,
            recurrent: Sequence[Tensor],
            carried: tuple[Tensor, Tensor] | None,
            before: Tensor | None,
        ) -> None:
            rows, recurring = slice(row, row + size), None
            if before is not None and self.norms is not None:
                kept.level[rows] = level(before, self.options.drop_hidden, self.options.noise)
                recurring = kept.level[rows, None] * self.norms
            for k, share in enumerate(recurrent):
                pre[k, rows, self.apart :] += share
            pre[0, rows] += self.bias
            moments = unchecked_moments(*pre[:, rows])
            h, c = self.cell.step(moments, _pair(carried), self.options.rule, recurring)
            state[0, rows], state[2, rows] = h.mean, h.var + self.options.noise
            state[1, rows] = self.masked(state[0, rows], state[2, rows])
            if c is not None:
                carry[0, rows], carry[1, rows] = c.mean, c.var

        return by_step


def addresses(pair: Tensor) -> tuple[int, int]:
    """Of both halves of a tensor of shape (2, rows, units)."""
    return pair[0].data_ptr(), pair[1].data_ptr()


def _pair(carried: tuple[Tensor, Tensor] | None) -> Moments | None:
    return None if carried is None else unchecked_moments(*carried)


def _bias(inputs: Inputs, length: int) -> Tensor:
    return inputs.w_hh.new_zeros(length) if inputs.bias is None else inputs.bias.contiguous()


def _stacked(mean: Tensor | None, var: Tensor | None, like: Tensor) -> Tensor:
    """(2, pieces, units), of no pieces where there is no cell."""
    if mean is None:
        return like.new_empty(2, 0, like.shape[-1])
    return torch.stack([mean, torch.zeros_like(mean) if var is None else var])


def _apart(state: Tensor, index: int, start: int, shape: Sequence[int]) -> Tensor:
    """Rows of `state`, handed out where they stand, but not as a view.

    Autograd then watches them for changes in place by themselves, as an output that is saved.
    """
    offset = state.storage_offset() + index * state.stride(0) + start * state.stride(1)
    return state.new_empty(0).set_(state.untyped_storage(), offset, tuple(shape), (shape[1], 1))
