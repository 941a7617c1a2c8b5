"""Medians of interleaved runs: every contestant once a round, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(
    contestants: dict[str, Callable[[], object]], rounds: int, patience: float = float("inf")
) -> dict[str, float]:
    """Median seconds of each after a round that warms up, without those that took longer than `patience`."""
    times: dict[str, list[float]] = {}
    for i in range(rounds + 1):
        for name, run in contestants.items():
            if i and name not in times:
                continue
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if i:
                times[name].append(seconds)
            elif seconds <= patience:
                times[name] = []
    return {name: statistics.median(values) for name, values in times.items()}
