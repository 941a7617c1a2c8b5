"""All that changes in a training, in one value: save it between two updates, and nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fastdropout.errors import ConfigError, DataError
from fastdropout.moments import Moments
from fastdropout.music.data.batches import Batch, Chunks, batches, chunks, count_batches, whole_pieces
from fastdropout.music.data.corpora import load
from fastdropout.music.data.rolls import SPLITS, Corpus, Piece
from fastdropout.music.training.build import build_model, build_optimiser, default_threads, initialise_model
from fastdropout.music.training.config import Config
from fastdropout.music.training.network import Network
from fastdropout.optim import RMSprop


@dataclass
class Counters:
    """The numbers of a `State`: where it is, what was best, and the sums of the epoch in progress."""

    epoch: int = 0
    """Epochs that are done."""
    update: int = 0
    """Updates of the epoch in progress that are done."""
    updates: int = 0
    """Updates of all epochs that are done."""
    best: float | None = None
    """The lowest `nll_per_step` on valid."""
    best_epoch: int = 0
    diverged: bool = False
    nll_sum: float = 0.0
    frames: int = 0
    norm_sum: float = 0.0
    seconds: float = 0.0
    total_seconds: float = 0.0


@dataclass
class State:
    """What a training has come to. `fit` changes it; between two of its steps it may be saved."""

    config: Config
    model: Network
    optimiser: RMSprop
    averaged: Network | None
    """The averaged weights, as a network; None if `config.averaging` is 0."""
    rng: Tensor
    """The random state for what is drawn inside the network; torch's own is left alone."""
    carried: Moments | None = None
    """With `config.carry`, the hidden state after the last update of the epoch in progress."""
    counters: Counters = field(default_factory=Counters)

    @property
    def evaluated(self) -> Network:
        """The network that is validated, tested and used: the averaged one where there is one."""
        return self.model if self.averaged is None else self.averaged

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, patience has run out, or the training has diverged."""
        done, config = self.counters, self.config
        waited = done.epoch - done.best_epoch
        impatient = config.patience > 0 and waited >= config.patience and done.update == 0
        return done.diverged or done.epoch >= config.epochs or impatient


@dataclass(frozen=True)
class Data:
    """A corpus, cut once as a configuration says."""

    corpus: Corpus
    train: Chunks
    valid: Chunks | Sequence[Piece]
    """Chunks, or whole pieces where the configuration says so."""
    frames: int
    """Scored frames of an epoch."""
    updates: int
    """Updates of an epoch."""

    def valid_batches(self, config: Config) -> list[Batch]:
        """The batches of the valid split, in order."""
        if isinstance(self.valid, Chunks):
            return list(batches(self.valid, max(config.batch, 64)))
        memories = {"memory": config.memory, "similar": config.similar}
        return list(whole_pieces(self.valid, score_first=config.score_first, **memories))


def load_corpus(config: Config, progress: object = None) -> Corpus:
    """The corpus of a configuration, cut down to `config.pieces` of each split."""
    corpus = load(
        config.corpus,
        config.data,
        progress=progress,  # type: ignore[arg-type]
        steps_per_quarter=config.steps_per_quarter or 2,
    )
    if not config.pieces:
        return corpus
    splits = {split: list(corpus.splits[split])[: config.pieces] for split in SPLITS}
    names = {split: list(known)[: config.pieces] for split, known in corpus.names.items()}
    return replace(corpus, splits=splits, names=names)


def prepare(config: Config, corpus: Corpus | None = None) -> Data:
    """Cut a corpus, by default the configuration's, into the chunks of a training."""
    corpus = load_corpus(config) if corpus is None else corpus
    check_fits(config, corpus)

    def cut(pieces: Sequence[Piece]) -> Chunks:
        return chunks(
            pieces,
            config.chunk,
            carry=config.carry,
            score_first=config.score_first,
            pad=config.pad,
            memory=config.memory,
            similar=config.similar,
        )

    train = cut(corpus.train)
    valid = cut(corpus.valid) if config.valid == "chunks" else corpus.valid
    frames = int(train.scored.sum())
    scored = int(valid.scored.sum()) if isinstance(valid, Chunks) else max(map(len, valid)) - 1
    if not frames or scored < 1:
        raise DataError(f"{corpus.name}: its pieces have one frame only, so there is nothing to predict")
    return Data(corpus, train, valid, frames, count_batches(train, config.batch))


def check_fits(config: Config, corpus: Corpus) -> None:
    """Raise ConfigError for options that the corpus has no use for."""
    faults = []
    if corpus.real and config.output not in (None, "gaussian"):
        faults.append(f"output must be gaussian for real values, got {config.output}")
    if not corpus.real and config.output == "gaussian":
        faults.append("output gaussian is for real values, which the corpus does not have: leave it out")
    if corpus.real and (config.memory or config.similar):
        what = "memory and similar are for zeros and ones, real values do not occur twice: leave them out"
        faults.append(what)
    if corpus.real and (config.pad == "front" or config.score_first):
        faults.append("pad must be end and score_first false for real values, among which 0 is not nothing")
    if corpus.series and config.transpose:
        faults.append(f"transpose is for piano rolls: set it to 0, got {config.transpose}")
    if corpus.series and config.steps_per_quarter is not None:
        faults.append("steps_per_quarter is for folders of MIDI files: leave it out")
    if faults:
        raise ConfigError(f"{corpus.name}: {'; '.join(faults)}")


def settle(config: Config, corpus: Corpus) -> Config:
    """With what depends on the corpus and the machine: the output layer and the threads."""
    change: dict[str, object] = {}
    if config.output is None and corpus.real:
        # Real values have no sigmoid, whose rule a preset may set.
        change |= {"output": "gaussian", "output_rule": "fast"}
    if not config.threads:
        change["threads"] = default_threads(config)
    return config.model_copy(update=change)


def new_state(config: Config, data: Data) -> State:
    """The state before the first update; the same configuration and data always give the same."""
    state = blank_state(settle(config, data.corpus), data.corpus.features)
    initialise_model(state.model, state.config, data.corpus.train)
    if state.averaged is not None:
        state.averaged.load_state_dict(state.model.state_dict())
    return state


def blank_state(config: Config, features: int) -> State:
    """A state of the right shapes and with no meaningful weights, to be filled."""
    if not config.threads:
        config = config.model_copy(update={"threads": default_threads(config)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build_model(config, features)
        rng = torch.get_rng_state()
    averaged = copy.deepcopy(model).requires_grad_(False) if config.averaging else None
    return State(config, model, build_optimiser(model, config), averaged, rng)
