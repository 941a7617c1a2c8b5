"""Time and memory of the networks: `python -m benchmarks.integrate times`. Let nothing else run meanwhile.

Ratios of medians measured in one run, at default rates with random weights, for batches of 8 and of 32. 50
masks are run in two ways: one after the other, and in batches of up to 512 rows. Memory is the peak that each
adds in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.integrate.measure import ROWS, settle
from benchmarks.integrate.networks import NETWORKS, looked_at, outputs, sampling
from benchmarks.integrate.training import loss_of
from benchmarks.memory import added_megabytes
from benchmarks.record import write
from benchmarks.timing import medians

BATCHES, MASKS = (8, 32), 50
MEMORY_BATCH = 32
WAYS = ("one after the other", "in batches")
GOALS = {"diagonal": 1 / 12, "traced, 1 output": 1 / 10, "traced, 10 outputs": 1 / 3, "memory": 3.0}


def contestants(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Callable[[], object]]:
    """What is timed."""
    batches = -(-MASKS * len(next(iter(inputs.values()))) // ROWS)
    at_once = -(-MASKS // batches)
    repeated = {name: x.repeat(at_once, *[1] * (x.ndim - 1)) for name, x in inputs.items()}

    def masks(given: dict[str, Tensor], times: int) -> Callable[[], object]:
        @torch.no_grad()
        def run() -> None:
            sampling(model)
            for _ in range(times):
                outputs(model, given)

        return run

    @torch.no_grad()
    def diagonal() -> None:
        sampling(model)
        with fd.integrate(trace=False):
            outputs(model, inputs)

    def traced(count: int) -> Callable[[], object]:
        predict = fd.integrate(lambda **x: looked_at(outputs(model, x))[:, :count])

        def run() -> object:
            sampling(model)
            return predict(**inputs)

        return run

    return {
        "50 masks, one after the other": masks(inputs, MASKS),
        "50 masks, in batches": masks(repeated, batches),
        "diagonal": diagonal,
        "traced, 1 output": traced(1),
        "traced, 10 outputs": traced(10),
    }


def prepared(name: str, batch: int) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """The network, and examples."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    model, data = network.make(), network.data()
    settle(model, data.rows(torch.arange(64))[0])
    return model, *data.rows(torch.arange(batch))


def memory(name: str, kind: str) -> float:
    """Megabytes, from a process of its own."""
    code = "import sys; from benchmarks.integrate.times import child; child(*sys.argv[1:])"
    found = subprocess.run(
        [sys.executable, "-c", code, name, kind], capture_output=True, text=True, check=True
    )
    return float(found.stdout.split()[-1])


def child(name: str, kind: str) -> None:
    """In the process of its own: two examples first, for what is loaded once."""
    model, inputs, target = prepared(name, MEMORY_BATCH)

    def run(n: int) -> None:
        given = {key: x[:n] for key, x in inputs.items()}
        if kind == "training step":
            loss_of(outputs(model.train(), given), target[:n]).backward()
        else:
            sampling(model)
            fd.integrate(lambda **x: looked_at(outputs(model, x)))(**given)

    run(2)
    model.zero_grad()
    print(added_megabytes(lambda: run(MEMORY_BATCH)))


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Seconds, megabytes and their ratios."""
    found: dict[str, Any] = {"seconds": {}, "ratios": {}}
    for batch in BATCHES:
        model, inputs, _ = prepared(name, batch)
        seconds = medians(contestants(model, inputs), rounds)
        ways = {way: seconds[f"50 masks, {way}"] for way in WAYS}
        found["seconds"][str(batch)] = seconds
        found["ratios"][str(batch)] = {
            way: {key: seconds[key] / masks for key in GOALS if key in seconds} for way, masks in ways.items()
        }
    return _with_memory(name, found)


def _with_memory(name: str, found: dict[str, Any]) -> dict[str, Any]:
    megabytes = {kind: memory(name, kind) for kind in ("training step", "traced, 10 outputs")}
    ratio = megabytes["traced, 10 outputs"] / megabytes["training step"]
    return {**found, "megabytes": megabytes, "ratios": {**found["ratios"], "memory": ratio}}


def main(names: list[str], folder: Path, again: bool, only_memory: bool, rounds: int = 1) -> None:
    """Measure what is not there yet, a file for each network; or the memory of those that are there."""
    paths = {name: folder / f"{name.replace(' ', '-')}.json" for name in names}
    left = [n for n in names if again or paths[n].exists() == only_memory]
    print(f"{len(left)} of {len(names)} networks to time, results in {folder}", flush=True)
    for i, name in enumerate(left, 1):
        start = time.perf_counter()
        if only_memory and paths[name].exists():
            found = _with_memory(name, json.loads(paths[name].read_text())["figures"])
        else:
            found = measure(name, rounds)
        config = {
            "batches": BATCHES,
            "masks": MASKS,
            "memory_batch": MEMORY_BATCH,
            "rounds": rounds,
            "seed": 0,
        }
        write(paths[name], f'python -m benchmarks.integrate times --only "{name}"', config, found)
        seconds = time.perf_counter() - start
        print(
            f"[{i}/{len(left)}] {name}, {seconds:.0f} s, memory {found['ratios']['memory']:.1f}", flush=True
        )
        for batch in map(str, BATCHES):
            for way in WAYS:
                ratios = found["ratios"][batch][way].items()
                shown = "  ".join(f"{key} {value:.3f}" for key, value in ratios)
                print(f"  batch {batch}, masks {way}: {shown}", flush=True)
