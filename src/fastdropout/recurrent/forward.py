"""The forward walk of `fused.py`: the weights as the products need them, and the steps one after the other.

Shapes: `pre` and `state` of a chunk of steps are (2, rows, units), with mean and variance (or u) of the
steps one below the other; `state` has the rows that enter the chunk before its own (behind, in reverse).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastdropout.functional.transfer import Rule
from fastdropout.moments import moments
from fastdropout.recurrent import buffers, kernel
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.reference import Nonlinearity, activate


@dataclass(frozen=True)
class Options:
    """What is not a tensor."""

    sizes: tuple[int, ...]
    drop_input: float
    drop_hidden: float
    noise: float
    nonlinearity: Nonlinearity
    rule: Rule
    reverse: bool
    recompute: bool


class Walk:
    """One call of the layer: the weights as the products need them, and the walk over the steps."""

    def __init__(self, inputs: Sequence[Any], options: Options, weights: Tensor | None = None) -> None:
        self.x_mean, self.x_var, self.h_mean, self.h_var, self.w_ih, self.w_hh, bias, *of_weights = inputs
        self.w_ih_var, self.w_hh_var, self.bias_var = of_weights
        self.options, self.sizes = options, options.sizes
        self.units = self.w_hh.shape[0]
        self.bias = self.w_hh.new_zeros(self.units) if bias is None else bias.contiguous()
        self.drop, self.keep = options.drop_hidden, 1 - options.drop_hidden
        # (2, out, in): the probability of being kept is folded into the weights of the mean.
        self.weights = self.w_hh.new_empty(2, *self.w_hh.shape) if weights is None else weights
        if weights is None:
            torch.mul(self.w_hh, self.keep, out=self.weights[0])
            torch.mul(self.w_hh, self.w_hh, out=self.weights[1])
        self.steps = Steps(options.sizes, options.reverse)
        self.starts = self.steps.starts
        self.even = self.sizes[0] == self.sizes[-1]
        self.beginning = torch.stack([self.h_mean, self.masked(self.h_mean, self.h_var)])
        order = self.steps.order
        length = math.isqrt(len(order) - 1) + 1 if options.recompute else len(order)
        self.chunks = [order[i : i + length] for i in range(0, len(order), length)]
        served = options.nonlinearity == "tanh" and options.rule in kernel.RULES
        on_cpu = self.x_mean.device.type == "cpu"
        self.kernel = kernel.load(self.x_mean.dtype) if served and on_cpu else None

    def masked(self, mean: Tensor, var: Tensor | None) -> Tensor:
        """u: the variance of hidden units after the mask."""
        u = (self.keep * self.drop) * mean**2
        return u if var is None else u + self.keep * var

    def square(self, entering: Tensor) -> Tensor:
        """Second moment of hidden units after the mask, of their mean and u: what noisy weights multiply."""
        return torch.addcmul(entering[1], entering[0], entering[0], value=self.keep**2)

    def rows(self, steps: range) -> slice:
        """The rows of a chunk in the outputs."""
        first, last = sorted((steps[0], steps[-1]))
        return slice(self.starts[first], self.starts[last + 1])

    @property
    def last_rows(self) -> Tensor | slice:
        """The row of the last step of each piece."""
        if self.options.reverse:
            return slice(0, self.sizes[0])
        if self.even:
            return slice(self.starts[-2], self.starts[-1])
        ends = [
            torch.arange(self.starts[t] + self.steps.common(t, 1), self.starts[t + 1])
            for t in reversed(range(len(self.sizes)))
        ]
        return torch.cat(ends)

    def forward(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The outputs, and what the backward pass of a single chunk needs: `pre` and `state`."""
        shape = (len(self.x_mean), self.units)
        var = buffers.empty(self.x_mean, *shape)
        if len(self.chunks) == 1:
            pre, state = self.chunk_forward(self.chunks[0], None, var)
            # The mean is handed out where it stands in `state`, but not as a view: autograd watches it for
            # changes in place by itself, as an output that is saved.
            offset = self.own(self.chunks[0]).start * self.units
            mean = state.new_empty(0).set_(state.untyped_storage(), offset, shape, (self.units, 1))
            return mean, var, (pre, state)
        mean = buffers.empty(self.x_mean, *shape)
        for steps in self.chunks:
            _, state = self.chunk_forward(steps, mean, var)
            mean[self.rows(steps)] = state[0, self.own(steps)]
        return mean, var, ()

    def own(self, steps: range) -> slice:
        """The rows of a chunk in its `state`, beside those that enter it."""
        rows, entering = self.rows(steps), self.sizes[steps[0]]
        offset = 0 if self.options.reverse else entering
        return slice(offset, offset + rows.stop - rows.start)

    def chunk_forward(self, steps: range, mean: Tensor | None, var: Tensor) -> tuple[Tensor, Tensor]:
        """Walk the steps of a chunk and write their variances; `mean` holds the outputs before it, if any."""
        rows, own, size = self.rows(steps), self.own(steps), self.sizes[steps[0]]
        pre = self._input_share(rows)
        state = buffers.empty(pre, 2, pre.shape[1] + size, self.units)
        entering = state[:, own.stop :] if self.options.reverse else state[:, : own.start]
        self._enter(steps[0], entering, mean, var)
        blocks = self.entering(steps, state)
        weights = self.weights.transpose(1, 2).contiguous()
        spread = None if self.w_hh_var is None else self.w_hh_var.t().contiguous()
        product = pre.new_empty(2, max(self.sizes[t] for t in steps), self.units)
        post = self._post(pre, product, state[:, own], var[rows])
        for t in steps:
            size = self.sizes[t]
            recurrent = product if size == product.shape[1] else product[:, :size]
            units = blocks[t] if self.even else self.entering_step(t, steps, state)
            torch.bmm(units, weights, out=recurrent)
            if spread is not None:
                recurrent[1].addmm_(self.square(units), spread)
            post(self.starts[t] - rows.start, size)
        return pre, state

    def _enter(self, t: int, out: Tensor, mean: Tensor | None, var: Tensor) -> None:
        """What enters a chunk at its first step t: outputs of the step before, and pieces that begin."""
        common = self.steps.common(t, -1)
        if common:
            assert mean is not None
            start = self.starts[self.steps.before(t)]
            rows = slice(start, start + common)
            out[0, :common] = mean[rows]
            out[1, :common] = self.masked(mean[rows], var[rows])
        out[:, common:] = self.beginning[:, common : self.sizes[t]]

    def entering(self, steps: range, state: Tensor) -> dict[int, Tensor]:
        """For pieces of one length: what enters each step, as views of `state`."""
        if not self.even:
            return {}
        blocks = state.split(self.sizes[0], 1)
        inside = sorted(steps)
        return dict(zip(inside, blocks[1:] if self.options.reverse else blocks[:-1], strict=True))

    def entering_step(self, t: int, steps: range, state: Tensor) -> Tensor:
        """What enters step t for pieces of any lengths."""
        size, own = self.sizes[t], self.own(steps)
        if t == steps[0]:
            return state[:, own.stop :] if self.options.reverse else state[:, : own.start]
        common = self.steps.common(t, -1)
        before = self.starts[self.steps.before(t)] - self.rows(steps).start + own.start
        carried = state[:, before : before + common]
        return carried if common == size else torch.cat([carried, self.beginning[:, common:size]], 1)

    def all_entering(self, steps: range, state: Tensor) -> Tensor:
        """What enters the steps of a chunk, row by row beside `pre`."""
        if self.even:
            rows, size = self.own(steps), self.sizes[0]
            return state[:, size:] if self.options.reverse else state[:, : rows.stop - size]
        return torch.cat([self.entering_step(t, steps, state) for t in sorted(steps)], 1)

    def input_noise(self, rows: slice) -> Tensor | None:
        """Variance of the inputs after dropout, None where they are certain."""
        drop = self.options.drop_input
        noise = ((1 - drop) * drop) * self.x_mean[rows] ** 2 if drop else None
        if self.x_var is None:
            return noise
        kept = (1 - drop) * self.x_var[rows]
        return kept if noise is None else kept + noise

    def input_square(self, rows: slice) -> Tensor:
        """Second moment of the inputs after dropout."""
        square = self.x_mean[rows] ** 2
        return (1 - self.options.drop_input) * (square if self.x_var is None else square + self.x_var[rows])

    def _input_share(self, rows: slice) -> Tensor:
        """The input's share of the pre-synaptic moments, still without the bias."""
        pre = buffers.empty(self.x_mean, 2, rows.stop - rows.start, self.units)
        torch.mm(self.x_mean[rows], self.w_ih.t() * (1 - self.options.drop_input), out=pre[0])
        noise = self.input_noise(rows)
        if noise is None:
            pre[1].zero_()
        else:
            torch.mm(noise, self.w_ih.t() ** 2, out=pre[1])
        if self.w_ih_var is not None:
            pre[1].addmm_(self.input_square(rows), self.w_ih_var.t())
        if self.bias_var is not None:
            pre[1] += self.bias_var
        return pre

    def _post(
        self, pre: Tensor, recurrent: Tensor, state: Tensor, var: Tensor
    ) -> Callable[[int, int], object]:
        """Completes `pre` and applies the transfer function; takes a step's first row and its size."""
        if self.kernel is not None:
            arguments = kernel.Forward(
                self.units,
                kernel.RULES[self.options.rule],
                *addresses(pre),
                *addresses(recurrent),
                self.bias.data_ptr(),
                state[0].data_ptr(),
                var.data_ptr(),
                state[1].data_ptr(),
                self.options.noise,
                self.drop,
            )
            return functools.partial(self.kernel.forward, arguments)

        def post(row: int, size: int) -> None:
            rows = slice(row, row + size)
            pre[:, rows] += recurrent[:, :size]
            pre[0, rows] += self.bias
            y = activate(moments(*pre[:, rows]), self.options.nonlinearity, self.options.rule)
            var[rows] = y.var + self.options.noise
            state[0, rows], state[1, rows] = y.mean, self.masked(y.mean, var[rows])

        return post


def addresses(pair: Tensor) -> tuple[int, int]:
    """Of both halves of a tensor of shape (2, rows, units)."""
    return pair[0].data_ptr(), pair[1].data_ptr()
