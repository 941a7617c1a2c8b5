"""Training as an iterator: the caller owns stopping, saving and printing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, StrictBool
from torch import Tensor

from fastdropout.music.data.batches import Batch, batches, transposed
from fastdropout.music.training import regulariser
from fastdropout.music.training.build import torch_settings
from fastdropout.music.training.config import Config
from fastdropout.music.training.evaluation import carried, mean_nll
from fastdropout.music.training.records import Count, Number, Share
from fastdropout.music.training.state import Data, State
from fastdropout.nn import init, weight_noise_kl
from fastdropout.optim import clip_grad_norm_


@dataclass(frozen=True)
class Record:
    """What is written down of an epoch: a line of metrics.jsonl."""

    epoch: Annotated[Count, Field(ge=1)]
    updates: Count
    train_nll_per_step: Number | None
    valid_nll_per_step: Number | None
    spectral_radius: Number | None
    variance_radius: Number | None
    gradient_norm: Number | None
    lr: Number
    seconds: Annotated[Number, Field(ge=0)]
    frames_per_second: Number
    best: StrictBool = False
    diverged: StrictBool = False
    rewarded: Share | None = None
    """Share of weights that the regulariser drives to grow (lambda < 0); None without noise."""
    penalised: Share | None = None
    lambda_quantiles: Annotated[list[Number], Field(min_length=5, max_length=5)] | None = None
    """At `regulariser.QUANTILES`, over all weights."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; what is infinite or no number becomes None."""
        values = asdict(self)
        return {name: None if _is_wild(value) else value for name, value in values.items()}


@dataclass(frozen=True)
class Progress:
    """Where a training is: after each update, and with a `record` after each epoch."""

    epoch: int
    """The number of the epoch, from 1."""
    epochs: int
    update: int
    """Updates of this epoch that are done."""
    updates: int
    """Updates that this epoch has."""
    nll_per_step: float
    """On what has been seen of the training pieces in this epoch."""
    frames_per_second: float
    record: Record | None = None


def fit(state: State, data: Data) -> Iterator[Progress]:
    """Train until `state.finished`, yielding after each update and after each epoch.

    Whenever it yields, `state` is whole: save it, stop, or go on. A state that was saved and loaded goes on
    exactly as it would have, also from the middle of an epoch.
    """
    valid = data.valid_batches(state.config)
    few = regulariser.sample(data.train)
    while not state.finished:
        config, done = state.config, state.counters
        order = np.random.default_rng([config.seed, done.epoch])
        for number, batch in enumerate(batches(data.train, config.batch, order)):
            if number < done.update:
                continue  # Done before the state was saved.
            begin = time.perf_counter()
            with torch_settings(config):
                _update(state, data, _transposed(batch, config, done.epoch))
            done.seconds += time.perf_counter() - begin
            if done.diverged:
                break
            yield _progress(state, data)
        begin = time.perf_counter()
        with torch_settings(config):
            record = _end_epoch(state, valid, few, data.updates, begin)
        yield _progress(state, data, record)


def learning_rate(config: Config, updates: int, updates_per_epoch: int) -> float:
    """The learning rate after `updates` updates."""
    if config.schedule == "none":
        return config.lr
    return config.lr * 0.5 * (1 + math.cos(math.pi * updates / (config.epochs * updates_per_epoch)))


class _Diverged(Exception):
    """Raised inside the closure, so that the optimiser goes back to the parameters it came from."""


def _update(state: State, data: Data, batch: Batch) -> None:
    config, done, model = state.config, state.counters, state.model
    rate = learning_rate(config, done.updates, data.updates)
    for group in state.optimiser.param_groups:
        group["lr"] = rate
    first = carried(state.carried, batch.fresh) if config.carry else None
    frames = int(batch.mask.sum())
    nll_sum, norm = 0.0, 0.0

    def closure() -> None:
        nonlocal nll_sum, norm
        state.optimiser.zero_grad()
        nll, last = model.score(batch.inputs, batch.targets, batch.mask, first, config.loss)
        total = nll.sum()
        objective = total / max(frames, 1)  # A sum over members: each learns as if it were alone.
        if config.weight_noise:
            objective = objective + weight_noise_kl(model) / data.frames
        objective.backward()
        if config.weight_decay:
            _decay_weights(model, config.weight_decay)
        norm = float(clip_grad_norm_(model.parameters(), config.clip))
        nll_sum = float(total.detach()) / config.members
        if not (math.isfinite(norm) and math.isfinite(nll_sum)):
            raise _Diverged
        state.carried = last.detach() if config.carry else None

    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state.rng)
        try:
            state.optimiser.step(closure)
        except _Diverged:
            done.diverged = True
            return
        state.rng = torch.get_rng_state()
    done.update += 1
    done.updates += 1
    done.nll_sum += nll_sum
    done.frames += frames
    done.norm_sum += norm
    _average(state)


def _decay_weights(model: torch.nn.Module, decay: float) -> None:
    for name, parameter in model.named_parameters():
        if "bias" not in name and not name.endswith("_log_std") and parameter.grad is not None:
            parameter.grad.add_(parameter.detach(), alpha=decay)


@torch.no_grad()
def _average(state: State) -> None:
    """averaged = decay averaged + (1 - decay) weights, with a shorter memory at the beginning."""
    if state.averaged is None:
        return
    n = state.counters.updates
    decay = min(state.config.averaging, n / (n + 10))
    new: list[Tensor] = [p.detach() for p in state.model.parameters()]
    torch._foreach_lerp_(list(state.averaged.parameters()), new, 1 - decay)


def _end_epoch(state: State, valid: list[Batch], few: Batch, updates: int, begin: float) -> Record:
    """Validate, write down, and set the counters to the next epoch."""
    config, done = state.config, state.counters
    train = done.nll_sum / done.frames if done.frames else float("nan")
    score = float("nan") if done.diverged else mean_nll(state.evaluated, valid, config.loss)
    if not (math.isfinite(score) and train <= state.evaluated.output.ceiling):
        done.diverged = True
    best = not done.diverged and (done.best is None or score < done.best)
    done.epoch += 1
    if best:
        done.best, done.best_epoch = score, done.epoch
    radius, variance = _radii(state)
    shares = None if done.diverged else regulariser.measure(state, few)
    speed = done.frames / done.seconds if done.seconds else 0.0
    done.seconds += time.perf_counter() - begin
    done.total_seconds += done.seconds
    record = Record(
        epoch=done.epoch,
        updates=done.updates,
        train_nll_per_step=_finite(train),
        valid_nll_per_step=_finite(score),
        spectral_radius=radius,
        variance_radius=variance,
        gradient_norm=_finite(done.norm_sum / done.update) if done.update else None,
        lr=learning_rate(config, max(done.updates - 1, 0), updates),
        seconds=done.seconds,
        frames_per_second=speed,
        best=best,
        diverged=done.diverged,
        rewarded=shares.rewarded if shares else None,
        penalised=shares.penalised if shares else None,
        lambda_quantiles=shares.lambda_quantiles if shares else None,
    )
    done.update, done.nll_sum, done.frames, done.norm_sum, done.seconds = 0, 0.0, 0, 0.0, 0.0
    state.carried = None
    return record


def _radii(state: State) -> tuple[float | None, float | None]:
    """Spectral radius and variance radius of the recurrent weights that are evaluated: the largest of all.

    None for cells with gates, whose recurrence they do not describe.
    """
    weights = [weight.detach() for part in state.evaluated.parts for weight in part.recurrent_weights]
    square = all(weight.shape[0] == weight.shape[1] for weight in weights)
    if not (square and all(torch.isfinite(weight).all() for weight in weights)):
        return None, None
    radius = max(init.spectral_radius(weight) for weight in weights)
    return radius, max(init.variance_radius(weight, state.config.drop_hidden) for weight in weights)


def _transposed(batch: Batch, config: Config, epoch: int) -> Batch:
    """Each piece shifted by a number of semitones of its own; notes that leave the keyboard are lost."""
    if not config.transpose:
        return batch
    # A pure function of epoch and piece: a state that goes on in the middle of an epoch needs no more, and
    # the chunks of a piece, between which a state may be carried, move together.
    return transposed(batch, [_shift(config, epoch, int(piece)) for piece in batch.pieces])


def _shift(config: Config, epoch: int, piece: int) -> int:
    rng = np.random.default_rng([config.seed, epoch, piece + 1])  # Rows of padding have the number -1.
    return int(rng.integers(-config.transpose, config.transpose, endpoint=True))


def _progress(state: State, data: Data, record: Record | None = None) -> Progress:
    done = state.counters
    if record is not None:
        train = record.train_nll_per_step
        score = float("nan") if train is None else train
        return Progress(
            record.epoch,
            state.config.epochs,
            data.updates,
            data.updates,
            score,
            record.frames_per_second,
            record,
        )
    return Progress(
        done.epoch + 1,
        state.config.epochs,
        done.update,
        data.updates,
        done.nll_sum / max(done.frames, 1),
        done.frames / done.seconds if done.seconds else 0.0,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _is_wild(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
