"""Medians of interleaved runs: every contestant once a round, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, after one round that warms up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
