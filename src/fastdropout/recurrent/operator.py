"""The fused layer as one operator of torch, for `torch.compile` and `torch.export`.

Both follow every torch function of a model. Of the fused loop they would see thousands, and calls of a kernel
that they cannot follow; as one operator the layer is one node of their graph, with the eager layer's speed.
Eager calls do not pass through here: `fused.fused_layer` is the same pass without the operator's door.

A program that `torch.export` saved names `fastdropout::layer`: import `fastdropout` before it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastdropout.moments import Moments, unchecked_moments
from fastdropout.recurrent.backward import Backward
from fastdropout.recurrent.cells import CELLS, Cell, State
from fastdropout.recurrent.forward import Forward, Inputs, Kept
from fastdropout.recurrent.fused import check_shapes, gather, inputs_of
from fastdropout.recurrent.options import Options, Weights

_COUNT = len(Inputs._fields) - 1
"""Of tensors: all but `place`, which is of a trace, and nothing is traced in a compiled graph."""
_TENSORS = ", ".join(
    f"Tensor{'?' if 'None' in str(kind) else ''} {name}"
    for name, kind in list(Inputs.__annotations__.items())[:_COUNT]
)
_KEPT = _COUNT + 2 + len(Kept._fields)
_GRADS = _KEPT + 4
_OPTIONS = (
    "SymInt[] sizes, str cell, float drop_input, float drop_hidden, float noise, str rule, bool reverse, "
    "bool recompute"
)


def supports(x: Moments, state: State, weights: Weights, options: Options) -> bool:
    """Whether the operator serves in a graph that is being compiled; else the reference is unrolled there."""
    if weights.w_hr is not None or options.method != "moments":
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled(x.device.type):
        return False
    given = [t for t in inputs_of(x, state, weights) if t is not None]
    return all(t.dtype == x.dtype and t.device == x.device and 0 not in t.shape for t in given)


def operator_layer(
    cell: Cell, x: Moments, state: State, weights: Weights, options: Options
) -> tuple[Moments, State]:
    """`fused.fused_layer` as one node of a graph.

    `options.sizes` may be the one size that all steps have, so that their number can stay open.
    """
    inputs = inputs_of(x, state, weights)
    check_shapes(cell, inputs)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    plain = (options.drop_input, options.drop_hidden, options.noise, options.rule)
    mean, var, last, cells, *_ = _layer(
        *inputs[:_COUNT], list(options.sizes), cell.name, *plain, options.reverse, options.recompute, keep
    )
    end = State(unchecked_moments(last[0], last[1]))
    if cell.carries == "cell":
        end = end._replace(c=unchecked_moments(cells[0], cells[1]))
    return unchecked_moments(mean, var), end


def _own(gradient: Tensor | None) -> Tensor:
    """Row by row, as the graph expects it, in memory that no other output shares."""
    assert gradient is not None
    alone = gradient.untyped_storage().nbytes() == gradient.nbytes
    return (
        gradient
        if alone and gradient.is_contiguous()
        else gradient.clone(memory_format=torch.contiguous_format)
    )


def _options(rows: int, given: Sequence[Any]) -> tuple[Cell, Options]:
    """Of the arguments in `_OPTIONS`."""
    sizes, cell, drop_input, drop_hidden, noise, rule, reverse, recompute = given
    sizes = tuple(sizes) * (rows // sizes[0]) if len(sizes) == 1 else tuple(sizes)
    return CELLS[cell], Options(sizes, drop_input, drop_hidden, noise, rule, "moments", reverse, recompute)


@torch.library.custom_op(
    "fastdropout::layer",
    mutates_args=(),
    schema=f"({_TENSORS}, {_OPTIONS}, bool keep) -> "
    "(Tensor mean, Tensor var, Tensor last, Tensor cells, "
    "Tensor pre, Tensor state, Tensor carry, Tensor level)",
)
def _layer(*args: Any) -> tuple[Tensor, ...]:
    """All steps; with `keep` also what the backward pass needs, which is empty without and to recompute."""
    given, keep = Inputs(*args[:_COUNT]), args[-1]
    cell, options = _options(len(given.x_mean), args[_COUNT:-1])
    walk = Forward(cell, given, options)
    mean, var, cells, _, kept = walk.run()
    rows = walk.last_rows()
    last, cells = torch.stack([mean[rows], var[rows]]), cells.clone()
    if kept is not None:  # outputs of an operator may not share memory
        mean, var = mean.clone(), var.clone()
    if kept is None or options.recompute or not keep:
        kept = Kept(*(mean.new_empty(0) for _ in Kept._fields))
    elif cell.carries != "cell":
        kept = kept._replace(carry=mean.new_empty(0))
    return mean, var, last, cells, *kept


@_layer.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    given, keep = Inputs(*args[:_COUNT]), args[-1]
    sizes, name, *_, reverse, recompute = args[_COUNT:-1]
    cell, x, units, rows = CELLS[name], given.x_mean, given.w_hh.shape[1], given.x_mean.shape[0]
    kept: list[tuple[int, ...]] = [(0,), (0,), (0,), (0,)]
    if keep and not recompute:
        beside = rows + (sizes[-1] if reverse else sizes[0])
        kept[:2] = [(2, rows, cell.slots * units), (3, beside, units)]
        if cell.carries == "cell":
            kept[2] = (2, beside, units)
        if cell.returning is not None:
            kept[3] = (rows,)
    ends = [(2, sizes[0], units), (2, sizes[0] if cell.carries == "cell" else 0, units)]
    return tuple(x.new_empty(shape) for shape in ((rows, units), (rows, units), *ends, *kept))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    mean, var, _, _, *kept = output
    ctx.options = inputs[_COUNT:-1]
    ctx.save_for_backward(*inputs[:_COUNT], mean, var, *kept)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:_COUNT])
    found = iter(_layer_backward(*ctx.saved_tensors, *grads[:4], *ctx.options, needs))
    others = len(ctx.needs_input_grad) - _COUNT
    return *(next(found) if needed else None for needed in needs), *[None] * others


_layer.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op(
    "fastdropout::layer_backward",
    mutates_args=(),
    schema=f"({_TENSORS}, Tensor mean, Tensor var, Tensor pre, Tensor state, Tensor carry, Tensor level, "
    "Tensor? grad_mean, Tensor? grad_var, Tensor? grad_last, Tensor? grad_cells, "
    f"{_OPTIONS}, bool[] needs) -> Tensor[]",
)
def _layer_backward(*args: Any) -> list[Tensor]:
    """The gradients of the inputs that need one."""
    given, (mean, var, *kept), grads = Inputs(*args[:_COUNT]), args[_COUNT:_KEPT], args[_KEPT:_GRADS]
    cell, options = _options(len(given.x_mean), args[_GRADS:-1])
    walk = Forward(cell, given, options)
    if options.recompute:
        # The cells that enter the chunks are not kept, as their number is open while a graph is compiled.
        entering = walk.run()[3] if cell.carries == "cell" else [walk.carry_beginning] * len(walk.chunks)
        walked = None
    else:
        entering, walked = [walk.carry_beginning], Kept(*kept)
        if cell.carries != "cell":
            walked = walked._replace(carry=walk.carry_beginning)
    shapes = [mean.shape] * 2 + [(2, *given.h_mean.shape)] * 2
    made = [mean.new_zeros(s) if g is None else g for g, s in zip(grads, shapes, strict=True)]
    if cell.carries != "cell":
        made[3] = mean.new_zeros(shapes[3])
    needs = Inputs._make([*args[-1], False])
    backward = Backward(walk, made[0], made[1], made[2].contiguous(), made[3].contiguous(), needs)
    # A cell without a kernel is differentiated by autograd, which an operator's inside is hidden from.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False):
        found = gather(backward, mean, var, entering, walked)
    return [_own(g) for g, needed in zip(found, args[-1], strict=False) if needed]


@_layer_backward.register_fake
def _(*args: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, needed in zip(args[:_COUNT], args[-1], strict=True) if needed]
