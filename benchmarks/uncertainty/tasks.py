"""All tasks of the benchmark by name: `set/family`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.uncertainty import classification, forecasting, gap, images, regression, series, store, tables
from benchmarks.uncertainty.practitioners import METHODS as PRACTITIONERS

CELLS = ("rnn", "lstm")
FORECASTS = {f"{name}-{cell}": (name, cell) for name in series.SETS for cell in CELLS}


# What the goals speak of is done first.
FIRST = ("mean", "mask", "plain")


def names() -> list[str]:
    """In the order in which they are done."""
    families: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(tables.NAMES, (*regression.FAMILIES, *PRACTITIONERS)),
        **dict.fromkeys(images.SETS, tuple(classification.FAMILIES)),
        **dict.fromkeys(FORECASTS, tuple(forecasting.FAMILIES)),
    }
    found = [(name, family) for name, own in families.items() for family in own]
    kinds = [tables.NAMES, images.SETS, FORECASTS]

    def rank(task: tuple[str, str]) -> tuple[int, ...]:
        name, family = task
        kind = next(i for i, own in enumerate(kinds) if name in own)
        if family not in FIRST:
            return (len(kinds),)
        return kind, FIRST.index(family)

    return ["gap/all", *(f"{name}/{family}" for name, family in sorted(found, key=rank))]


def run(task: str, quick: bool, folder: Path = store.FOLDER) -> None:
    """Do a task and keep its figures."""
    name, family = task.split("/")
    kinds = dict.fromkeys(tables.NAMES, _regression) | dict.fromkeys(images.SETS, _classification)
    compute, config = (kinds | {"gap": _gap}).get(name, _forecast)(name, family, quick)
    store.run(task, compute, config | {"quick": quick}, folder)


def timed(task: str, quick: bool, folder: Path) -> tuple[str, float]:
    """Do a task on one thread; returns its name and the processor seconds it took."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    began = time.process_time()
    run(task, quick, folder)
    return task, time.process_time() - began


Work = tuple[Callable[[], Any], dict[str, Any]]


def _gap(name: str, family: str, quick: bool) -> Work:
    settings = {gap.LABELS[key]: str(setting) for key, setting in gap.SETTINGS.items()}
    return lambda: gap.run(quick), {"budget": asdict(gap.BUDGET), "settings": settings}


def _regression(name: str, family: str, quick: bool) -> Work:
    splits = regression.Splits(tables.table(name), quick)
    config: dict[str, Any] = {"splits": splits.number, "seeds": "the number of the split"}
    if family in PRACTITIONERS:
        return lambda: regression.run_practitioner(family, splits, quick), config
    settings = [str(s) for s in regression.FAMILIES[family].settings]
    config |= {"budget": asdict(splits.budget(quick)), "settings": settings}
    return lambda: regression.run_family(family, splits, quick), config


def _classification(name: str, family: str, quick: bool) -> Work:
    splits = classification.Splits(name, quick)
    settings = [str(s) for s in classification.FAMILIES[family].settings]
    config = {"splits": splits.number, "budget": asdict(splits.budget()), "settings": settings}
    return lambda: classification.run_family(family, splits), config


def _forecast(name: str, family: str, quick: bool) -> Work:
    task = forecasting.Task(*FORECASTS[name], quick)
    settings = [str(s) for s in forecasting.FAMILIES[family].settings]
    budget = {"units": forecasting.UNITS, "batch": forecasting.BATCH, "learning_rate": forecasting.RATE}
    config = {"cuts": task.cuts, "epochs": task.epochs, "settings": settings, **budget}
    return lambda: task.run(family), config
