"""Medians of interleaved runs: every contestant in every round, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

QUICK = 1.0
"""Seconds below which a contestant runs `PASSES` times a round: what is short is shaken more."""
PASSES = 5

Name = TypeVar("Name")


def medians(
    contestants: dict[Name, Callable[[], object]], rounds: int, patience: float = float("inf")
) -> dict[Name, float]:
    """Median seconds of each after a run that warms up, without those that took longer than `patience`."""
    first = {name: _seconds(run) for name, run in contestants.items()}
    times: dict[Name, list[float]] = {name: [] for name, seconds in first.items() if seconds <= patience}
    for _ in range(rounds):
        for number in range(PASSES):
            for name, values in times.items():
                if number == 0 or first[name] < QUICK:
                    values.append(_seconds(contestants[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
