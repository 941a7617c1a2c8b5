"""Networks that nobody here wrote, under `integrate()`: `python -m benchmarks.integrate`.

Random and trained weights, default rates and .3, against 2,000 masks. Each network has a file under
results/integrate/ when it is finished, and is not done again: stop the command and start it anew as you
like. `times` measures time and memory (let nothing else run meanwhile), `memory` memory alone, `others`
compares with suq and fastbnns, `forecasts` feeds predictions back, `list` shows what is done.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.integrate import measure, own, training
from benchmarks.integrate.cache import FOLDER as CACHE
from benchmarks.integrate.cache import cached
from benchmarks.integrate.networks import NETWORKS, set_rates
from benchmarks.record import RESULTS, write

FOLDER = RESULTS / "integrate"
RATES: dict[str, float | None] = {"default": None, "0.3": 0.3}
NAMES = [*NETWORKS, *(f"fd.nn.{layer}" for layer in own.LAYERS)]


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """Where the figures of a network are."""
    return folder / f"{name.replace(' ', '-')}.json"


def figures(
    name: str, masks: int, seed: int, cache: Path | None, updates: int | None = None
) -> dict[str, Any]:
    """All figures of a network."""
    if name.startswith("fd.nn."):
        return own.rows(name.removeprefix("fd.nn."), masks, seed, cache)
    network = NETWORKS[name]
    updates = network.updates if updates is None else min(updates, network.updates)
    learn, held_out = network.data().split()
    inputs, _ = held_out.rows(torch.arange(measure.EXAMPLES))
    rows = []
    learned: dict[str, Any] | None = None
    for drop, rate in RATES.items():
        torch.manual_seed(seed)
        model = network.make()
        if rate is not None:
            set_rates(model, rate)
        measure.settle(model, learn.rows(torch.arange(min(200, len(learn.target))))[0])

        def prepare(model: nn.Module, updates: int) -> tuple[Any, ...]:
            if updates:
                training.train(model, network, learn, updates, seed)
            truth = measure.sampled(model, inputs, masks, seed)
            return model.state_dict(), truth.mean, truth.std, truth.best_correlation

        for weights in ("random", "trained") if updates else ("random",):
            config = {"masks": masks, "seed": seed, "updates": updates, "examples": measure.EXAMPLES}
            if weights == "trained" and learned is not None:
                model.load_state_dict(learned)
            more = 0 if weights == "random" else updates if learned is None else updates // 2
            compute = partial(prepare, model, more)
            state, *truth = cached(f"{name}-{drop}-{weights}", config, compute, cache)
            model.load_state_dict(state)
            row = measure.against_masks(model, inputs, measure.Truth(*truth))
            score = {}
            if weights == "trained":
                learned, score = state, training.test(model, held_out)
            rows.append({"weights": weights, "drop": drop, **row, **score})
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "no_dropout": measure.without_dropout(model, inputs),
        "updates": updates,
        "rows": rows,
    }


SHOWN = ("diagonal", "traced", "correlation", "best_correlation", "mean_error")


def line(name: str, row: dict[str, Any]) -> str:
    """A row for the terminal."""
    parts = [f"{key} {row[key]:.2f}" for key in SHOWN if row[key] is not None]
    score = f"  test loss {row['test_loss']:.3f}" if "test_loss" in row else ""
    return f"  {name:15}{row['weights']:8} {row['drop']:8}{'  '.join(parts)}{score}"


def accuracy(names: list[str], masks: int, seed: int, again: bool, quick: bool) -> None:
    """Measure what is not there yet."""
    folder = Path(tempfile.mkdtemp(prefix="integrate-")) if quick else FOLDER
    cache, updates = (None, 5) if quick else (CACHE, None)
    left = [n for n in names if again or not path_of(n, folder).exists()]
    print(f"{len(left)} of {len(names)} networks to do, results in {folder}", flush=True)
    for i, name in enumerate(left, 1):
        start = time.perf_counter()
        found = figures(name, masks, seed, cache, updates)
        seconds = time.perf_counter() - start
        config = {"masks": masks, "examples": measure.EXAMPLES, "seed": seed}
        command = f'python -m benchmarks.integrate --only "{name}"'
        write(path_of(name, folder), command, config, found)
        print(f"[{i}/{len(left)}] {name}: no dropout {found['no_dropout']:.1e}, {seconds:.0f} s", flush=True)
        for row in found["rows"]:
            print(line(name, row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrate", description=__doc__)
    kinds = ["accuracy", "times", "memory", "others", "forecasts", "list"]
    parser.add_argument("what", nargs="?", default="accuracy", choices=kinds)
    parser.add_argument("--only", metavar="NAME", help="networks whose name contains NAME, even if finished")
    parser.add_argument("--again", action="store_true", help="finished ones too; trained weights are kept")
    parser.add_argument("--masks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few masks and updates, in a temporary folder")
    args = parser.parse_args()
    names = [n for n in NAMES if not args.only or args.only.lower() in n.lower()]
    if not names:
        parser.error(f"--only {args.only}: no such network; `list` names them all")
    if args.what == "list":
        for name in names:
            path = path_of(name)
            print(name, "-" if not path.exists() else json.loads(path.read_text())["config"])
        return
    if args.what == "others":
        from benchmarks.integrate import others

        others.main(args.masks, args.seed)
        return
    if args.what == "forecasts":
        from benchmarks.integrate import forecasts

        forecasts.main(args.masks, args.seed)
        return
    if args.what in ("times", "memory"):
        from benchmarks.integrate import times

        stock, again = [n for n in names if n in NETWORKS], args.again or bool(args.only)
        times.main(stock, FOLDER / "times", again, args.what == "memory")
        return
    accuracy(names, 100 if args.quick else args.masks, args.seed, args.again or bool(args.only), args.quick)


if __name__ == "__main__":
    main()
