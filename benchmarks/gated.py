"""Speed of LSTM, GRU, two layers and weight noise: `python -m benchmarks.gated`, results/gated.json.

Ratios of medians measured in one run; *products* are the batched products of the layer, all gates at once,
and nothing else. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks import speed
from benchmarks.__main__ import print_table
from benchmarks.record import save

GOALS = {
    "LSTM / LSTM products": 1.25,
    "LSTM / torch.nn.LSTM": 2.0,
    "GRU / GRU products": 1.25,
    "GRU / torch.nn.GRU": 1.8,
    "predict: LSTM / predict: 50 LSTM masks": 1 / 20,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gated", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of which the median is taken")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--units", type=int, default=400)
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = []
    for batch in args.batch:
        print(f"measuring batch {batch}, {args.units} units", flush=True)
        rows.append(speed.measure(batch, args.units, args.rounds, float("inf"), speed.GATED, ()))
    print_table(rows, "milliseconds", 1)
    print_table(rows, "ratios", 3)
    config = {**vars(args), "inputs": speed.INPUTS, "steps": speed.STEPS, "drops": speed.DROPS, "seed": 0}
    print("wrote", save("gated", config, {"speed": rows, "goals": GOALS}))


if __name__ == "__main__":
    main()
