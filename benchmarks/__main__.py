"""Speed and memory, each figure a ratio measured in one run: `python -m benchmarks`.

Prints tables, writes `results/benchmarks.json` and a picture beside it. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks import growth, plots, speed, training
from benchmarks.record import save

GOALS = {
    "fused / torch.nn.RNN": 1.35,
    "fused / products": 1.3,
    "naive / fused": 3.0,
    "predict: moments / predict: 50 masks": 1 / 20,
}


def print_table(rows: list[dict[str, Any]], what: str, digits: int) -> None:
    """Milliseconds or ratios; a dash for what was left out."""
    names = list(dict.fromkeys(name for row in rows for name in row[what]))
    print("\n| batch | units | " + " | ".join(names) + " |")
    print("|---" * (2 + len(names)) + "|")
    for row in rows:
        cells = (f"{row[what][name]:.{digits}f}" if name in row[what] else "-" for name in names)
        print(f"| {row['batch']} | {row['units']} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of which the median is taken")
    parser.add_argument(
        "--quick", action="store_true", help="only batch 64, 400 units; no growth, no training; not saved"
    )
    parser.add_argument(
        "--patience", type=float, default=15.0, help="leave out what takes more seconds than this once"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    sizes = [(64, 400)] if args.quick else [(b, u) for b in (16, 64, 256) for u in (200, 400, 600)]
    rows: list[dict[str, Any]] = []
    for batch, units in sizes:
        print(f"measuring batch {batch}, {units} units", flush=True)
        rows.append(speed.measure(batch, units, args.rounds, args.patience))
    print_table(rows, "milliseconds", 1)
    print_table(rows, "ratios", 3)
    if args.quick:
        return
    grown = growth.measure(args.rounds)
    print(
        "\n| dimension | kind | time exponent | memory exponent | of its own memory |\n|---|---|---|---|---|"
    )
    for row in grown:
        for kind, found in row["time_exponent"].items():
            memory = (row[name].get(kind) for name in ("memory_exponent", "own_memory_exponent"))
            shown = ("-" if value is None else f"{value:.2f}" for value in memory)
            print(f"| {row['dimension']} | {kind} | {found:.2f} | {' | '.join(shown)} |")
    trained = training.measure(20)
    print(f"\ntraining at the size of MuseData: {trained['epochs_a_second']:.3f} epochs a second")
    print({name: f"{share:.1%}" for name, share in trained["share"].items()})
    config = {
        "rounds": args.rounds,
        "patience": args.patience,
        "threads": args.threads,
        "inputs": speed.INPUTS,
        "drops": speed.DROPS,
        "seed": 0,
    }
    path = save("benchmarks", config, {"speed": rows, "growth": grown, "training": trained, "goals": GOALS})
    print(f"wrote {path} and {plots.draw(path)}")


if __name__ == "__main__":
    main()
