"""Models under `torch.compile` against eager ones: `python -m benchmarks.compiled`, results/compiled.json.

A recurrent layer and a linear one, with the Bernoulli loss: a training step and a prediction, each as a ratio
of medians, compiled / eager, of the processor's time and measured by turns in one run, so that other work on
the machine weighs on both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks import speed
from benchmarks.record import save


class Model(nn.Module):
    """Logits of all notes, and their loss."""

    def __init__(self, kind: str, units: int) -> None:
        super().__init__()
        self.layer = getattr(fd.nn, kind)(speed.INPUTS, units, **speed.DROPS)
        self.out = fd.nn.Linear(units, speed.INPUTS, drop=0.5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a step."""
        return fd.losses.bernoulli_nll(self.out(self.layer(x)[0]), target).sum(-1).mean()


def seconds(run: Callable[[], object]) -> float:
    """Of the processor, in one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(kind: str, units: int, batch: int, rounds: int) -> dict[str, object]:
    """Seconds to compile, and milliseconds of both, for a training step and a prediction."""
    torch.manual_seed(0)
    model = Model(kind, units)
    x = torch.randn(speed.STEPS, batch, speed.INPUTS)
    target = (torch.rand_like(x) < 0.05).float()
    compiled = torch.compile(model, fullgraph=True)

    def train(run: nn.Module) -> None:
        model.zero_grad()
        run(x, target).backward()

    def predict(run: nn.Module) -> None:
        with torch.no_grad():
            run(x, target)

    row: dict[str, object] = {"layer": kind, "units": units, "batch": batch}
    for name, task in (("train", train), ("predict", predict)):
        start = time.perf_counter()
        task(compiled)
        first = time.perf_counter() - start
        task(model)
        times: dict[str, list[float]] = {"eager": [], "compiled": []}
        for _ in range(rounds):
            times["eager"].append(seconds(lambda task=task: task(model)))
            times["compiled"].append(seconds(lambda task=task: task(compiled)))
        middle = {key: 1e3 * statistics.median(of) for key, of in times.items()}
        ratio = middle["compiled"] / middle["eager"]
        row[name] = {"first_call_s": first, **{f"{k}_ms": v for k, v in middle.items()}, "ratio": ratio}
        print(f"{kind} {name}: compiled / eager {ratio:.3f}, first call {first:.1f} s", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of which the median is taken")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--units", type=int, default=400)
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = [measure(kind, args.units, args.batch, args.rounds) for kind in ("RNN", "LSTM", "GRU")]
    config = {**vars(args), "inputs": speed.INPUTS, "steps": speed.STEPS, "drops": speed.DROPS, "seed": 0}
    print("wrote", save("compiled", config, {"rows": rows, "goal": 1.0}))


if __name__ == "__main__":
    main()
