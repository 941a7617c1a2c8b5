"""One recurrent layer of any cell, unrolled: the readable reference, for every method and option."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.affine import Method, affine
from fastdropout.functional.propagate import add_independent
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.recurrent.cells import Cell, State
from fastdropout.recurrent.layout import Steps
from fastdropout.recurrent.options import Options, Weight, Weights
from fastdropout.serving import serving


def layer(
    cell: Cell, x: Moments, state: State, weights: Weights, options: Options, place: Tensor | None = None
) -> tuple[Moments, State]:
    """One layer, with fresh masks d, d' at every step.

        a_t = W_ih (d o x_t) + W_hh (d' o h_{t-1}) + b,   h_t = cell(a_t) + noise

    Shapes: `x` holds the steps one below the other, as in a `PackedSequence`: (sum(sizes), inputs); the units
    of `state` are (sizes[0], units). Returns the hidden units of all steps, (sum(sizes), units), and the last
    state of each piece. `reverse` walks steps from the end, each piece from its own. `place`, (sum(sizes),
    units), is added to the hidden units after the mask.
    """
    steps = Steps(options.sizes, options.reverse)
    method = options.method
    given = affine(x, weights.w_ih, None, options.drop_input, method)
    bias = as_weight(weights.bias)
    added = unit_noise(options.noise, steps, state.h, method)
    outputs: list[Moments] = [given] * len(options.sizes)
    ended: list[State] = []
    here = _rows(state, 0, options.sizes[steps.order[0]])
    for t in steps.order:
        size, rows, length = options.sizes[t], steps.rows(t), len(here.h)
        if size < length:
            ended.append(_rows(here, size, length))
            here = _rows(here, 0, size)
        elif size > length:
            here = _joined([here, _rows(state, length, size)])
        recurrent = affine(here.h, weights.w_hh, None, options.drop_hidden, method)
        if place is not None:
            recurrent = recurrent + F.linear(place[rows], mean_of(weights.w_hh))
        pre = cell.join(given[rows], recurrent)
        pre = pre if bias is None else _shifted(pre, bias)
        recurring = None
        if method == "moments":
            recurring = cell.recurring(here.h, mean_of(weights.w_hh), options.drop_hidden, options.noise)
        here = step(cell, pre, here, options.rule, method, recurring)
        if weights.w_hr is not None:
            here = State(affine(here.h, weights.w_hr, None, 0.0, method), here.c)
        if added is not None:
            here = State(add_independent(here.h, added[rows]), here.c)
        outputs[t] = here.h
    return Moments.cat(outputs), _joined([here, *reversed(ended)])


def step(
    cell: Cell,
    pre: Moments,
    before: State,
    rule: Rule,
    method: Method = "moments",
    recurring: Tensor | None = None,
) -> State:
    """The cell's step in moments; for the methods that draw, of certain values made from a draw."""
    carried = before.c if cell.carries == "cell" else before.h if cell.carries == "hidden" else None
    if method == "moments":
        return cell.step(pre, carried, rule, recurring)
    drawn = pre.sample() if method == "gaussian" else pre.mean
    # Of certain values all rules but the paper's are the plain functions.
    certain = None if carried is None else Moments.certain(carried.mean)
    return cell.step(Moments.certain(drawn), certain, "fast")


def unit_noise(noise: float, steps: Steps, like: Moments, method: Method) -> Moments | None:
    """What is added to the hidden units of all steps: its variance, or a draw for the methods that draw."""
    if not noise:
        return None
    shape = (steps.starts[-1], like.shape[-1])
    zeros = torch.zeros(shape, dtype=like.dtype, device=like.device)
    if method == "moments":
        if serving.sources is not None:
            return serving.sources.gaussian(zeros, zeros + noise)
        return unchecked_moments(zeros, zeros + noise)
    return Moments.certain(torch.randn_like(zeros) * math.sqrt(noise))


def mean_of(weight: Weight) -> Tensor:
    """Of a certain or a Gaussian weight."""
    return weight.mean if isinstance(weight, Moments) else weight


def as_weight(weight: Weight | None) -> Moments | None:
    """A weight as Moments."""
    return Moments.certain(weight) if isinstance(weight, Tensor) else weight


def _shifted(pre: Moments, bias: Moments) -> Moments:
    """With the bias; one bias serves all pieces."""
    return pre + bias.mean if bias.is_certain else add_independent(pre, bias.expand(*pre.shape))


def _rows(state: State, start: int, stop: int) -> State:
    return State(state.h[start:stop], None if state.c is None else state.c[start:stop])


def _joined(states: list[State]) -> State:
    cells = [s.c for s in states if s.c is not None]
    return State(Moments.cat([s.h for s in states]), Moments.cat(cells) if cells else None)
