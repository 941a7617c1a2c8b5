"""A recurrent layer of moments at the cost of its matrix products, with a backward pass derived by hand.

The same function as `reference.layer` under `method="moments"`, for every cell. What makes it fast:

- the input's products of all steps are two large ones before the loop;
- in the loop, mean and variance of all gates are two products with packed weights, and one element-wise pass;
- the backward loop has the same two parts; gradients of the weights are two large products after it.

For each step, piece and unit it keeps the pre-synaptic moments of every slot, the output's mean and variance,
its variance after the mask, and an LSTM's cell. With `recompute` only the output is kept, and the cells that
enter a chunk; the rest is computed again in chunks of about sqrt(steps) steps.

Noisy weights (V[W] > 0) add a third product to a step: V[W] times the units' second moment after the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastdropout.functional.propagate import dropout
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.recurrent.backward import Backward
from fastdropout.recurrent.cells import Cell, State
from fastdropout.recurrent.forward import Forward, Inputs, Kept
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.options import Options, Weight, Weights
from fastdropout.recurrent.reference import layer
from fastdropout.serving import serving


def supports(x: Moments, state: State, weights: Weights) -> bool:
    """Whether plain tensors with values and of one dtype are given, and no projection.

    Not while tracing, where `integrate()` follows every mask, under `torch.func`, in forward mode, under
    autocast, or for subclasses of Tensor: the reference serves these.
    """
    given = [t for w in (x, *state, *weights) for t in _pair(w) if t is not None]
    return weights.w_hr is None and are_plain(given)


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors have values, one dtype and one device, and nothing but autograd follows them."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return False
    x = tensors[0]
    plain = all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and t.numel() for t in tensors)
    alike = all(t.dtype == x.dtype and t.device == x.device for t in tensors)
    return plain and alike and not torch.is_autocast_enabled(x.device.type)


def traces(weights: Weights, options: Options) -> bool:
    """Whether the fused loop can tell a trace of its noise: of masks, not of noisy weights or units."""
    certain = not any(isinstance(w, Moments) for w in weights)
    return certain and not options.noise and options.method == "moments"


def traced_layer(
    cell: Cell, x: Moments, state: State, weights: Weights, options: Options
) -> tuple[Moments, State]:
    """`fused_layer` that tells `serving.sources` of its masks; those of all steps are one source.

    The backward pass has the gradient of the masked units of every step at hand.
    """
    sources = serving.sources
    assert sources is not None
    x, options = dropout(x, options.drop_input), replace(options, drop_input=0.0)
    if sources.predicts:  # the loop would compute gradients of the weights in every pass
        weights = Weights._make(w.detach() if isinstance(w, Tensor) else w for w in weights)
        options = replace(options, frozen=True)
    if not options.drop_hidden:
        return fused_layer(cell, x, state, weights, options)
    steps = Steps(options.sizes, options.reverse)
    place = torch.zeros(steps.starts[-1], state.h.shape[-1], dtype=x.dtype, device=x.device)
    place.requires_grad_()
    output, last = fused_layer(cell, x, state, weights, options, place)
    entering = steps.entering_units(output, state.h)
    spread = (1 - options.drop_hidden) * options.drop_hidden
    sources.record("mask", place, spread * (entering.mean**2 + entering.var))
    return output, last


def fused_layer(
    cell: Cell,
    x: Moments,
    state: State,
    weights: Weights,
    options: Options,
    place: Tensor | None = None,
) -> tuple[Moments, State]:
    """`reference.layer` under `method="moments"`; returns the outputs and the last state."""
    inputs = inputs_of(x, state, weights, place)
    check_shapes(cell, inputs)
    keeps = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    mean, var, last_mean, last_var, *cells = _Layer.apply(*inputs, cell, options, keeps)
    return unchecked_moments(mean, var), State(
        unchecked_moments(last_mean, last_var), unchecked_moments(*cells) if cells else None
    )


def inputs_of(x: Moments, state: State, weights: Weights, place: Tensor | None = None) -> Inputs:
    """All tensors of a layer, one by one."""
    means, variances = zip(*map(_pair, (weights.w_ih, weights.w_hh, weights.bias)), strict=True)
    return Inputs(*_pair(x), *_pair(state.h), *_pair(state.c), *means, *variances, place)  # type: ignore[arg-type,call-arg]


def check_shapes(cell: Cell, inputs: Inputs) -> None:
    """Refuse weights that do not fit together: a kernel would read behind their end."""
    units = inputs.w_hh.shape[-1]
    rows, slots = cell.gates * units, (cell.slots * units,)
    fitting = {
        "w_ih": (rows, inputs.x_mean.shape[-1]),
        "w_hh": (rows, units),
        "bias": slots,
        "w_ih_var": (rows, inputs.x_mean.shape[-1]),
        "w_hh_var": (rows, units),
        "bias_var": slots,
    }
    for name, shape in fitting.items():
        given = getattr(inputs, name)
        if given is not None and given.shape != shape:
            raise RuntimeError(f"{name} must have the shape {shape}, got {tuple(given.shape)}")


def _pair(value: Weight | None) -> tuple[Tensor | None, Tensor | None]:
    """The mean of a certain or a random value, and its variance, if any."""
    return (value.mean, value._var) if isinstance(value, Moments) else (value, None)


def _value(mean: Any, var: Tensor | None) -> Any:
    """The reverse of `_pair`."""
    return mean if var is None else unchecked_moments(mean, var)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        inputs, (cell, options, keeps) = Inputs(*args[:-3]), args[-3:]
        walk = Forward(cell, inputs, options, keeps=keeps)
        mean, var, cells, entering, kept = walk.run()
        ctx.cell, ctx.options, ctx.weights, ctx.chunks = cell, options, walk.weights, len(entering)
        if options.recompute or not keeps:
            kept = None
        ctx.save_for_backward(*inputs, mean, var, *entering, *(kept or ()))
        ctx.set_materialize_grads(False)
        rows = walk.last_rows()
        last = (mean[rows].clone(), var[rows].clone())
        return (mean, var, *last, *cells.clone()) if cell.carries == "cell" else (mean, var, *last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        n, saved = len(Inputs._fields), ctx.saved_tensors
        inputs, (mean, var), rest = Inputs(*saved[:n]), saved[n : n + 2], saved[n + 2 :]
        entering, kept = rest[: ctx.chunks], rest[ctx.chunks :]
        needs = Inputs(*ctx.needs_input_grad[:n])
        if torch.is_grad_enabled():  # somebody wants to differentiate this again
            return (*_by_autograd(ctx.cell, inputs, ctx.options, needs, grads), None, None, None)
        walk = Forward(ctx.cell, inputs, ctx.options, ctx.weights)
        shapes = [mean.shape] * 2 + [inputs.h_mean.shape] * 4
        grads = (*grads, None, None)[:6]
        given = [mean.new_zeros(s) if g is None else g for g, s in zip(grads, shapes, strict=True)]
        last, last_cells = torch.stack(given[2:4]), torch.stack(given[4:])
        backward = Backward(walk, given[0], given[1], last, last_cells, needs)
        found = gather(backward, mean, var, entering, Kept(*kept) if kept else None)
        return (*found, None, None, None)


def gather(
    backward: Backward, mean: Tensor, var: Tensor, entering: Sequence[Tensor], kept: Kept | None
) -> Inputs:
    """Walk all chunks backwards, of the outputs and what was kept or else is computed again."""
    walk = backward.forward
    for steps, cells in zip(reversed(walk.chunks), reversed(entering), strict=True):
        backward.add(steps, walk.chunk(steps, mean, var, cells) if kept is None else kept)
    return backward.result()


def _by_autograd(
    cell: Cell, inputs: Inputs, options: Options, needs: Inputs, grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, through the reference."""
    with torch.enable_grad():
        # Fresh names for the same tensors: two inputs may be one tensor, whose gradient would come twice.
        i = Inputs(*(None if t is None else t.view_as(t) for t in inputs))  # type: ignore[arg-type]
        weights = Weights(_value(i.w_ih, i.w_ih_var), _value(i.w_hh, i.w_hh_var), _value(i.bias, i.bias_var))
        state = State(unchecked_moments(i.h_mean, i.h_var))
        if i.c_mean is not None:
            state = state._replace(c=unchecked_moments(i.c_mean, i.c_var))
        output, last = layer(cell, unchecked_moments(i.x_mean, i.x_var), state, weights, options, i.place)
        made = [output.mean, output.var, *_pair(last.h), *_pair(last.c)]
        pairs = [(y, g) for y, g in zip(made, grads, strict=False) if y is not None and g is not None]
        pairs = [(y, g) for y, g in pairs if y.requires_grad]
        wanted = [k for k, needed in enumerate(needs) if needed and i[k] is not None]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if pairs:
            ys, gs = zip(*pairs, strict=True)
            sources = [t for k in wanted if (t := i[k]) is not None]
            found = torch.autograd.grad(ys, sources, gs, create_graph=True, allow_unused=True)
    by_index = dict(zip(wanted, found, strict=True))
    return [by_index.get(k) for k in range(len(inputs))]
