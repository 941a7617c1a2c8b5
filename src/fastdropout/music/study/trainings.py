"""Small networks trained for the figures: with fast dropout and without, on the same chorales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import fit
from fastdropout.music.training.network import Network, NoteRNN
from fastdropout.music.training.state import Data, new_state, prepare

KINDS = ("fast dropout", "plain", "plain, gentle steps")
DROPS = {"drop_input": 0.2, "drop_hidden": 0.5, "drop_output": 0.5}


@dataclass
class Training:
    """What was seen of a training: a value an epoch, and the weights of some epochs."""

    kind: str
    """One of `KINDS`."""
    seed: int
    config: Config
    data: Data
    model: Network
    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    radius: list[float] = field(default_factory=list)
    variance_radius: list[float] = field(default_factory=list)
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """Weights by epoch, of the first seed of fast dropout only."""


def train_all(quick: bool, tell: Callable[[float, str], None]) -> list[Training]:
    """Three seeds of each kind, which differ in the noise and, for the gentle ones, in the steps."""
    seeds, epochs, hidden = (2, 3, 24) if quick else (3, 40, 100)
    done = []
    for number, (kind, seed) in enumerate((k, s) for k in KINDS for s in range(seeds)):
        config = make(kind, seed, hidden, epochs, pieces=4 if quick else 0)
        data = prepare(config)
        training = Training(kind, seed, config, data, NoteRNN(data.corpus.features, 1))
        _follow(training, lambda share, n=number: tell((n + share) / (len(KINDS) * seeds), "training"))  # type: ignore[misc]
        done.append(training)
    return done


def make(kind: str, seed: int, hidden: int, epochs: int, pieces: int) -> Config:
    """The configuration of one: no tricks beside the paper's, a constant learning rate."""
    gentle = kind.endswith("gentle steps")
    drops = DROPS if kind == "fast dropout" else dict.fromkeys(DROPS, 0.0)
    return Config(
        hidden=hidden,
        epochs=epochs,
        seed=seed,
        pieces=pieces,
        # Said here, so that better defaults do not change the figures.
        transpose=0,
        batch=16,
        lr=0.0003 if gentle else 0.001,
        momentum=0.9 if gentle else 0.99,
        alpha=0.8,
        spectral_radius=1.2,
        nu=15,
        noise_hidden=0.0,
        schedule="none",
        averaging=0.0,
        threads=1,  # The matrices are too small to share.
        **drops,  # type: ignore[arg-type]
    )


def snapshot_epochs(epochs: int) -> list[int]:
    """Epochs at which weights are kept, closer at the beginning."""
    return sorted({e for e in (1, 2, 3, 5, 8, 12, 18, 25, 32, epochs) if e <= epochs})


def _follow(training: Training, tell: Callable[[float], None]) -> None:
    config = training.config
    wanted = snapshot_epochs(config.epochs)
    state = new_state(config, training.data)
    training.model = state.model
    keep = training.kind == "fast dropout" and training.seed == 0
    for step in fit(state, training.data):
        record = step.record
        if record is None:
            continue
        tell(record.epoch / config.epochs)
        for values, value in (
            (training.train, record.train_nll_per_step),
            (training.valid, record.valid_nll_per_step),
            (training.radius, record.spectral_radius),
            (training.variance_radius, record.variance_radius),
        ):
            values.append(float("nan") if value is None else value)
        if keep and record.epoch in wanted:
            training.snapshots[record.epoch] = {
                n: w.detach().clone() for n, w in state.model.state_dict().items()
            }
