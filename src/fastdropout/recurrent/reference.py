"""One recurrent layer, unrolled: the readable reference, for every method and option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fastdropout.functional import transfer
from fastdropout.functional.affine import Method, affine
from fastdropout.functional.propagate import add_independent
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, moments

Nonlinearity = Literal["tanh", "relu"]


def activate(pre: Moments, nonlinearity: Nonlinearity, rule: Rule, method: Method = "moments") -> Moments:
    """Post-synaptic moments; for the methods that draw, a certain value made from a draw."""
    if method == "moments":
        return transfer.tanh(pre, rule) if nonlinearity == "tanh" else transfer.relu(pre)
    drawn = pre.sample() if method == "gaussian" else pre.mean
    return Moments.certain(torch.tanh(drawn) if nonlinearity == "tanh" else torch.relu(drawn))


def unit_noise(noise: float, sizes: Sequence[int], like: Tensor, method: Method) -> Moments | None:
    """What is added to the hidden units of all steps: its variance, or a draw for the methods that draw."""
    if not noise:
        return None
    zeros = torch.zeros(sum(sizes), like.shape[0], dtype=like.dtype, device=like.device)
    if method == "moments":
        return moments(zeros, zeros + noise)
    return Moments.certain(torch.randn_like(zeros) * math.sqrt(noise))


def layer(
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
    method: Method = "moments",
    reverse: bool = False,
) -> tuple[Moments, Moments]:
    """h_t = f(W_ih (d o x_t) + W_hh (d' o h_{t-1}) + b) + noise, with fresh masks d, d' at every step.

    Shapes: `x` holds the steps one below the other, as in a `PackedSequence`: (sum(sizes), inputs), where
    `sizes` are the batch sizes of the steps, never growing; `h_0` is (sizes[0], units), `w_hh` square.
    Returns all post-synaptic units, (sum(sizes), units), and the last ones of each piece, shaped as `h_0`.
    `noise` is the variance of a Gaussian added to every post-synaptic unit. `reverse` walks steps from the
    end, each piece from its own.
    """
    pre = affine(x, w_ih, bias, drop_input, method)
    added = unit_noise(noise, sizes, w_hh.mean if isinstance(w_hh, Moments) else w_hh, method)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    steps = range(len(sizes))
    outputs: list[Moments] = [pre] * len(sizes)
    ended: list[Moments] = []
    h = h_0[: sizes[-1] if reverse else sizes[0]]
    for t in reversed(steps) if reverse else steps:
        size = sizes[t]
        if size < len(h):
            ended.append(h[size:])
            h = h[:size]
        elif size > len(h):
            h = Moments.cat([h, h_0[len(h) : size]])
        a = add_independent(pre[starts[t] : starts[t + 1]], affine(h, w_hh, None, drop_hidden, method))
        h = activate(a, nonlinearity, rule, method)
        if added is not None:
            h = add_independent(h, added[starts[t] : starts[t + 1]])
        outputs[t] = h
    return Moments.cat(outputs), Moments.cat([h, *reversed(ended)])
