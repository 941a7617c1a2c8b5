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
    "one pass / 50 masks": 1 / 20,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of which the median is taken")
    parser.add_argument(
        "--quick", action="store_true", help="only batch 64, 400 units; no growth, no training; not saved"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    sizes = [(64, 400)] if args.quick else [(b, u) for b in (16, 64, 256) for u in (200, 400, 600)]
    rows: list[dict[str, Any]] = []
    for batch, units in sizes:
        row = speed.measure(batch, units, args.rounds)
        rows.append(row)
        if len(rows) == 1:
            print("| batch | units | " + " | ".join(f"{name}, ms" for name in row["milliseconds"]) + " |")
            print("|---" * (2 + len(row["milliseconds"])) + "|")
        print(
            f"| {batch} | {units} | " + " | ".join(f"{v:.1f}" for v in row["milliseconds"].values()) + " |",
            flush=True,
        )
    print("\n| batch | units | " + " | ".join(rows[0]["ratios"]) + " |")
    print("|---" * (2 + len(rows[0]["ratios"])) + "|")
    for row in rows:
        print(
            f"| {row['batch']} | {row['units']} | "
            + " | ".join(f"{v:.3f}" for v in row["ratios"].values())
            + " |"
        )
    if args.quick:
        return
    grown = growth.measure(3)
    print("\n| dimension | kind | time exponent | memory exponent | MB at most |\n|---|---|---|---|---|")
    for row in grown:
        for kind in growth.KINDS:
            exponents = f"{row['time_exponent'][kind]:.2f} | {row['memory_exponent'][kind]:.2f}"
            print(f"| {row['dimension']} | {kind} | {exponents} | {row['megabytes'][kind][-1]:.0f} |")
    trained = training.measure(20)
    print(f"\ntraining at the size of MuseData: {trained['epochs_a_second']:.3f} epochs a second")
    print({name: f"{share:.1%}" for name, share in trained["share"].items()})
    config = {
        "rounds": args.rounds,
        "threads": args.threads,
        "inputs": speed.INPUTS,
        "drops": speed.DROPS,
        "seed": 0,
    }
    path = save("benchmarks", config, {"speed": rows, "growth": grown, "training": trained, "goals": GOALS})
    print(f"wrote {path} and {plots.draw(path)}")


if __name__ == "__main__":
    main()
