"""A neural autoregressive distribution estimator of moments (Larochelle & Murray, 2011).

The features of a binary vector v are predicted one after the other, each from those before it:

    p(v_i = 1 | v_<i) = sigmoid(l_i),   l_i = V_i . z_i + b_i,   z_i = d' o f(a_i),   a_i = c + W (d o v_<i)

with masks d of the features and d' of the hidden units, which are integrated out: every feature that is one
and precedes i adds keep W_j to E[a_i] and keep drop W_j^2 to V[a_i].

The hidden state changes only behind a feature that is one, so a vector with k ones has k + 1 distinct states.
Those are computed, all of them meet V in one product, and every feature picks the entry of its own state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fastdropout.functional import propagate, transfer
from fastdropout.functional.affine import Method
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, unchecked_moments

Nonlinearity = Literal["tanh", "sigmoid"]
NONLINEARITIES: tuple[str, ...] = get_args(Nonlinearity)


@dataclass(frozen=True)
class Options:
    """What is dropped, and how it is integrated or drawn."""

    drop_input: float = 0.0
    """Probability that a feature is zeroed on its way to the hidden units."""
    drop_hidden: float = 0.0
    """Probability that a hidden unit is zeroed on its way to the logits."""
    nonlinearity: Nonlinearity = "tanh"
    rule: Rule = "fast"
    method: Method = "moments"
    """`"mask"` draws a mask of the features and, for every distinct state, one of the hidden units;
    `"gaussian"` draws the hidden units before f, and the logits, from their moments."""


def logits(
    v: Tensor,
    hidden: Moments,
    visible: Moments,
    w_in: Tensor,
    w_out: Tensor,
    options: Options,
    *,
    by: Dropped | None = None,
) -> Moments:
    """Moments of l_i of every feature, given the features before it.

    Shapes: `v` (rows, features) of zeros and ones; `hidden`, the c above, (rows, units); `visible`, the b
    above, (rows, features); `w_in`, W, (units, features); `w_out`, V, (features, units). The result is
    (rows, features). `by` computes the states instead of `dropped_states`.
    """
    states = States.of(v)
    z = (by or dropped_states)(hidden, w_in, states, options)
    picked = propagate.linear(z, w_out).rearrange(lambda x: x.gather(0, states.index))
    out = propagate.add_independent(picked, visible)
    return Moments.certain(out.sample()) if options.method == "gaussian" else out


class Walk:
    """The same, one feature after the other: for drawing, and as the reference of `logits`."""

    def __init__(
        self, hidden: Moments, visible: Moments, w_in: Tensor, w_out: Tensor, options: Options
    ) -> None:
        self._pre, self._visible = hidden, visible
        self._w_in, self._w_out, self._options = w_in, w_out, options
        self._logits: Moments | None = None  # Of all features, until a feature that is one changes the state.

    def logit(self, i: int) -> Moments:
        """Moments of l_i of every row, (rows,), given what was observed."""
        if self._logits is None:
            out = propagate.linear(_dropped(self._pre, self._options), self._w_out)
            self._logits = propagate.add_independent(out, self._visible)
        return self._logits[:, i]

    def observe(self, i: int, value: Tensor) -> None:
        """Take note of feature i of every row, (rows,) of zeros and ones."""
        if not value.any():
            return
        step = propagate.dropout(Moments.certain(value[:, None]), self._options.drop_input)
        added = propagate.linear(step, self._w_in[:, i : i + 1])
        self._pre, self._logits = propagate.add_independent(self._pre, added), None


@dataclass(frozen=True)
class States:
    """Where the distinct states of all rows lie: those of no ones first, then those of one, and so on.

    Rows are sorted by their number of ones, so that the states of s ones are the first `sizes[s]` rows.
    """

    order: Tensor
    """(rows,): the row that stands at each place."""
    sizes: list[int]
    ones: Tensor
    """(states - rows,): which feature leads into each state but the first of a row."""
    index: Tensor
    """(rows, features): the state that each feature is predicted from."""

    @classmethod
    def of(cls, v: Tensor) -> States:
        """Of vectors of zeros and ones, (rows, features)."""
        on = v != 0
        counts = on.sum(-1)
        order = counts.argsort(descending=True, stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=v.device))
        most = int(counts.max()) if len(counts) else 0
        sizes = [len(v), *(int(n) for n in (counts[:, None] > torch.arange(most, device=v.device)).sum(0))]
        starts = torch.tensor([0, *sizes], device=v.device).cumsum(0)
        before = on.cumsum(-1) - on.long()
        row, feature = on.nonzero(as_tuple=True)
        ones = torch.empty_like(feature)
        ones[starts[before[row, feature] + 1] - len(v) + place[row]] = feature
        return cls(order, sizes, ones, starts[before] + place[:, None])


Dropped = Callable[[Moments, Tensor, States, Options], Moments]


def dropped_states(hidden: Moments, w_in: Tensor, states: States, options: Options) -> Moments:
    """Moments of the hidden units of all states behind their masks, z above, (states, units)."""
    return _dropped(_prefix_sums(hidden, w_in, states, options), options)


def _prefix_sums(hidden: Moments, w_in: Tensor, states: States, options: Options) -> Moments:
    """E[a] and V[a] of all states, (states, units)."""
    first, drop = hidden.rearrange(lambda x: x[states.order]), options.drop_input
    one = w_in.new_ones(len(states.ones), 1)
    if options.method == "mask":
        z = Moments.certain(propagate.sampled_dropout(one, drop))
    else:
        z = propagate.dropout(Moments.certain(one), drop)
    mean = _sums(first.mean, w_in.t()[states.ones] * z.mean, states.sizes)
    if first.is_certain and z.is_certain:
        return Moments.certain(mean)
    return unchecked_moments(mean, _sums(first.var, (w_in**2).t()[states.ones] * z.var, states.sizes))


def _sums(first: Tensor, steps: Tensor, sizes: list[int]) -> Tensor:
    """Every state is the one before it and a step."""
    out, at = [first], 0
    for size in sizes[1:]:
        out.append(out[-1][:size] + steps[at : at + size])
        at += size
    return torch.cat(out)


def _dropped(pre: Moments, options: Options) -> Moments:
    """d' o f(a)."""
    if options.method == "moments":
        apply = transfer.tanh if options.nonlinearity == "tanh" else transfer.sigmoid
        return propagate.dropout(apply(pre, options.rule), options.drop_hidden)
    f = torch.tanh if options.nonlinearity == "tanh" else torch.sigmoid
    post = f(pre.sample() if options.method == "gaussian" else pre.mean)
    if options.method == "mask":
        return Moments.certain(propagate.sampled_dropout(post, options.drop_hidden))
    return propagate.dropout(Moments.certain(post), options.drop_hidden)
