"""The paper's Table 1, again: which models, with which settings, and which run of them counts.

Nothing heavy is imported here: the documents are made from it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastdropout.errors import ConfigError
from fastdropout.music.data.canonical import CANONICAL
from fastdropout.music.study.results import Key, Result
from fastdropout.music.training.config import Config
from fastdropout.music.training.options import make_config

CORPORA = tuple(CANONICAL)
SETTINGS = 3
"""Of a compared model, unless one says otherwise."""

NO_REGULARISER: dict[str, Any] = {
    "drop_input": 0.0,
    "drop_hidden": 0.0,
    "drop_output": 0.0,
    "drop_memory": 0.0,
    "drop_between": 0.0,
    "drop_nade_input": 0.0,
    "drop_nade_hidden": 0.0,
    "propagate_output": True,
    "noise_hidden": 0.0,
    "weight_noise": False,
    "weight_std": None,
    "weight_decay": 0.0,
    "rule": "fast",
    "output_rule": "fast",
    "method": "moments",
    "loss": "mean",
}
"""What turns a configuration into that of the plain RNN; all other options are size and budget."""

_LARGE = {"lr": 0.002, "momentum": 0.99}
# Without noise in the network, steps with as much momentum as `best` may have overshoot.
_STEADY = {"lr": 0.001, "momentum": 0.9}
_GENTLE = {"lr": 0.0003, "momentum": 0.9}
# Nor does it last as long: with a schedule of all epochs it fits the training pieces before steps get small.
_SHORT = {**_STEADY, "share": 0.3}
_MASKS = {"method": "mask"}

_COMPARED: dict[str, tuple[dict[str, Any], ...]] = {
    "plain": (_STEADY, _SHORT, _GENTLE),
    "output-dropout": (
        {**_MASKS, "drop_output": 0.5, **_STEADY},
        {**_MASKS, "drop_output": 0.2, **_SHORT},
        {**_MASKS, "drop_output": 0.5, **_GENTLE},
    ),
    "weight-noise": (
        {"weight_noise": True, **_LARGE},
        {"weight_noise": True, **_STEADY},
        {"weight_noise": True, "weight_std": 0.02, **_STEADY},
    ),
    "weight-decay": (
        {"weight_decay": 1e-4, **_STEADY},
        {"weight_decay": 1e-4, **_SHORT},
        {"weight_decay": 1e-3, **_STEADY},
    ),
}
"""Beside those of `single` without its regulariser: settings of a model, of which valid chooses.

`share` is no option but the part of the epochs of `single` that a setting has.
"""

_PLAIN_TWIN = (_STEADY, _SHORT, _GENTLE)
# Sampled masks want smaller steps than integrated noise, and lower rates may suit them better.
_MASK_TWIN = ({"rates": 0.5, **_GENTLE}, {"rates": 0.5, **_STEADY}, {"rates": 1.0, **_GENTLE})

CLASSES = {
    "deep": "FD deep RNN",
    "gru": "FD-GRU",
    "lstm": "FD-LSTM",
    "memory": "FD-RNN + memory",
    "nade": "FD-RNN-NADE",
    "nade-memory": "FD-RNN-NADE + memory",
    "nade-similar": "FD-RNN-NADE + both memories",
}
"""Other networks than the paper's, each what its preset says."""
TWINS = {
    f"{name}-{kind}": f"{label.removeprefix('FD').lstrip(' -')}, {words}"
    for name, label in CLASSES.items()
    for kind, words in (("plain", "no noise"), ("masks", "dropout masks"))
}
"""The same networks, of the same size and budget, without noise and with masks that are drawn."""

MODELS = {
    "plain": "plain RNN",
    "paper": "FD-RNN, the paper's settings",
    "single": "FD-RNN",
    "best": "average of three FD-RNNs",
    "plain-average": "average of three plain RNNs",
    "output-dropout": "dropout masks, hidden to output",
    "weight-noise": "adaptive weight noise",
    "weight-decay": "weight decay",
    **CLASSES,
    **TWINS,
}
QUICK_MODELS = tuple(name for name in MODELS if name not in TWINS and name != "lstm")
"""What a small version has."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "one-wide-network": {"members": 1, "hidden": 600},
    "without-averaging": {"averaging": 0.0},
    "without-schedule": {"schedule": "none"},
    "without-added-noise": {"noise_hidden": 0.0},
    "without-input-dropout": {"drop_input": 0.0},
    "without-hidden-dropout": {"drop_hidden": 0.0},
    "without-output-dropout": {"drop_output": 0.0},
    "without-weight-decay": {"weight_decay": 0.0},
    "without-weight-noise": {"weight_noise": False, "weight_std": None},
    "without-transposition": {"transpose": 0},
    "without-carried-state": {"carry": False},
    "chunks-of-100": {"chunk": 100},
    "padding-in-front": {"pad": "front"},
    "hidden-dropout-of-0.5": {"drop_hidden": 0.5},
    "steps-of-0.001": {"lr": 0.001},
    "loss-of-the-mean": {"loss": "mean"},
    "fast-rule": {"rule": "fast"},
    "paper-rule": {"rule": "paper"},
    "paper-output-bias": {"output_bias": -0.8},
    "dense-recurrence": {"nu": 0},
}
"""One ingredient of `single` taken away or put back to the ordinary; of `best`, its members."""

QUICK = {"hidden": 100, "nu": 15, "batch": 16, "chunk": 100, "epochs": 50, "patience": 0, "threads": 1}
"""The size, of a member, and budget of a small version, for all models alike."""


@dataclass(frozen=True)
class Cell:
    """One training of the table."""

    corpus: str
    model: str
    candidate: int
    """The number of its setting, from 1."""
    seed: int
    options: Mapping[str, Any]
    """For `make_config`, over a preset; without corpus and seed."""
    budget: float = 1.0

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.corpus, self.model, self.candidate, self.seed

    @property
    def name(self) -> str:
        """For its folder."""
        return f"{self.model}-{self.candidate}-seed{self.seed}"

    @property
    def config(self) -> Config:
        """The whole configuration."""
        return make_config({**self.options, "corpus": self.corpus, "seed": self.seed}, what=self.name)

    @property
    def command(self) -> str:
        """The same training by hand."""
        return train_command(self.corpus, {**self.options, "seed": self.seed})


def candidates(
    model: str, corpus: str, *, settings: int = SETTINGS, budget: float = 1.0, quick: bool = False
) -> list[dict[str, Any]]:
    """The settings of a model that valid chooses from, as options for `make_config`; one if `quick`.

    `paper`, `best` and those of `CLASSES` are what their presets say, `single` is one member of `best`,
    and `plain-average` is `best` without noise. The others take size, batch, epochs, schedule, averaging and
    initial weights from `single`, or the `TWINS` from the model that they are twins of, so that only the
    regulariser and the steps differ, and in some settings the epochs. `budget` multiplies the epochs.

    >>> [options["drop_output"] for options in candidates("output-dropout", "jsb-chorales")]
    [0.5, 0.2, 0.5]
    """
    best = dict(make_config({"preset": "best", "corpus": corpus}))
    count = best["members"]
    one = {"members": 1, "hidden": best["hidden"] // count} if count > 1 else {}
    if model in ("paper", "best", *CLASSES):
        found: list[dict[str, Any]] = [{"preset": model}]
    elif model in TWINS:
        found = _twins(model, corpus)[: 1 if quick else settings]
    elif model == "single":
        found = [{"preset": "best", **one}] if one else []
    elif model == "plain-average":
        # The twin of `best`; without members to average it is `plain`.
        some = _COMPARED["plain"][: 1 if quick else settings]
        found = [{"preset": "best", **_without_noise(best), **options} for options in some] if one else []
    elif model in _COMPARED:
        some = _COMPARED[model][: 1 if quick else settings]
        found = [{"preset": "best", **one, **_without_noise(best), **options} for options in some]
    elif model in ABLATIONS:
        changed = {name: value for name, value in ABLATIONS[model].items() if best[name] != value}
        found = [{"preset": "best", **({} if "members" in changed else one), **changed}] if changed else []
    else:
        raise ConfigError(f"a model must be one of {', '.join((*MODELS, *ABLATIONS))}, got {model!r}")
    return [_scaled(options, corpus, budget, quick) for options in found]


def _without_noise(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that turn a configuration into that of a plain network."""
    return {name: value for name, value in NO_REGULARISER.items() if config[name] != value}


def _twins(model: str, corpus: str) -> list[dict[str, Any]]:
    """The settings of a model of `CLASSES` without noise, or with the same noise drawn."""
    preset, kind = model.rsplit("-", 1)
    own = dict(make_config({"preset": preset, "corpus": corpus}))
    if kind == "plain":
        return [{"preset": preset, **_without_noise(own), **steps} for steps in _PLAIN_TWIN]
    found = []
    for steps in _MASK_TWIN:
        drops = {name: value for name, value in own.items() if name.startswith("drop_") and value}
        rates = {name: round(value * steps["rates"], 3) for name, value in drops.items()}
        changed = {name: rates[name] for name in drops if rates[name] != drops[name]}
        rule = {name: "fast" for name in ("rule", "output_rule") if own[name] != "fast"}
        options = {name: value for name, value in steps.items() if name != "rates"}
        found.append({"preset": preset, **_MASKS, **rule, **changed, **options})
    return found


def plan(
    corpora: Iterable[str],
    models: Iterable[str],
    seeds: int,
    results: Iterable[Result],
    *,
    settings: int = SETTINGS,
    budget: float = 1.0,
    quick: bool = False,
) -> list[Cell]:
    """The trainings that are wanted, given the results so far.

    Every setting is trained with the seed 0; the setting that valid chooses also with the others.
    """
    models, results = list(models), list(results)
    cells = []
    for corpus in corpora:
        for model in models:
            some = candidates(model, corpus, settings=settings, budget=budget, quick=quick)
            first = [Cell(corpus, model, n, 0, options, budget) for n, options in enumerate(some, 1)]
            cells += first
            keys = {cell.key for cell in first}
            known = [result for result in results if result.key in keys]
            best = chosen(known)
            if best is not None and len(known) == len(first):
                options = some[best.candidate - 1]
                cells += [
                    Cell(corpus, model, best.candidate, seed, options, budget) for seed in range(1, seeds)
                ]
    return cells


def chosen(results: Iterable[Result]) -> Result | None:
    """The one of the lowest valid NLL, whatever its test NLL; None if none has one."""
    scored = [result for result in results if result.valid is not None]
    return min(scored, key=lambda result: float(result.valid or 0.0), default=None)


def train_command(corpus: str, options: Mapping[str, Any]) -> str:
    """The words that train with these options."""
    words = ["fastdropout", "train", corpus]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={value}" if str(value).startswith("-") else f"--{flag} {value}")
    return " ".join(words)


def _scaled(options: dict[str, Any], corpus: str, budget: float, quick: bool) -> dict[str, Any]:
    share = budget * options.get("share", 1.0)
    options = {name: value for name, value in options.items() if name != "share"}
    config = make_config({**options, "corpus": corpus})
    epochs = config.epochs
    if quick:
        epochs = QUICK["epochs"]
        options = {**options, **QUICK, "hidden": QUICK["hidden"] * config.members}
        if config.output == "nade":
            options["nade_hidden"] = QUICK["hidden"]
    return options if share == 1 else {**options, "epochs": max(1, round(epochs * share))}
