"""A recurrent layer of moments at the cost of its matrix products, with a backward pass derived by hand.

The same function as `recurrence.layer` under `method="moments"`. What makes it fast:

- the input's products of all steps are two large ones before the loop;
- in the loop, mean and variance of a step are one batched product of two, and one element-wise pass;
- the backward loop has the same two parts; gradients of the weights are two large products after it.

Five numbers are kept for each step, piece and unit: the pre-synaptic moments, and the *state*, which is the
post-synaptic moments and u = keep var + keep drop mean^2, the variance after the mask. Two of them are the
output. With `recompute` only the output is kept, and the rest is computed again in chunks of about
sqrt(steps) steps.

Shapes: `pre` and `state` of a chunk of steps are (2, rows, units), with mean and variance (or u) of the
steps one below the other; `state` has the rows that enter the chunk before its own (behind, in reverse).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastdropout.functional import buffers, kernel
from fastdropout.functional.recurrence import Nonlinearity, activate, layer
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, moments


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


def fits(x: Moments, h_0: Moments, *weights: Any) -> bool:
    """Whether plain tensors with values are given: no tracing, `torch.func`, forward mode or subclass."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    tensors = [t for m in (x, h_0) for t in (m.mean, m._var) if t is not None]
    tensors += [w for w in weights if w is not None]
    if not all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and t.numel() for t in tensors):
        return False
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    return not forward_mode and not torch.is_autocast_enabled(x.device.type)


def fused_layer(
    x: Moments,
    h_0: Moments,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor | None,
    sizes: Sequence[int],
    *,
    drop_input: float = 0.0,
    drop_hidden: float = 0.0,
    noise: float = 0.0,
    nonlinearity: Nonlinearity = "tanh",
    rule: Rule = "fast",
    reverse: bool = False,
    recompute: bool = False,
) -> tuple[Moments, Moments]:
    """`recurrence.layer` under `method="moments"`; returns the outputs and the last ones."""
    options = Options(tuple(sizes), drop_input, drop_hidden, noise, nonlinearity, rule, reverse, recompute)
    tensors = (x.mean, x._var, h_0.mean, h_0._var, w_ih, w_hh, bias)
    mean, var, last_mean, last_var = _Layer.apply(*tensors, options)
    return moments(mean, var), moments(last_mean, last_var)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        *inputs, options = args
        walk = _Walk(inputs, options)
        mean, var, kept = walk.forward()
        ctx.options = options
        if options.recompute or not any(ctx.needs_input_grad):
            kept = ()
        ctx.save_for_backward(*inputs, mean, var, *kept)
        ctx.set_materialize_grads(False)
        last = walk.last_rows
        return mean, var, mean[last].clone(), var[last].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (mean, var), kept = ctx.saved_tensors[:7], ctx.saved_tensors[7:9], ctx.saved_tensors[9:]
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            return (*_by_autograd(inputs, ctx.options, ctx.needs_input_grad, grads), None)
        shapes = [mean.shape] * 2 + [inputs[2].shape] * 2
        given = [mean.new_zeros(s) if g is None else g for g, s in zip(grads, shapes, strict=True)]
        walk = _Walk(inputs, ctx.options)
        gradients = _Gradients(walk, given, ctx.needs_input_grad)
        for steps in reversed(walk.chunks):
            pre, state = kept or walk.chunk_forward(steps, mean, var)
            gradients.add(steps, pre, state)
        return (*gradients.result(), None)


def _by_autograd(
    inputs: Sequence[Any], options: Options, needs: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, through the reference."""
    o, (x_mean, x_var, h_mean, h_var, w_ih, w_hh, bias) = options, inputs
    with torch.enable_grad():
        output, last = layer(
            moments(x_mean, x_var),
            moments(h_mean, h_var),
            w_ih,
            w_hh,
            bias,
            o.sizes,
            drop_input=o.drop_input,
            drop_hidden=o.drop_hidden,
            noise=o.noise,
            nonlinearity=o.nonlinearity,
            rule=o.rule,
            reverse=o.reverse,
        )
        outputs = (output.mean, output.var, last.mean, last.var)
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None and y.requires_grad]
        wanted = [i for i, t in enumerate(inputs) if t is not None and needs[i]]
        found = torch.autograd.grad(
            [y for y, _ in pairs],
            [inputs[i] for i in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    by_index = dict(zip(wanted, found, strict=True))
    return [by_index.get(i) for i in range(len(inputs))]


class _Walk:
    """One call of the layer: the weights as the products need them, and the walk over the steps."""

    def __init__(self, inputs: Sequence[Any], options: Options) -> None:
        self.x_mean, self.x_var, self.h_mean, self.h_var, self.w_ih, self.w_hh, self.bias = inputs
        self.options, self.sizes = options, options.sizes
        self.units = self.w_hh.shape[0]
        self.drop, self.keep = options.drop_hidden, 1 - options.drop_hidden
        # (2, out, in): the probability of being kept is folded into the weights of the mean.
        self.weights = torch.stack([self.w_hh * self.keep, self.w_hh**2])
        self.starts = [0]
        for size in self.sizes:
            self.starts.append(self.starts[-1] + size)
        self.even = self.sizes[0] == self.sizes[-1]
        self.beginning = torch.stack([self.h_mean, self.masked(self.h_mean, self.h_var)])
        order = range(len(self.sizes))
        order = order[::-1] if options.reverse else order
        length = math.isqrt(len(order) - 1) + 1 if options.recompute else len(order)
        self.chunks = [order[i : i + length] for i in range(0, len(order), length)]
        is_fast_tanh = options.nonlinearity == "tanh" and options.rule == "fast"
        on_cpu = self.x_mean.device.type == "cpu"
        self.kernel = kernel.load(self.x_mean.dtype) if is_fast_tanh and on_cpu else None

    def masked(self, mean: Tensor, var: Tensor | None) -> Tensor:
        """u: the variance of hidden units after the mask."""
        u = (self.keep * self.drop) * mean**2
        return u if var is None else u + self.keep * var

    def rows(self, steps: range) -> slice:
        """The rows of a chunk in the outputs."""
        return slice(self.starts[min(steps)], self.starts[max(steps) + 1])

    def neighbour(self, t: int, way: int) -> int:
        """The number of pieces that step t shares with the step walked before (-1) or after (+1) it."""
        other = t - way if self.options.reverse else t + way
        return min(self.sizes[t], self.sizes[other]) if 0 <= other < len(self.sizes) else 0

    @property
    def last_rows(self) -> Tensor | slice:
        """The row of the last step of each piece."""
        if self.options.reverse:
            return slice(0, self.sizes[0])
        if self.even:
            return slice(self.starts[-2], self.starts[-1])
        ends = [
            torch.arange(self.starts[t] + self.neighbour(t, 1), self.starts[t + 1])
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
        pre = self._input_share(self.rows(steps))
        own, size = self.own(steps), self.sizes[steps[0]]
        state = buffers.empty(pre, 2, pre.shape[1] + size, self.units)
        entering = state[:, own.stop :] if self.options.reverse else state[:, : own.start]
        self._enter(steps[0], entering, mean, var)
        blocks = self.entering(steps, state)
        weights = self.weights.transpose(1, 2).contiguous()
        product = pre.new_empty(2, max(self.sizes[t] for t in steps), self.units)
        first = self.rows(steps).start
        for t in steps:
            size = self.sizes[t]
            recurrent = product if size == product.shape[1] else product[:, :size]
            torch.bmm(blocks[t] if self.even else self._entering(t, steps, state), weights, out=recurrent)
            self._post(self.starts[t], first, own.start, size, pre, recurrent, state, var)
        return pre, state

    def _enter(self, t: int, out: Tensor, mean: Tensor | None, var: Tensor) -> None:
        """What enters a chunk at its first step t: outputs of the step before, and pieces that begin."""
        common = self.neighbour(t, -1)
        if common:
            assert mean is not None
            start = self.starts[t + 1 if self.options.reverse else t - 1]
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

    def _entering(self, t: int, steps: range, state: Tensor) -> Tensor:
        """What enters step t for pieces of any lengths."""
        size, own = self.sizes[t], self.own(steps)
        if t == steps[0]:
            return state[:, own.stop :] if self.options.reverse else state[:, : own.start]
        common = self.neighbour(t, -1)
        before = self.starts[t + 1 if self.options.reverse else t - 1] - self.rows(steps).start + own.start
        carried = state[:, before : before + common]
        return carried if common == size else torch.cat([carried, self.beginning[:, common:size]], 1)

    def all_entering(self, steps: range, state: Tensor) -> Tensor:
        """What enters the steps of a chunk, row by row beside `pre`."""
        if self.even:
            rows, size = self.own(steps), self.sizes[0]
            return state[:, size:] if self.options.reverse else state[:, : rows.stop - size]
        return torch.cat([self._entering(t, steps, state) for t in sorted(steps)], 1)

    def input_noise(self, rows: slice) -> Tensor | None:
        """Variance of the inputs after dropout, None where they are certain."""
        drop = self.options.drop_input
        noise = ((1 - drop) * drop) * self.x_mean[rows] ** 2 if drop else None
        if self.x_var is None:
            return noise
        kept = (1 - drop) * self.x_var[rows]
        return kept if noise is None else kept + noise

    def _input_share(self, rows: slice) -> Tensor:
        """The input's share of the pre-synaptic moments."""
        pre = buffers.empty(self.x_mean, 2, rows.stop - rows.start, self.units)
        w = self.w_ih.t() * (1 - self.options.drop_input)
        if self.bias is None:
            torch.mm(self.x_mean[rows], w, out=pre[0])
        else:
            torch.addmm(self.bias, self.x_mean[rows], w, out=pre[0])
        noise = self.input_noise(rows)
        if noise is None:
            pre[1].fill_(self.options.noise)
        else:
            torch.mm(noise, self.w_ih.t() ** 2, out=pre[1])
            if self.options.noise:
                pre[1] += self.options.noise
        return pre

    def _post(
        self,
        row: int,
        first: int,
        offset: int,
        size: int,
        pre: Tensor,
        recurrent: Tensor,
        state: Tensor,
        var: Tensor,
    ) -> None:
        """Add the recurrent share and apply the transfer function, for `size` rows from output row `row`."""
        if self.kernel is not None:
            mean, masked = _addresses(state, row - first + offset)
            self.kernel.forward(
                size * self.units,
                *_addresses(pre, row - first),
                *_addresses(recurrent, 0),
                mean,
                _address(var, row),
                masked,
                self.drop,
            )
            return
        total = pre[:, row - first : row - first + size]
        total += recurrent
        post = activate(moments(total[0], total[1]), self.options.nonlinearity, self.options.rule)
        var[row : row + size] = post.var
        out = state[:, row - first + offset : row - first + offset + size]
        out[0] = post.mean
        out[1] = self.masked(post.mean, post.var)


class _Gradients:
    """The backward walk, chunk by chunk from the end."""

    def __init__(self, walk: _Walk, given: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.walk, self.needs = walk, needs
        self.grad_mean, self.grad_var = given[0].contiguous(), given[1].contiguous()
        self.last = torch.stack([given[2], given[3]])
        units = walk.units
        self.w_hh: Tensor | None = None
        # (in, out): products with the narrow side first are faster.
        self.w_ih_mean, self.w_ih_var = walk.w_ih.new_zeros(2, *walk.w_ih.t().shape)
        self.bias = walk.w_hh.new_zeros(units)
        self.beginning = torch.zeros_like(walk.beginning)
        self.x_mean = torch.empty_like(walk.x_mean) if needs[0] else None
        self.x_var = torch.empty_like(walk.x_mean) if needs[1] and walk.x_var is not None else None
        # The gradient of what enters the step that was walked last, (2, pieces, units).
        self.entering = torch.empty_like(walk.beginning)

    def add(self, steps: range, pre: Tensor, state: Tensor) -> None:
        """Walk a chunk backwards and gather its share of the gradients."""
        walk = self.walk
        sizes, full = walk.sizes, self.entering.shape[1]
        gradient = buffers.empty(pre, *pre.shape)
        first, offset = walk.rows(steps).start, walk.own(steps).start
        for t in reversed(steps):
            size, row = sizes[t], walk.starts[t] - first
            self._post(t, size, pre, state, row, offset, gradient)
            entering = self.entering if size == full else self.entering[:, :size]
            torch.bmm(gradient[:, row : row + size], walk.weights, out=entering)
            common = walk.neighbour(t, -1)
            if common < size:  # pieces that begin here
                self.beginning[:, common:size] = entering[:, common:]
        w_hh = torch.bmm(gradient.transpose(1, 2), walk.all_entering(steps, state))
        self.w_hh = w_hh if self.w_hh is None else self.w_hh + w_hh
        self._add_input(walk.rows(steps), gradient)

    def _post(
        self, t: int, size: int, pre: Tensor, state: Tensor, row: int, offset: int, out: Tensor
    ) -> None:
        """Through the transfer function: from the gradients of a step's outputs to its pre-synaptic ones."""
        walk, start, common = self.walk, self.walk.starts[t], self.walk.neighbour(t, 1)
        if walk.kernel is not None:
            walk.kernel.backward(
                size * walk.units,
                common * walk.units,
                *_addresses(pre, row),
                _addresses(state, row + offset)[0],
                _address(self.grad_mean, start),
                _address(self.grad_var, start),
                *_addresses(self.entering, 0),
                *_addresses(self.last, 0),
                *_addresses(out, row),
                walk.drop,
            )
            return
        rows, ours = slice(row, row + size), slice(start, start + size)
        mean, following = state[0, row + offset : row + offset + common], self.entering[:, :common]
        gradient = torch.stack([self.grad_mean[ours], self.grad_var[ours]])
        gradient[:, common:] += self.last[:, common:size]
        gradient[0, :common] += following[0] + 2 * walk.keep * walk.drop * mean * following[1]
        gradient[1, :common] += walk.keep * following[1]
        with torch.enable_grad():
            m, v = (p.detach().requires_grad_() for p in pre[:, rows])
            post = activate(moments(m, v), walk.options.nonlinearity, walk.options.rule)
            out[0, rows], out[1, rows] = torch.autograd.grad(
                (post.mean, post.var), (m, v), (gradient[0], gradient[1])
            )

    def _add_input(self, rows: slice, gradient: Tensor) -> None:
        walk, drop = self.walk, self.walk.options.drop_input
        x, noise = walk.x_mean[rows], walk.input_noise(rows)
        if self.needs[6]:
            self.bias += gradient[0].sum(0)
        if self.needs[4]:
            self.w_ih_mean.addmm_(x.t(), gradient[0])
            if noise is not None:
                self.w_ih_var.addmm_(noise.t(), gradient[1])
        if self.x_mean is not None:
            found = torch.mm(gradient[0], walk.w_ih * (1 - drop), out=self.x_mean[rows])
            if drop:
                found += (2 * (1 - drop) * drop) * x * (gradient[1] @ walk.w_ih**2)
        if self.x_var is not None:
            torch.mm(gradient[1], (1 - drop) * walk.w_ih**2, out=self.x_var[rows])

    def result(self) -> list[Tensor | None]:
        """Gradients in the order of the inputs."""
        walk = self.walk
        assert self.w_hh is not None
        h_mean = self.beginning[0] + 2 * walk.keep * walk.drop * walk.h_mean * self.beginning[1]
        h_var = None if walk.h_var is None else walk.keep * self.beginning[1]
        w_ih = self.w_ih_mean.t() * (1 - walk.options.drop_input) + 2 * walk.w_ih * self.w_ih_var.t()
        w_hh = self.w_hh[0] * walk.keep + 2 * walk.w_hh * self.w_hh[1]
        found = [self.x_mean, self.x_var, h_mean, h_var, w_ih, w_hh, self.bias]
        return [g if needed else None for g, needed in zip(found, self.needs, strict=False)]


def _address(rows: Tensor, row: int) -> int:
    return rows.data_ptr() + row * rows.stride(0) * rows.element_size()


def _addresses(pair: Tensor, row: int) -> tuple[int, int]:
    """Of a row in both halves of a tensor of shape (2, rows, units)."""
    start = pair.data_ptr() + row * pair.stride(1) * pair.element_size()
    return start, start + pair.stride(0) * pair.element_size()
