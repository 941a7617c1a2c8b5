"""A recurrent layer whose noise is drawn (`method="mask"`, `"gaussian"`), at the cost of its matrix products.

The same function as `recurrence.layer` for the same draws, which are made before the loop. Autograd sees one
operation, of k moments (1 under "mask", 2 under "gaussian"):

    a_t = pre_t + W e_t                     pre (k, rows, units), W (k, units, units)
    mask:      e_t = d_t o h_{t-1}          h_t = f(a_t) + n_t
    gaussian:  e_t = (h_{t-1}, keep drop h_{t-1}^2)
                                            h_t = f(a_t[0] + sqrt(a_t[1]) s_t) + n_t

All that lies outside the loop (the input's products, the squares of the weights) is left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastdropout.functional import propagate
from fastdropout.functional.affine import Method, affine
from fastdropout.moments import Moments
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.reference import Nonlinearity, unit_noise


def drawn_layer(
    x: Moments,
    h_0: Moments,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor | None,
    sizes: Sequence[int],
    *,
    method: Method,
    drop_input: float = 0.0,
    drop_hidden: float = 0.0,
    noise: float = 0.0,
    nonlinearity: Nonlinearity = "tanh",
    reverse: bool = False,
) -> tuple[Moments, Moments]:
    """`recurrence.layer` under a method that draws; returns the outputs and the last ones."""
    given = affine(x, w_ih, bias, drop_input, method)
    added = unit_noise(noise, sizes, w_hh, method)
    keep = 1 - drop_hidden
    steps = _DrawnSteps(
        tuple(sizes), reverse, method == "gaussian", nonlinearity == "tanh", keep * drop_hidden
    )
    draws: Tensor | None
    if method == "gaussian":
        pre, weights = torch.stack([given.mean, given.var]), torch.stack([keep * w_hh, w_hh**2])
        first = torch.stack([h_0.mean, propagate.dropout(h_0, drop_hidden).var])
        draws = _draw(torch.randn, steps, w_hh)
    else:
        pre, weights, first = given.mean[None], w_hh[None], h_0.mean[None]
        draws = (_draw(torch.rand, steps, w_hh) >= drop_hidden).to(x.dtype) if drop_hidden else None
    h, last = _Loop.apply(pre, first, weights, draws, None if added is None else added.mean, steps)
    return Moments.certain(h), Moments.certain(last)


def _draw(kind: Callable[..., Tensor], steps: Steps, like: Tensor) -> Tensor:
    """Drawn in the order in which the steps are walked, laid out in the order of the rows."""
    drawn = [kind(steps.sizes[t], len(like), dtype=like.dtype, device=like.device) for t in steps.order]
    return torch.cat(drawn[:: steps.order.step])


@dataclass(frozen=True)
class _DrawnSteps(Steps):
    """With what the loop needs beside tensors."""

    gaussian: bool
    tanh: bool
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

    def last(self, h: Tensor) -> Tensor:
        """The last h of each piece."""
        ends = [h[self.rows(t)][self.common(t, 1) :] for t in reversed(self.order)]
        return torch.cat([end for end in ends if len(end)])


def _product(e: Tensor, weights: Tensor) -> Tensor:
    """e (k, pieces, in), weights (k, in, out); a batch of one would run on one core."""
    return torch.mm(e[0], weights[0])[None] if len(e) == 1 else torch.bmm(e, weights)


def _replay(
    pre: Tensor,
    first: Tensor,
    weights: Tensor,
    draws: Tensor | None,
    added: Tensor | None,
    steps: _DrawnSteps,
) -> tuple[Tensor, Tensor]:
    """The loop as autograd can differentiate it again and again."""
    turned = weights.transpose(1, 2)
    h = torch.zeros_like(pre[0])
    for t in steps.order:
        rows = steps.rows(t)
        a = pre[:, rows] + _product(steps.entering(t, h, first, draws), turned)
        z = a[0] + _std(a[1]) * draws[rows] if steps.gaussian else a[0]  # type: ignore[index]
        y = torch.tanh(z) if steps.tanh else torch.relu(z)
        y = y if added is None else y + added[rows]
        h = h.index_put((torch.arange(rows.start, rows.stop, device=h.device),), y)
    return h, steps.last(h)


def _std(var: Tensor) -> Tensor:
    # The root has an infinite slope at zero, where the draw does not count.
    positive = var > 0
    return torch.where(positive, var, 1).sqrt() * positive


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        pre, first, weights, draws, added, steps = args
        h, turned = torch.empty_like(pre[0]), weights.transpose(1, 2).contiguous()
        std = torch.empty_like(h) if steps.gaussian else None
        for t in steps.order:
            rows = steps.rows(t)
            a = _product(steps.entering(t, h, first, draws), turned).add_(pre[:, rows])
            if std is not None:
                torch.sqrt(a[1], out=std[rows])
                a[0].addcmul_(std[rows], draws[rows])
            torch.tanh(a[0], out=h[rows]) if steps.tanh else torch.clamp(a[0], min=0, out=h[rows])
            if added is not None:
                h[rows] += added[rows]
        ctx.steps = steps
        ctx.save_for_backward(pre, first, weights, draws, added, h, std)
        return h, steps.last(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        steps, (pre, first, weights, draws, added, h, std) = ctx.steps, ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            with torch.enable_grad():
                inputs = (pre, first, weights)
                wanted = [i for i in range(3) if ctx.needs_input_grad[i]]
                found = torch.autograd.grad(
                    _replay(*inputs, draws, added, steps),
                    [inputs[i] for i in wanted],
                    (grad, grad_last),
                    create_graph=True,
                )
            by_index = dict(zip(wanted, found, strict=True))
            return (*(by_index.get(i) for i in range(3)), None, None, None)
        grad_pre, grad_first, entered = torch.empty_like(pre), torch.zeros_like(first), torch.empty_like(pre)
        slope = None if std is None else torch.where(std > 0, draws / (2 * std), 0)
        carried = torch.empty_like(grad_last)
        clean = h if added is None else h - added
        through = torch.ops.aten.tanh_backward if steps.tanh else _relu_backward
        for t in reversed(steps.order):
            rows, size, common = steps.rows(t), steps.sizes[t], steps.common(t, -1)
            going_on = steps.common(t, 1)
            g = grad[rows] + (
                carried[:size] if going_on == size else _joined(carried, grad_last, going_on, size)
            )
            grad_pre[0, rows] = through(g, clean[rows])
            if slope is not None:
                torch.mul(grad_pre[0, rows], slope[rows], out=grad_pre[1, rows])
            entered[:, rows] = steps.entering(t, h, first, draws)
            e = _product(grad_pre[:, rows], weights)
            if draws is not None and not steps.gaussian:
                e *= draws[rows]
            grad_first[:, common:size] = e[:, common:]
            carried[:common] = e[0, :common]
            if steps.gaussian:
                carried[:common].addcmul_(entered[0, rows][:common], e[1, :common], value=2 * steps.spread)
        grad_weights = torch.bmm(grad_pre.transpose(1, 2), entered)
        return grad_pre, grad_first, grad_weights, None, None, None


def _joined(carried: Tensor, last: Tensor, common: int, size: int) -> Tensor:
    """The gradient from the next step for pieces that have one, from the last state for those that end."""
    return torch.cat([carried[:common], last[common:size]])


def _relu_backward(g: Tensor, h: Tensor) -> Tensor:
    return g * (h > 0)
