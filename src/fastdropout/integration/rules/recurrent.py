"""Recurrent layers by the engine of our own ones; cells, and what it does not serve, out of other rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional as F

from fastdropout.integration.context import active
from fastdropout.integration.registry import rule
from fastdropout.moments import Moments, as_moments
from fastdropout.recurrent import cells, fused
from fastdropout.recurrent.cells import CELLS
from fastdropout.recurrent.options import Options, Weights

State = tuple[Any, ...]
# Takes W_ih x + b_ih, the state, W_hh and b_hh.
Step = Callable[[Any, State, Any, Any], State]


def tanh_step(a: Any, state: State, w_hh: Any, b_hh: Any) -> State:
    """h = tanh(a + W h)."""
    return (torch.tanh(a + F.linear(state[0], w_hh, b_hh)),)


def relu_step(a: Any, state: State, w_hh: Any, b_hh: Any) -> State:
    """h = max(a + W h, 0)."""
    return (torch.relu(a + F.linear(state[0], w_hh, b_hh)),)


def gru_step(a: Any, state: State, w_hh: Any, b_hh: Any) -> State:
    """h = (1 - z) n + z h, n = tanh(a_n + r c_n)."""
    h = state[0]
    a_r, a_z, a_n = _gates(a, 3)
    c_r, c_z, c_n = _gates(F.linear(h, w_hh, b_hh), 3)
    r, z = torch.sigmoid(a_r + c_r), torch.sigmoid(a_z + c_z)
    return (torch.lerp(torch.tanh(a_n + r * c_n), h, z),)


def lstm_step(a: Any, state: State, w_hh: Any, b_hh: Any) -> State:
    """c = f c + i g, h = o tanh(c)."""
    h, c = state
    i, f, g, o = _gates(a + F.linear(h, w_hh, b_hh), 4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gates(a: Any, n: int) -> Any:
    # The gradient of chunk and split adds as many whole tensors as there are parts; this one concatenates.
    return torch.split_with_sizes(a, [a.shape[-1] // n] * n, -1)


STEPS: dict[str, Step] = {"rnn_tanh": tanh_step, "rnn_relu": relu_step, "gru": gru_step, "lstm": lstm_step}


def run_layer(
    step: Step, x: Any, state: State, weights: Sequence[Any], sizes: Sequence[int], reverse: bool
) -> tuple[Any, State]:
    """One layer and direction, on rows laid out as in a `PackedSequence`.

    Shapes: `x` is (sum(sizes), inputs), the state's parts (sizes[0], units). Returns all outputs, shape
    (sum(sizes), units), and the last state of each piece.
    """
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    pieces = torch.split_with_sizes(F.linear(x, w_ih, b_ih), list(sizes))
    outputs: list[Any] = list(pieces)
    ended: list[State] = []
    first = sizes[-1] if reverse else sizes[0]
    now: State = tuple(part[:first] for part in state)
    for t in reversed(range(len(sizes))) if reverse else range(len(sizes)):
        length = now[0].shape[0]
        if sizes[t] < length:
            ended.append(tuple(part[sizes[t] :] for part in now))
            now = tuple(part[: sizes[t]] for part in now)
        elif sizes[t] > length:
            more = tuple(part[length : sizes[t]] for part in state)
            now = tuple(torch.cat([part, rest]) for part, rest in zip(now, more, strict=True))
        now = step(pieces[t], now, w_hh, b_hh)
        if w_hr is not None:  # the projection of an LSTM
            now = (F.linear(now[0], w_hr), *now[1:])
        outputs[t] = now[0]
    last = tuple(torch.cat([part, *(e[i] for e in reversed(ended))]) for i, part in enumerate(now))
    return torch.cat(outputs), last


def fused_layer(
    func: Any, x: Any, state: State, weights: Sequence[Any], sizes: Sequence[int], reverse: bool
) -> tuple[Moments, State] | None:
    """`run_layer` by the engine of our own recurrent modules; None where it does not serve."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    if w_hr is not None or any(isinstance(w, Moments) for w in weights):
        return None  # noisy weights are traced step by step
    cell = CELLS[func.__name__.removeprefix("rnn_")]
    if active().predicts:  # the engine would compute gradients of the weights in every pass
        w_ih, w_hh, b_ih, b_hh = (None if w is None else w.detach() for w in (w_ih, w_hh, b_ih, b_hh))

    def run(x: Any, *state: Any) -> tuple[Moments, State] | None:
        start = cells.State(*map(as_moments, state))
        bias = None if b_ih is None else cell.bias(b_ih, b_hh)
        own = Weights(cell.input_weight(w_ih), w_hh, bias)
        if not fused.supports(as_moments(x), start, own):
            return None
        options = Options(tuple(sizes), reverse=reverse, frozen=active().predicts)
        output, last = fused.fused_layer(cell, as_moments(x), start, own, options)
        return output, tuple(part for part in last if part is not None)

    return active().module(run, (x, *state), {})


def _noisy(*args: Any, **_: Any) -> bool:
    """Whether dropout between layers makes noise of plain tensors."""
    layers, dropout = (args[4], args[5]) if isinstance(args[3], bool) else (args[5], args[6])
    return dropout > 0 and layers > 1


@rule(
    _VF.rnn_tanh, _VF.rnn_relu, _VF.gru, _VF.lstm,
    kind="composite", begins=True, noisy=_noisy, generic=True, how="recurrent engine",
)  # fmt: skip
def recurrent(func: Any, *args: Any) -> Any:
    """`torch.nn.RNN`, `GRU`, `LSTM` as their modules call them, with packed or padded pieces."""
    x: Any
    batch_first = False
    if isinstance(args[3], bool):  # padded; packed pieces have their sizes second
        x, hx, params, has_biases, layers, dropout, _, bidirectional, batch_first = args
        x = x.transpose(0, 1) if batch_first else x
        sizes = [x.shape[1]] * x.shape[0]
        shape: tuple[int, ...] | None = tuple(x.shape[:2])
        x = x.flatten(0, 1)
    else:
        x, batch_sizes, hx, params, has_biases, layers, dropout, _, bidirectional = args
        sizes, shape = batch_sizes.tolist(), None
    step = STEPS[func.__name__]
    states = tuple(hx) if func == _VF.lstm else (hx,)
    directions = 2 if bidirectional else 1
    each = len(params) // (layers * directions)
    projected = each == (5 if has_biases else 3)
    last: list[State] = []
    for layer in range(layers):
        if all(isinstance(t, Tensor) for t in (x, *states, *params)):  # certain so far: torch's own kernel
            rows = slice(layer * directions, (layer + 1) * directions)
            own = list(params[rows.start * each : rows.stop * each])
            hidden = [part[rows] for part in states]
            x, *end = _plain_layer(func, x, hidden, own, has_biases, bidirectional, sizes)
            last.extend(zip(*end, strict=True))
            if dropout and layer < layers - 1:
                x = F.dropout(x, dropout)
            continue
        outputs: list[Any] = []
        for direction in range(directions):
            index = layer * directions + direction
            own = list(params[index * each : (index + 1) * each])
            w_hr = own.pop() if projected else None
            weights = [*own, *[None] * (4 - len(own)), w_hr]
            state = tuple(part[index] for part in states)
            output, end = fused_layer(func, x, state, weights, sizes, direction == 1) or run_layer(
                step, x, state, weights, sizes, direction == 1
            )
            outputs.append(output)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and layer < layers - 1:
            x = F.dropout(x, dropout)
    if shape is not None:
        x = x.unflatten(0, shape)
        x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _plain_layer(
    func: Any,
    x: Tensor,
    states: list[Tensor],
    params: list[Tensor],
    biases: bool,
    both: bool,
    sizes: Sequence[int],
) -> Any:
    hx = states if len(states) > 1 else states[0]
    if min(sizes) == max(sizes):
        rows = x.unflatten(0, (len(sizes), sizes[0]))
        out, *end = func(rows, hx, params, biases, 1, 0.0, False, both, False)
        return (out.flatten(0, 1), *end)
    return func(x, torch.tensor(sizes), hx, params, biases, 1, 0.0, False, both)


@rule(
    _VF.rnn_tanh_cell,
    _VF.rnn_relu_cell,
    _VF.gru_cell,
    kind="composite",
    generic=True,
    how="composed of rules",
)
def cell(func: Any, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`torch.nn.RNNCell`, `GRUCell`."""
    step = STEPS[func.__name__.removesuffix("_cell")]
    return step(F.linear(input, w_ih, b_ih), (hx,), w_hh, b_hh)[0]


@rule(_VF.lstm_cell, kind="composite", how="composed of rules")
def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`torch.nn.LSTMCell`."""
    return lstm_step(F.linear(input, w_ih, b_ih), tuple(hx), w_hh, b_hh)
