"""How time and memory grow with steps, batch and units: fitted exponents."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import torch

import fastdropout as fd
from benchmarks.memory import added_megabytes
from benchmarks.timing import medians

BASE = {"steps": 100, "batch": 16, "units": 200}
RANGES = {
    "steps": [100, 400, 1600, 6400],
    "batch": [16, 64, 256],
    "units": [200, 400, 800],
}
KINDS = ("fused", "recompute", "torch.nn.RNN")


def run_once(kind: str, steps: int, batch: int, units: int) -> Any:
    """A training step, ready to be called."""
    x = torch.rand(steps, batch, 88)
    if kind == "torch.nn.RNN":
        plain = torch.nn.RNN(88, units)
        return lambda: plain(x)[0].sum().backward()
    rnn = fd.nn.RNN(88, units, drop_input=0.1, drop_hidden=0.2, recompute=kind == "recompute")

    def step() -> None:
        y, _ = rnn(x)
        torch.autograd.backward([y.mean.sum(), y.var.sum()])

    return step


def peak_megabytes(kind: str, size: dict[str, int]) -> float:
    """Peak memory that a step adds, in a process of its own."""
    code = "import sys; from benchmarks.growth import child; child(*sys.argv[1:])"
    command = [sys.executable, "-c", code, kind, json.dumps(size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(kind: str, size: str) -> None:
    """In the process of its own: a small step first, for what is loaded once."""
    run_once(kind, 4, 2, 10)()
    print(added_megabytes(run_once(kind, **json.loads(size))))


def exchanged_megabytes(kind: str, size: dict[str, int]) -> float:
    """What any layer of the kind must hold: its outputs and their gradients, of one moment or of two."""
    numbers = size["steps"] * size["batch"] * size["units"] * (2 if kind == "torch.nn.RNN" else 4)
    return numbers * 4 / 2**20


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of a straight line through the logarithms."""
    x, y = [math.log(s) for s in sizes], [math.log(max(v, 1e-9)) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / sum((a - mx) ** 2 for a in x)


def measure(rounds: int, ranges: dict[str, list[int]] | None = None) -> list[dict[str, Any]]:
    """Along each dimension: seconds of each kind with exponents; along the steps also megabytes."""
    rows = []
    for dimension, sizes in (ranges or RANGES).items():
        full = {size: {**BASE, dimension: size} for size in sizes}
        found = medians({(k, size): run_once(k, **full[size]) for k in KINDS for size in sizes}, rounds)
        seconds = {kind: [found[kind, size] for size in sizes] for kind in KINDS}
        memory: dict[str, list[float]] = {}
        own: dict[str, list[float]] = {}
        for kind in KINDS if dimension == "steps" else ():
            memory[kind] = [peak_megabytes(kind, full[size]) for size in sizes]
            own[kind] = [
                peak - exchanged_megabytes(kind, full[size])
                for peak, size in zip(memory[kind], sizes, strict=True)
            ]
        rows.append(
            {
                "dimension": dimension,
                "sizes": sizes,
                "seconds": seconds,
                "megabytes": memory,
                "time_exponent": {kind: exponent(sizes, seconds[kind]) for kind in KINDS},
                "memory_exponent": {k: exponent(sizes, values) for k, values in memory.items()},
                "own_megabytes": own,
                "own_memory_exponent": {k: exponent(sizes, values) for k, values in own.items()},
            }
        )
    return rows
