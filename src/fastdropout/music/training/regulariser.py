"""What the regulariser does to the weights, written down after each epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fastdropout.analysis import Regimes, decompose
from fastdropout.functional import dropout, linear
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.data.batches import Batch, Chunks, batches
from fastdropout.music.training.evaluation import evaluating
from fastdropout.music.training.network import NoteRNN
from fastdropout.music.training.outputs import Loss, Output, Prediction
from fastdropout.music.training.state import State
from fastdropout.recurrent.cells import State as HiddenState
from fastdropout.recurrent.fused import fused_layer
from fastdropout.recurrent.options import Weights

CHUNKS, STEPS = 4, 50
"""Of the training pieces that are looked at: few, since this is done after each epoch."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Regularisation:
    """Shares of weights that are driven to grow and to shrink, and quantiles of lambda over all weights."""

    rewarded: float
    penalised: float
    lambda_quantiles: list[float]


def sample(train: Chunks) -> Batch:
    """A few chunks, the same at every epoch, far from each other, each from a state of zero.

    Their ends, or where padding stands there, their beginnings.
    """
    rows = np.unique(np.linspace(0, len(train) - 1, CHUNKS).round().astype(np.int64))
    at = max(0, train.steps - STEPS) if train.scored[:, -1].all() else 0
    frames, scored = train.frames[rows, at : at + STEPS + 1], train.scored[rows, at : at + STEPS]
    few = replace(train, frames=frames, scored=scored, pieces=train.pieces[rows], carry=False)
    if train.memory is not None:
        where = train.memory.where[rows, at : at + STEPS]
        few = replace(few, memory=replace(train.memory, where=where))
    if train.similar is not None:
        few = replace(few, similar=train.similar[rows, at : at + STEPS])
    return next(batches(few, CHUNKS))


def measure(state: State, batch: Batch) -> Regularisation | None:
    """Look at the network that is evaluated; None where no lambda differs from zero, or one is not finite.

    Nothing is drawn and nothing is changed: a training goes on as if this had not been asked.
    """
    if state.config.method == "mask" or not batch.mask.any():
        return None
    with evaluating(state.evaluated):
        decays = torch.cat([_decays(part, batch, state.config.loss) for part in state.evaluated.parts])
    shares = Regimes.of(decays)
    if shares.zero == 1 or not torch.isfinite(decays).all():
        return None
    return Regularisation(shares.rewards, shares.penalises, _quantiles(decays))


def _quantiles(values: Tensor) -> list[float]:
    """Without interpolation: to sort takes a sixth of the time of `numpy.quantile`."""
    ordered = np.sort(values.numpy())
    return [float(ordered[round(q * (len(ordered) - 1))]) for q in QUANTILES]


def _decays(model: NoteRNN, batch: Batch, loss: Loss) -> Tensor:
    """All lambda_i in a row."""
    one_layer = model.cell == "tanh" and model.rnn.num_layers == 1 and model.skip is None
    if one_layer and model.rnn.path == "fused" and not model.rnn.weight_noise:
        return torch.cat([decay.flatten() for decay in fused_decays(model, batch, loss).values()])

    def objective(model: NoteRNN) -> Tensor:
        return model(batch.inputs)[0].nll(batch.targets, loss, batch.mask).mean()

    return decompose(model, objective).decays


def fused_decays(model: NoteRNN, batch: Batch, loss: Loss = "mean") -> dict[str, Tensor]:
    """lambda of each weight matrix as `decompose` finds it, by name, at the speed of the fused recurrence.

    The input's part of V[a_t] is computed before the recurrence and goes in through weights of one, so that
    the gradient of this part is delta_t = dJ/dV[a_t], and lambda = sum_t delta_t V[z_t]' for the units z_t
    after their masks. `decompose` needs no such knowledge of the network, and ten times as long; it is used
    for what comes after the context, the weights of the output layer.
    """
    rnn, out = model.rnn, model.out
    w_ih, w_hh = (rnn.get_parameter(f"weight_{name}_l0").detach() for name in ("ih", "hh"))
    bias = (rnn.get_parameter("bias_ih_l0") + rnn.get_parameter("bias_hh_l0")).detach()
    steps, rows = batch.inputs.shape[:2]
    x = dropout(model.read(batch.inputs.flatten(0, 1)), rnn.drop_input)
    given = linear(x, w_ih, bias).detach()
    into_hidden = given.var.clone().requires_grad_()
    into = torch.eye(rnn.hidden_size, dtype=w_hh.dtype, device=w_hh.device)
    beginning = HiddenState(Moments.certain(given.mean.new_zeros(rows, rnn.hidden_size)))
    hidden, _ = fused_layer(
        rnn.cell,
        unchecked_moments(given.mean, into_hidden),
        beginning,
        Weights(into, w_hh, None),
        rnn.options([rows] * steps, drop_input=0.0),
    )
    context = out(hidden)
    into_context = torch.zeros_like(context.mean, requires_grad=True)
    context = unchecked_moments(context.mean, context.var + into_context).reshape(steps, rows, -1)
    found: dict[str, Tensor] = {}
    if list(model.output.parameters()):
        split = decompose(model.output, lambda output: _loss(output, context.detach(), batch, loss))
        found = {f"output.{name}": part.decay for name, part in split.weights.items()}
    objective = _loss(model.output, context, batch, loss)
    by_hidden, by_context = torch.autograd.grad(objective, (into_hidden, into_context))
    seen = hidden.detach()
    after, into_out = (dropout(seen, drop).var for drop in (rnn.drop_hidden, out.drop))
    return {
        "rnn.weight_ih_l0": by_hidden.t() @ x.var,
        "rnn.weight_hh_l0": by_hidden[rows:].t() @ after[:-rows],
        "out.weight": by_context.t() @ (into_out if out.propagate else torch.zeros_like(into_out)),
        **found,
    }


def _loss(output: Output, context: Moments, batch: Batch, loss: Loss) -> Tensor:
    return Prediction([output], [context]).nll(batch.targets, loss, batch.mask).mean()
