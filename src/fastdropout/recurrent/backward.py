"""A recurrent layer of moments at the cost of its matrix products, with a backward pass derived by hand.

The same function as `recurrence.layer` under `method="moments"`. What makes it fast:

- the input's products of all steps are two large ones before the loop;
- in the loop, mean and variance of a step are one batched product of two, and one element-wise pass;
- the backward loop has the same two parts; gradients of the weights are two large products after it.

Five numbers are kept for each step, piece and unit: the pre-synaptic moments, and the *state*, which is the
post-synaptic moments and u = keep var + keep drop mean^2, the variance after the mask. Two of them are the
output. With `recompute` only the output is kept, and the rest is computed again in chunks of about
sqrt(steps) steps.

Noisy weights (V[W] > 0) add a third product to a step: V[W] times the units' second moment after the mask,
u + keep^2 mean^2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, moments
from fastdropout.recurrent import buffers, kernel
from fastdropout.recurrent.forward import Options, Walk, addresses
from fastdropout.recurrent.reference import Nonlinearity, activate, layer


def fits(x: Moments, h_0: Moments, *weights: Any) -> bool:
    """Whether plain tensors with values are given: no tracing, `torch.func`, forward mode or subclass."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    tensors = [t for m in (x, h_0) for t in (m.mean, m._var) if t is not None]
    tensors += [t for w in weights for t in _pair(w) if t is not None]
    if not all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and t.numel() for t in tensors):
        return False
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    return not forward_mode and not torch.is_autocast_enabled(x.device.type)


def _pair(weight: Tensor | Moments | None) -> tuple[Tensor | None, Tensor | None]:
    """The mean of a certain or a Gaussian weight, and its variance, if any."""
    return (weight.mean, weight._var) if isinstance(weight, Moments) else (weight, None)


def fused_layer(
    x: Moments,
    h_0: Moments,
    w_ih: Tensor | Moments,
    w_hh: Tensor | Moments,
    bias: Tensor | Moments | None,
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
    means, variances = zip(*map(_pair, (w_ih, w_hh, bias)), strict=True)
    tensors = (x.mean, x._var, h_0.mean, h_0._var, *means, *variances)
    mean, var, last_mean, last_var = _Layer.apply(*tensors, options)
    return moments(mean, var), moments(last_mean, last_var)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        *inputs, options = args
        walk = Walk(inputs, options)
        mean, var, kept = walk.forward()
        ctx.options, ctx.weights = options, walk.weights
        if options.recompute or not any(ctx.needs_input_grad):
            kept = ()
        ctx.save_for_backward(*inputs, mean, var, *kept)
        ctx.set_materialize_grads(False)
        last = walk.last_rows
        return mean, var, mean[last].clone(), var[last].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, n = ctx.saved_tensors, len(ctx.needs_input_grad) - 1
        inputs, (mean, var), kept = saved[:n], saved[n : n + 2], saved[n + 2 :]
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            return (*_by_autograd(inputs, ctx.options, ctx.needs_input_grad, grads), None)
        shapes = [mean.shape] * 2 + [inputs[2].shape] * 2
        given = [mean.new_zeros(s) if g is None else g for g, s in zip(grads, shapes, strict=True)]
        walk = Walk(inputs, ctx.options, ctx.weights)
        gradients = _Gradients(walk, given, ctx.needs_input_grad)
        for steps in reversed(walk.chunks):
            pre, state = kept or walk.chunk_forward(steps, mean, var)
            gradients.add(steps, pre, state)
        return (*gradients.result(), None)


def _by_autograd(
    inputs: Sequence[Any], options: Options, needs: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, through the reference."""
    o, (x_mean, x_var, h_mean, h_var, *weights) = options, inputs
    w_ih, w_hh, bias = (
        m if v is None else moments(m, v) for m, v in zip(weights[:3], weights[3:], strict=True)
    )
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


class _Gradients:
    """The backward walk, chunk by chunk from the end."""

    def __init__(self, walk: Walk, given: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.walk, self.needs = walk, needs
        self.grad_mean, self.grad_var = given[0].contiguous(), given[1].contiguous()
        self.last = torch.stack([given[2], given[3]])
        units = walk.units
        self.w_hh: Tensor | None = None
        # (in, out): products with the narrow side first are faster.
        self.w_ih_mean, self.w_ih_var = walk.w_ih.new_zeros(2, *walk.w_ih.t().shape)
        self.bias = walk.w_hh.new_zeros(2, units)
        self.w_ih_noise = None if walk.w_ih_var is None else torch.zeros_like(self.w_ih_mean)
        self.w_hh_noise = None if walk.w_hh_var is None else torch.zeros_like(walk.w_hh)
        self.beginning = torch.zeros_like(walk.beginning)
        self.x_mean = torch.empty_like(walk.x_mean) if needs[0] else None
        self.x_var = torch.empty_like(walk.x_mean) if needs[1] and walk.x_var is not None else None
        # The gradient of what enters the step that was walked last, (2, pieces, units).
        self.entering = torch.empty_like(walk.beginning)

    def add(self, steps: range, pre: Tensor, state: Tensor) -> None:
        """Walk a chunk backwards and gather its share of the gradients."""
        walk, full = self.walk, self.entering.shape[1]
        rows = walk.rows(steps)
        gradient = buffers.empty(pre, *pre.shape)
        pull = self._pull(rows, pre, state[0, walk.own(steps)], gradient)
        inside = sorted(steps)
        parts = gradient.split([walk.sizes[t] for t in inside], 1)
        blocks = dict(zip(inside, parts, strict=True))
        for t in reversed(steps):
            size, common = walk.sizes[t], walk.steps.common(t, -1)
            pull(walk.starts[t] - rows.start, size, walk.steps.common(t, 1))
            entering = self.entering if size == full else self.entering[:, :size]
            torch.bmm(blocks[t], walk.weights, out=entering)
            if walk.w_hh_var is not None:
                self._through_square(
                    entering, blocks[t][1] @ walk.w_hh_var, walk.entering_step(t, steps, state)
                )
            if common < size:  # pieces that begin here
                self.beginning[:, common:size] = entering[:, common:]
        units = walk.all_entering(steps, state)
        w_hh = torch.bmm(gradient.transpose(1, 2), units)
        self.w_hh = w_hh if self.w_hh is None else self.w_hh.add_(w_hh)
        if self.w_hh_noise is not None:
            self.w_hh_noise.addmm_(gradient[1].t(), walk.square(units))
        self._add_input(rows, gradient)

    def _through_square(self, entering: Tensor, gradient: Tensor, units: Tensor) -> None:
        """Add the gradient of `walk.square(units)` to that of the units, mean and u."""
        entering[0].addcmul_(units[0], gradient, value=2 * self.walk.keep**2)
        entering[1] += gradient

    def _pull(
        self, rows: slice, pre: Tensor, out: Tensor, gradient: Tensor
    ) -> Callable[[int, int, int], object]:
        """From the gradients of a step's outputs to those of its pre-synaptic moments.

        The function takes the step's first row in the chunk, its size, and how many pieces have a next step.
        """
        walk, following, last = self.walk, self.entering, self.last
        given = self.grad_mean[rows], self.grad_var[rows]
        if walk.kernel is not None:
            arguments = kernel.Backward(
                walk.units,
                kernel.RULES[walk.options.rule],
                *addresses(pre),
                out.data_ptr(),
                given[0].data_ptr(),
                given[1].data_ptr(),
                *addresses(following),
                *addresses(last),
                *addresses(gradient),
                walk.drop,
            )
            return functools.partial(walk.kernel.backward, arguments)

        def pull(row: int, size: int, common: int) -> None:
            here, goes_on = slice(row, row + size), slice(row, row + common)
            g_mean, g_var = (
                g[here] + torch.cat([g.new_zeros(common, walk.units), h[common:size]])
                for g, h in zip(given, last, strict=True)
            )
            g_mean[:common] += following[0, :common]
            g_mean[:common] += 2 * walk.keep * walk.drop * out[goes_on] * following[1, :common]
            g_var[:common] += walk.keep * following[1, :common]
            with torch.enable_grad():
                m, v = (p.detach().requires_grad_() for p in pre[:, here])
                y = activate(moments(m, v), walk.options.nonlinearity, walk.options.rule)
                found = torch.autograd.grad((y.mean, y.var), (m, v), (g_mean, g_var))
            gradient[0, here], gradient[1, here] = found

        return pull

    def _add_input(self, rows: slice, gradient: Tensor) -> None:
        walk, drop = self.walk, self.walk.options.drop_input
        x, noise = walk.x_mean[rows], walk.input_noise(rows)
        if self.needs[6] or self.needs[9]:
            self.bias += gradient.sum(1)
        if self.w_ih_noise is not None:
            self.w_ih_noise.addmm_(walk.input_square(rows).t(), gradient[1])
        if self.needs[4]:
            self.w_ih_mean.addmm_(x.t(), gradient[0])
            if noise is not None:
                self.w_ih_var.addmm_(noise.t(), gradient[1])
        if self.x_mean is not None:
            found = torch.mm(gradient[0], walk.w_ih * (1 - drop), out=self.x_mean[rows])
            if drop:
                found += (2 * (1 - drop) * drop) * x * (gradient[1] @ walk.w_ih**2)
            if walk.w_ih_var is not None:
                found += (2 * (1 - drop)) * x * (gradient[1] @ walk.w_ih_var)
        if self.x_var is not None:
            squares = walk.w_ih**2 if walk.w_ih_var is None else walk.w_ih**2 + walk.w_ih_var
            torch.mm(gradient[1], (1 - drop) * squares, out=self.x_var[rows])

    def result(self) -> list[Tensor | None]:
        """Gradients in the order of the inputs."""
        walk = self.walk
        assert self.w_hh is not None
        h_mean = self.beginning[0] + 2 * walk.keep * walk.drop * walk.h_mean * self.beginning[1]
        h_var = None if walk.h_var is None else walk.keep * self.beginning[1]
        w_ih = self.w_ih_mean.t() * (1 - walk.options.drop_input)
        w_ih.addcmul_(walk.w_ih, self.w_ih_var.t(), value=2)
        w_hh = (self.w_hh[0] * walk.keep).addcmul_(walk.w_hh, self.w_hh[1], value=2)
        w_ih_noise = None if self.w_ih_noise is None else self.w_ih_noise.t()
        means = [self.x_mean, self.x_var, h_mean, h_var, w_ih, w_hh, self.bias[0]]
        found = [*means, w_ih_noise, self.w_hh_noise, self.bias[1]]
        return [g if needed else None for g, needed in zip(found, self.needs, strict=False)]
