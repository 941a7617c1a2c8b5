"""A recurrent layer whose noise is drawn (`method="mask"`, `"gaussian"`), at the cost of its matrix products.

The same function as `reference.layer` for the same draws, which are made before the loop. Autograd sees one
operation, of k moments (1 under "mask", 2 under "gaussian"):

    a_t = pre_t + W e_t                     pre (k, rows, slots * units), W (k, gates * units, units)
    mask:      e_t = d_t o h_{t-1}          z_t = a_t
    gaussian:  e_t = (h_{t-1}, keep drop h_{t-1}^2)
                                            z_t = a_t[0] + sqrt(a_t[1]) s_t
    h_t, c_t = cell(z_t, carried) + n_t

All that lies outside the loop (the input's products, the squares of the weights) is left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional import propagate
from fastdropout.functional.affine import affine
from fastdropout.moments import Moments
from fastdropout.recurrent.cells import Cell, State
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.options import Options, Weights
from fastdropout.recurrent.reference import unit_noise


def sampled_layer(
    cell: Cell, x: Moments, state: State, weights: Weights, options: Options
) -> tuple[Moments, State]:
    """`reference.layer` under a method that draws; returns the outputs and the last state."""
    w_ih, w_hh, bias, _ = weights
    assert isinstance(w_ih, Tensor)
    assert isinstance(w_hh, Tensor)
    keep, gaussian = 1 - options.drop_hidden, options.method == "gaussian"
    loop = _Loop(
        options.sizes, options.reverse, cell=cell, gaussian=gaussian, spread=keep * options.drop_hidden
    )
    given = affine(x, w_ih, None, options.drop_input, options.method)
    added = unit_noise(options.noise, loop, state.h, options.method)
    apart = (cell.slots - cell.gates) * w_hh.shape[1]
    mean, var = (F.pad(t, (0, apart)) for t in (given.mean, given.var))
    if isinstance(bias, Tensor):
        mean = mean + bias
    draws: Tensor | None = None
    if gaussian:
        pre, products = torch.stack([mean, var]), torch.stack([keep * w_hh, w_hh**2])
        first = torch.stack([state.h.mean, propagate.dropout(state.h, options.drop_hidden).var])
        draws = _draw(torch.randn, loop, pre.shape[-1], w_hh)
    else:
        pre, products, first = mean[None], w_hh[None], state.h.mean[None]
        if options.drop_hidden:
            draws = (_draw(torch.rand, loop, w_hh.shape[1], w_hh) >= options.drop_hidden).to(x.dtype)
    cells = None if state.c is None else state.c.mean
    h, last, *last_cells = _Function.apply(
        pre, first, cells, products, draws, None if added is None else added.mean, loop
    )
    end = State(Moments.certain(last), Moments.certain(last_cells[0]) if last_cells else None)
    return Moments.certain(h), end


def _draw(kind: Callable[..., Tensor], steps: Steps, units: int, like: Tensor) -> Tensor:
    """Drawn in the order in which the steps are walked, laid out in the order of the rows."""
    drawn = [kind(steps.sizes[t], units, dtype=like.dtype, device=like.device) for t in steps.order]
    return torch.cat(drawn[:: steps.order.step])


class _Walked(NamedTuple):
    """All steps of a pass, row by row: z, the hidden units, the cells of an LSTM, the deviations of z."""

    z: Tensor
    h: Tensor
    c: Tensor | None
    std: Tensor | None


@dataclass(frozen=True, kw_only=True)
class _Loop(Steps):
    """With what the loop needs beside tensors."""

    cell: Cell
    gaussian: bool
    spread: float
    """keep drop"""

    def entering(self, t: int, h: Tensor, first: Tensor, draws: Tensor | None) -> Tensor:
        """e_t, (k, pieces, units): from the step before, and for pieces that begin, from `first`."""
        common, size = self.common(t, -1), self.sizes[t]
        e = first[:, common:size]
        if common:
            before = h[self.rows(self.before(t))][:common]
            e_before = torch.stack([before, self.spread * before**2]) if self.gaussian else before[None]
            e = e_before if common == size else torch.cat([e_before, e], 1)
        return e if self.gaussian or draws is None else e * draws[self.rows(t)]

    def carried(
        self, t: int, h: Tensor, c: Tensor | None, first: Tensor, cells: Tensor | None
    ) -> Tensor | None:
        """What the cell carries into step t, without a mask."""
        if self.cell.carries == "nothing":
            return None
        steps, beginning = (c, cells) if self.cell.carries == "cell" else (h, first[0])
        assert steps is not None
        assert beginning is not None
        common, size = self.common(t, -1), self.sizes[t]
        if not common:
            return beginning[:size]
        before = steps[self.rows(self.before(t))][:common]
        return before if common == size else torch.cat([before, beginning[common:size]])

    def last(self, steps: Tensor) -> Tensor:
        """The last row of each piece."""
        ends = [steps[self.rows(t)][self.common(t, 1) :] for t in reversed(self.order)]
        return torch.cat([end for end in ends if len(end)])

    def run(
        self, pre: Tensor, first: Tensor, cells: Tensor | None, weights: Tensor, draws: Any, added: Any
    ) -> _Walked:
        """Walk the steps; also as autograd can differentiate it, again and again."""
        turned = weights.transpose(1, 2).contiguous()
        apart = pre.shape[-1] - weights.shape[1]
        units = weights.shape[-1]
        found: dict[int, tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = {}
        h = pre.new_zeros(pre.shape[1], units)
        c = None if cells is None else torch.zeros_like(h)
        differentiable = torch.is_grad_enabled()
        for t in self.order:
            rows = self.rows(t)
            recurrent = _product(self.entering(t, h, first, draws), turned)
            a = pre[:, rows] + (F.pad(recurrent, (apart, 0)) if apart else recurrent)
            std = _std(a[1]) if self.gaussian else None
            z = a[0] if std is None else torch.addcmul(a[0], std, draws[rows])
            carried = self.carried(t, h, c, first, cells)
            y, cell = self._step(z, carried)
            y = y if added is None else y + added[rows]
            found[t] = z, y, cell, std
            h = _written(h, rows, y, differentiable)
            c = c if cell is None or c is None else _written(c, rows, cell, differentiable)
        rows_of_z, deviations = (_stacked([found[t][k] for t in sorted(found)]) for k in (0, 3))
        assert rows_of_z is not None
        return _Walked(rows_of_z, h, c, deviations)

    def _step(self, z: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Of certain values: the plain functions."""
        within = None if carried is None else Moments.certain(carried)
        h, c = self.cell.step(Moments.certain(z), within, "fast")
        return h.mean, None if c is None else c.mean

    def pull(
        self, z: Tensor, y: Tensor | None, carried: Tensor | None, grad: Tensor, grad_cell: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """From the gradients of a step's units and cells to those of z and of what is carried.

        `y` are the units, if they are at hand.
        """
        if self.cell.name == "tanh":
            return torch.ops.aten.tanh_backward(grad, z.tanh() if y is None else y), None
        if self.cell.name == "relu":
            return grad * (z > 0), None
        with torch.enable_grad():
            assert carried is not None
            leaves = [z.detach().requires_grad_(), carried.detach().requires_grad_()]
            h, c = self._step(*leaves)
            made = [(h, grad)] if c is None else [(h, grad), (c, grad_cell)]
            ys, gs = zip(*made, strict=True)
            return torch.autograd.grad(ys, leaves, gs)  # type: ignore[return-value]


def _written(array: Tensor, rows: slice, value: Tensor, differentiable: bool) -> Tensor:
    """With `value` in these rows; in place where autograd does not watch."""
    if differentiable:
        return array.index_put((torch.arange(rows.start, rows.stop, device=array.device),), value)
    array[rows] = value
    return array


def _stacked(parts: list[Any]) -> Tensor | None:
    return None if parts[0] is None else torch.cat(parts)


def _product(e: Tensor, weights: Tensor) -> Tensor:
    """e (k, pieces, in), weights (k, in, out); a batch of one would run on one core."""
    return torch.mm(e[0], weights[0])[None] if len(e) == 1 else torch.bmm(e, weights)


def _std(var: Tensor) -> Tensor:
    # The root has an infinite slope at zero, where the draw does not count.
    positive = var > 0
    return torch.where(positive, var, 1).sqrt() * positive


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        *inputs, loop = args
        walked = loop.run(*inputs)
        ctx.loop = loop
        ctx.save_for_backward(*inputs, *walked)
        outputs = (walked.h, loop.last(walked.h))
        return outputs if walked.c is None else (*outputs, loop.last(walked.c))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        loop, saved = ctx.loop, ctx.saved_tensors
        (pre, first, cells, weights, draws, added), (z, h, c, std) = saved[:6], saved[6:]
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            return _again(ctx, saved[:6], grads)
        grad, grad_last, *grad_cells = grads
        apart = pre.shape[-1] - weights.shape[1]
        grad_pre, grad_first = torch.zeros_like(pre), torch.zeros_like(first)
        entered = pre.new_empty(len(pre), len(h), h.shape[1])
        slope = None if std is None else torch.where(std > 0, draws / (2 * std), 0)
        onward, flow = torch.empty_like(grad_last), torch.zeros_like(grad_last)
        grad_begin = None if cells is None else torch.zeros_like(cells)
        # With noise added the units are found again from z: h - added has lost the digits of 1 - y^2.
        clean = h if added is None else None
        for t in reversed(loop.order):
            rows, size, common = loop.rows(t), loop.sizes[t], loop.common(t, -1)
            going_on = loop.common(t, 1)
            g = grad[rows] + _joined(onward, grad_last, going_on, size)
            g_cell = _joined(flow, grad_cells[0], going_on, size) if grad_cells else None
            carried = loop.carried(t, h, c, first, cells)
            dz, dcarried = loop.pull(z[rows], None if clean is None else clean[rows], carried, g, g_cell)
            grad_pre[0, rows] = dz
            if slope is not None:
                torch.mul(dz, slope[rows], out=grad_pre[1, rows])
            entered[:, rows] = loop.entering(t, h, first, draws)
            e = _product(grad_pre[:, rows, apart:], weights)
            if draws is not None and not loop.gaussian:
                e = e * draws[rows]
            grad_first[:, common:size] = e[:, common:]
            onward[:common] = e[0, :common]
            if loop.gaussian:
                onward[:common].addcmul_(entered[0, rows][:common], e[1, :common], value=2 * loop.spread)
            if dcarried is not None and grad_begin is not None:
                flow[:common], grad_begin[common:size] = dcarried[:common], dcarried[common:]
            elif dcarried is not None:
                onward[:common] += dcarried[:common]
                grad_first[0, common:size] += dcarried[common:]
        grad_weights = torch.bmm(grad_pre[:, :, apart:].transpose(1, 2), entered)
        return grad_pre, grad_first, grad_begin, grad_weights, None, None, None


def _again(ctx: Any, inputs: tuple[Any, ...], grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, by walking the loop under autograd."""
    with torch.enable_grad():
        wanted = [i for i in range(4) if ctx.needs_input_grad[i]]
        walked = ctx.loop.run(*inputs)
        made = [walked.h, ctx.loop.last(walked.h)]
        made += [] if walked.c is None else [ctx.loop.last(walked.c)]
        found = torch.autograd.grad(
            made, [inputs[i] for i in wanted], grads, create_graph=True, allow_unused=True
        )
    by_index = dict(zip(wanted, found, strict=True))
    return (*(by_index.get(i) for i in range(4)), None, None, None)


def _joined(onward: Tensor, last: Tensor, common: int, size: int) -> Tensor:
    """The gradient from the next step for pieces that have one, from the last state for those that end."""
    return onward[:size] if common == size else torch.cat([onward[:common], last[common:size]])
