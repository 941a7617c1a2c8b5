"""What a search draws from: tables of options, and draws that depend on a seed and a number alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from fastdropout.errors import ConfigError
from fastdropout.music.training.config import Config
from fastdropout.music.training.options import make_config

Pick = Callable[[str, BaseDistribution], Any]
"""From an option's name and what it may be to a value."""


@dataclass(frozen=True)
class Row:
    """An option that is drawn; where `only_if` does not hold, it is `otherwise`."""

    among: BaseDistribution
    only_if: tuple[str, Any] | None = None
    """Another option, from a row above, and the value it must have."""
    otherwise: Any = None


@dataclass(frozen=True)
class Space:
    """Rows by the names of options; all other options are the preset's."""

    preset: str
    rows: Mapping[str, Row]


def _any(*choices: Any) -> Row:
    return Row(CategoricalDistribution(choices))


def _log(low: float, high: float) -> Row:
    return Row(FloatDistribution(low, high, log=True))


def _between(low: float, high: float) -> Row:
    return Row(FloatDistribution(low, high))


_FAST = ("propagate_output", True)

PAPER = Space(
    "paper",  # With it come the rows of one choice: one layer, tanh, b_h = 0, b_y = -0.8.
    {
        "hidden": _any(200, 400, 600),
        "drop_input": _any(0.0, 0.1, 0.2),
        "drop_hidden": _any(0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
        "propagate_output": _any(True, False),
        "drop_output": Row(CategoricalDistribution((0.0, 0.2, 0.5)), _FAST, 0.0),
        "lr": _any(0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00001),
        "momentum": _any(0.0, 0.9, 0.95, 0.99, 0.995),
        "alpha": _any(0.8, 0.9),
        "init_var": _any(0.1, 0.01, 0.001, 0.0001),
        "init_var_input": _any(0.1, 0.01, 0.001, 0.0001),
        "spectral_radius": _any(1.0, 1.05, 1.1, 1.2),
        "nu": _any(15, 25, 35, 50, 0),
    },
)
"""The paper's table of hyperparameters; `nu` 0 is its "no": all connections."""

WIDE = Space(
    "default",
    {
        "hidden": _any(100, 200, 300, 400, 600),
        "batch": _any(8, 16, 32, 64),
        "transpose": _any(0, 5),
        "drop_input": _between(0.0, 0.4),
        "drop_hidden": _between(0.0, 0.8),
        "propagate_output": _any(True, False),
        "drop_output": Row(FloatDistribution(0.0, 0.7), _FAST, 0.0),
        "loss": Row(CategoricalDistribution(("mean", "expected")), _FAST, "mean"),
        "noise_hidden": _between(0.0, 0.6),
        "rule": _any("fast", "paper"),
        "lr": _log(1e-4, 1e-2),
        "momentum": _any(0.0, 0.9, 0.95, 0.98, 0.99, 0.995),
        "alpha": _any(0.8, 0.9, 0.99),
        "schedule": _any("none", "cosine"),
        "averaging": _any(0.0, 0.9, 0.99, 0.999),
        "weight_decay": _log(1e-8, 1e-3),
        "init_var": _log(1e-5, 1e-1),
        "init_var_input": _log(1e-5, 1e-1),
        "spectral_radius": _between(0.8, 1.5),
        "nu": _any(15, 25, 35, 50, 0),
    },
)
"""Ours, around the paper's and what it does not name."""

_DEEP, _MEMORY, _NADE = ("layers", 2), ("memory", True), ("output", "nade")

STRUCTURED = Space(
    "nade-memory",
    {
        "hidden": _any(100, 200, 300, 400, 600),
        "cell": _any("tanh", "gru"),
        "layers": _any(1, 2),
        "batch": _any(8, 16, 32, 64),
        "transpose": _any(0, 5),
        "skip": _any(True, False),
        "memory": _any(True, False),
        "similar": Row(CategoricalDistribution((True, False)), _MEMORY, False),
        "output": _any("nade", "notes"),
        "nade_hidden": Row(CategoricalDistribution((50, 100, 200, 300)), _NADE, None),
        "drop_input": _between(0.0, 0.5),
        "drop_memory": Row(FloatDistribution(0.0, 0.6), _MEMORY, 0.0),
        "drop_hidden": _between(0.0, 0.95),
        "drop_between": Row(FloatDistribution(0.0, 0.7), _DEEP, 0.0),
        "drop_output": _between(0.0, 0.8),
        "drop_nade_input": Row(FloatDistribution(0.0, 0.6), _NADE, 0.0),
        "drop_nade_hidden": Row(FloatDistribution(0.0, 0.8), _NADE, 0.0),
        "rule": _any("fast", "paper"),
        "lr": _log(1e-4, 1e-2),
        "momentum": _any(0.9, 0.95, 0.98, 0.99),
        "alpha": _any(0.8, 0.9, 0.99),
        "init_var_input": _log(1e-4, 1e-1),
    },
)
"""Networks of other classes than the paper's; fix `output` or `memory` to stay within one."""

SPACES = {"paper": PAPER, "wide": WIDE, "structured": STRUCTURED}


def choose(space: Space, pick: Pick, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a trial: the fixed ones, and `pick` for every row that is left and applies."""
    chosen = dict(fixed)
    for name, row in space.rows.items():
        if name in fixed:
            continue
        if row.only_if is not None and chosen[row.only_if[0]] != row.only_if[1]:
            chosen[name] = row.otherwise
        else:
            chosen[name] = pick(name, allowed(space, name, fixed))
    return chosen


def allowed(space: Space, name: str, fixed: Mapping[str, Any]) -> BaseDistribution:
    """What an option is drawn from: of `nu`, what the narrowest network of the search has units for.

    The same in every trial of a search, since Optuna knows no choices that depend on others.

    >>> allowed(WIDE, "nu", {"hidden": 50}).choices
    (15, 25, 35, 0)
    """
    among = space.rows[name].among
    if name != "nu":
        return among
    hidden = space.rows["hidden"].among
    assert isinstance(among, CategoricalDistribution)
    assert isinstance(hidden, CategoricalDistribution)
    widths = (fixed["hidden"],) if "hidden" in fixed else hidden.choices
    narrowest = min(widths) // fixed.get("members", 1)
    return CategoricalDistribution([nu for nu in among.choices if nu < narrowest])


def draw(space: Space, seed: int, number: int, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options of trial `number` of a random search; the same on any machine.

    >>> draw(PAPER, seed=0, number=3) == draw(PAPER, seed=0, number=3)
    True
    """
    return choose(space, lambda name, among: draw_one(among, seed, number, name), fixed or {})


def draw_one(among: BaseDistribution, seed: int, number: int, name: str) -> Any:
    """The value of one option, whatever the others are: a row more or less changes no other."""
    rng = np.random.default_rng([seed, number, zlib.crc32(name.encode())])
    if isinstance(among, CategoricalDistribution):
        return among.choices[int(rng.integers(len(among.choices)))]
    assert isinstance(among, FloatDistribution)
    if among.log:
        value = math.exp(rng.uniform(math.log(among.low), math.log(among.high)))
    else:
        value = rng.uniform(among.low, among.high)
    # Four digits, which people can read; the bounds have fewer, so it stays within.
    return float(f"{value:.4g}")


def trial_config(space: Space, corpus: str, options: Mapping[str, Any], seed: int, number: int) -> Config:
    """The configuration of a trial: one thread, and a seed of its own unless the options have one."""
    own = int(np.random.default_rng([seed, number]).integers(2**31))
    given = {"seed": own, **options, "corpus": corpus, "threads": 1}
    return make_config(given, preset_name=space.preset, what=f"trial {number}")


class Sampler(optuna.samplers.BaseSampler):
    """Draws for Optuna, seeded by the search's seed and the trial's number, so a resumed search repeats none.

    `random` draws what `draw` draws, whatever happened before. `tpe` looks at the trials that have ended, so
    its draws also depend on how many were running at a time.
    """

    def __init__(self, name: str, seed: int) -> None:
        if name not in SAMPLERS:
            raise ConfigError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}")
        self._name, self._seed = name, seed
        self._tpe: tuple[int, optuna.samplers.TPESampler] | None = None

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """None: every option is drawn by itself, as some have conditions."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Nothing."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """The value of one option."""
        if self._name == "random":
            return draw_one(param_distribution, self._seed, trial.number, param_name)
        if self._tpe is None or self._tpe[0] != trial.number:
            state = np.random.SeedSequence([self._seed, trial.number]).generate_state(1)
            # The liar: trials that still run count as bad, so that no two at a time are alike.
            self._tpe = trial.number, optuna.samplers.TPESampler(seed=int(state[0]), constant_liar=True)
        return self._tpe[1].sample_independent(study, trial, param_name, param_distribution)


SAMPLERS = ("random", "tpe")


def suggest(trial: optuna.Trial, name: str, among: BaseDistribution) -> Any:
    """Ask Optuna for the value of one option."""
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    assert isinstance(among, FloatDistribution)
    return trial.suggest_float(name, among.low, among.high, log=among.log)
