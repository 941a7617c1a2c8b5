"""The hidden states of a NADE by the kernel of the tanh cell: sums, tanh and mask in one pass over memory.

From one state of a vector to the next is a step of a recurrence whose product is the identity: the step's
share is a column of W, the recurrent share the state before it. So the states of s ones are one call, and

    a_s = a_{s-1} + W_i,   V[a_s] = V[a_{s-1}] + keep drop W_i^2,   z_s = d o tanh(a_s)

The gradient is pulled back through tanh and mask by the same kernel for all states at once, and then added up
from the last state of a vector to its first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastdropout.functional.nade import Options, States
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.recurrent import buffers, kernel
from fastdropout.recurrent.cells import CELLS
from fastdropout.recurrent.fused import are_plain


def supports(hidden: Moments, w_in: Tensor, options: Options) -> bool:
    """Whether there is a kernel for what is given: moments of tanh, of plain tensors, some of them random."""
    if options.method != "moments" or options.nonlinearity != "tanh":
        return False
    if hidden.is_certain and not options.drop_input:
        return False
    if not are_plain([hidden.mean, hidden.var, w_in]):
        return False
    return kernel.serving(CELLS["tanh"], options.rule, w_in) is not None


def dropped_states(hidden: Moments, w_in: Tensor, states: States, options: Options) -> Moments:
    """`functional.nade.dropped_states`, at the speed of the kernel."""
    return unchecked_moments(*_DroppedStates.apply(hidden.mean, hidden.var, w_in, states, options))


class _DroppedStates(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor, w_in: Tensor, states: States, options: Options
    ) -> tuple[Tensor, Tensor]:
        rows, units = mean.shape
        total = rows + len(states.ones)
        keep, spread = 1 - options.drop_input, (1 - options.drop_input) * options.drop_input
        pre_m, pre_v, out_m, out_v, out_u = (buffers.empty(mean, total, units) for _ in range(5))
        columns = w_in.t()
        for pre, first, table in (
            (pre_m, mean, columns * keep),
            (pre_v, var, columns**2 * spread),
        ):
            torch.index_select(first, 0, states.order, out=pre[:rows])
            torch.index_select(table.contiguous(), 0, states.ones, out=pre[rows:])
        zeros = torch.zeros(rows, units, dtype=mean.dtype)
        bias = torch.zeros(units, dtype=mean.dtype)
        serving = kernel.serving(CELLS["tanh"], options.rule, mean)
        assert serving is not None
        before, at = (zeros, zeros), 0
        for size in states.sizes:
            arguments = kernel.Forward(
                units,
                kernel.RULES[options.rule],
                True,  # the next states begin with these
                *(x.data_ptr() for x in (pre_m, pre_v, *before, bias, out_m, out_v, out_u)),
                0,
                0,
                0.0,
                1 - options.drop_hidden,
                (1 - options.drop_hidden) * options.drop_hidden,
            )
            serving.forward(arguments, at, size, 0, 0)
            before, at = (pre_m[at:], pre_v[at:]), at + size
        ctx.save_for_backward(pre_m, pre_v, out_m, w_in)
        ctx.states, ctx.options = states, options
        dropped = torch.mul(
            out_m, 1 - options.drop_hidden, out=out_v
        )  # The variance before the mask is done.
        return dropped, out_u

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_var: Tensor) -> tuple[Tensor | None, ...]:
        pre_m, pre_v, out_m, w_in = ctx.saved_tensors
        states, options = ctx.states, ctx.options
        total, units = pre_m.shape
        rows = states.sizes[0]
        keep = 1 - options.drop_hidden
        d_m, d_v = buffers.empty(pre_m, total, units), buffers.empty(pre_m, total, units)
        given = grad_mean * keep, grad_var.contiguous()
        # Nothing but what goes through the mask; one row of zeros a row would do, but the kernel strides.
        zeros = torch.zeros_like(pre_m)
        addresses = (pre_m, pre_v, out_m, pre_m, pre_m, zeros, zeros, *given, zeros, zeros)
        arguments = kernel.Backward(
            units,
            kernel.RULES[options.rule],
            *(x.data_ptr() for x in addresses),
            *(x.data_ptr() for x in (zeros, zeros, zeros, zeros, d_m, d_v)),
            keep,
            keep * options.drop_hidden,
        )
        serving = kernel.serving(CELLS["tanh"], options.rule, pre_m)
        assert serving is not None
        serving.backward(arguments, 0, total, total, 0, 0)
        end = total
        for size, above in zip(reversed(states.sizes), reversed(states.sizes[:-1]), strict=False):
            at = end - size
            for d in (d_m, d_v):
                d[at - above : at - above + size] += d[at:end]
            end = at
        back = torch.empty_like(states.order).scatter_(0, states.order, torch.arange(rows))
        by_mean, by_var = (d[:rows].index_select(0, back) for d in (d_m, d_v))
        shares = [
            torch.zeros(w_in.shape[::-1], dtype=d.dtype).index_add_(0, states.ones, d[rows:])
            for d in (d_m, d_v)
        ]
        stay, drop = 1 - options.drop_input, options.drop_input
        by_weight = (stay * shares[0] + 2 * stay * drop * shares[1] * w_in.t()).t()
        return by_mean, by_var, by_weight, None, None
