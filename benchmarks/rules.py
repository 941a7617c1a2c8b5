"""How good the transfer rules are: alone against quadrature, and inside a recurrence against masks.

Writes `results/rules.json` and prints the tables of `docs/rules.md`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import fastdropout as fd
from benchmarks.record import save
from fastdropout import Moments
from fastdropout.functional import RULES, quadrature


def errors() -> list[dict[str, Any]]:
    mean = torch.linspace(-10, 10, 201, dtype=torch.float64)
    var = torch.cat([torch.zeros(1), torch.logspace(-4, 2, 121)]).double()
    grid = Moments(*torch.meshgrid(mean, var, indexing="ij"))
    rows = []
    for name in ("tanh", "sigmoid"):
        exact = quadrature.transform(getattr(torch, name), grid)
        for rule in RULES:
            got = getattr(fd.functional, name)(grid, rule)
            rows.append(
                {
                    "function": name,
                    "rule": rule,
                    "max_error_mean": (got.mean - exact.mean).abs().max().item(),
                    "max_error_var": (got.var - exact.var).abs().max().item(),
                    "max_var_of_certain": got.var[:, 0].max().item(),
                }
            )
    return rows


def make_rnn(radius: float, seed: int, drops: tuple[float, float], **options: Any) -> fd.nn.RNN:
    torch.manual_seed(seed)
    rnn = fd.nn.RNN(20, 100, drop_input=drops[0], drop_hidden=drops[1], **options)
    with torch.no_grad():
        fd.nn.init.gaussian_(rnn.weight_ih_l0, 0.09)
        fd.nn.init.spectral_radius_(fd.nn.init.gaussian_(rnn.weight_hh_l0, 1.0), radius)
    return rnn


@torch.no_grad()
def ratios(masks: int, seeds: int) -> list[dict[str, Any]]:
    """Predicted over true variance of a tanh RNN, averaged over units, steps and seeds."""
    rows = []
    for drops in ((0.0, 0.2), (0.1, 0.2), (0.2, 0.5)):
        for radius in (0.9, 1.2, 2.0):
            found: dict[str, list[float]] = {rule: [] for rule in RULES}
            for seed in range(seeds):
                drawn = make_rnn(radius, seed, drops, method="mask")
                x = torch.randn(40, 1, 20)
                truth = drawn(x.expand(40, masks, 20))[0].mean.var(1).mean()
                for rule in RULES:
                    predicted = make_rnn(radius, seed, drops, rule=rule)(x)[0].var.mean()
                    found[rule].append((predicted / truth).item())
            rows.append(
                {
                    "drop_input": drops[0],
                    "drop_hidden": drops[1],
                    "radius": radius,
                    "ratio": {rule: sum(values) / seeds for rule, values in found.items()},
                    "lowest": {rule: min(values) for rule, values in found.items()},
                    "highest": {rule: max(values) for rule, values in found.items()},
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    table, checks = errors(), ratios(args.masks, args.seeds)
    heads = "function | rule | max error mean | max error variance | variance of a certain input"
    print(f"| {heads} |\n|---|---|---|---|---|")
    for row in table:
        figures = (f"{row[key]:.1e}" for key in ("max_error_mean", "max_error_var", "max_var_of_certain"))
        print(f"| {row['function']} | {row['rule']} | {' | '.join(figures)} |")
    print(f"\n| drop input / hidden | radius | {' | '.join(RULES)} |\n|---|---|---|---|---|")
    for row in checks:
        cells = (f"{row['ratio'][rule]:.3f}" for rule in RULES)
        print(f"| {row['drop_input']} / {row['drop_hidden']} | {row['radius']} | {' | '.join(cells)} |")
    config = {"masks": args.masks, "seeds": list(range(args.seeds)), "units": 100, "steps": 40, "inputs": 20}
    print("\nwrote", save("rules", config, {"errors": table, "recurrence": checks}))


if __name__ == "__main__":
    main()
