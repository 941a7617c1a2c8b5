"""The same trainings as a search runs them, on each way to use the cores: `python -m benchmarks.executors`.

`process` has one worker of one thread a core. Beside it, one training after the other, with one thread and
with a thread a core. Writes `results/executors.json`. A few minutes; let nothing else run meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.record import save
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.job import Job
from fastdropout.music.training import make_config

CORES = os.cpu_count() or 1
TRAININGS = 2 * CORES
OPTIONS: dict[str, Any] = {"corpus": "bach", "hidden": 400, "pieces": 80, "epochs": 20}
WAYS = {
    "a worker a core": ("process", 1),
    "one after the other, a thread a core": ("serial", CORES),
    "one after the other, one thread": ("serial", 1),
}


def seconds(name: str, threads: int, **changed: Any) -> float:
    """Of all trainings, from the first submitted to the last told."""
    with tempfile.TemporaryDirectory() as folder, closing(make_executor(name)) as executor:
        start = time.perf_counter()
        for seed in range(TRAININGS):
            config = make_config({**OPTIONS, **changed, "threads": threads, "seed": seed})
            executor.submit(seed, Job(str(Path(folder) / str(seed)), config))
        states: list[str] = []
        while len(states) < TRAININGS:
            states += [outcome.state for _, outcome in executor.wait(timeout=1.0)]
        spent = time.perf_counter() - start
    assert states == ["finished"] * TRAININGS, states
    return spent


def main() -> None:
    seconds("serial", 1, epochs=1)  # builds the corpus and the kernel
    found = {way: seconds(*how) for way, how in WAYS.items()}
    first = next(iter(found.values()))
    figures = [{"way": way, "seconds": spent, "ratio": spent / first} for way, spent in found.items()]
    for row in figures:
        print(f"{row['way']:40s} {row['seconds']:6.1f} s   {row['ratio']:.2f}")
    config = {**OPTIONS, "trainings": TRAININGS, "cores": CORES, "seeds": list(range(TRAININGS))}
    print("wrote", save("executors", config, figures))


if __name__ == "__main__":
    main()
