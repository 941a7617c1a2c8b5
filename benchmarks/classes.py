"""Class losses of random logits: error and time by number of classes and variance, and the softmax rules.

Writes `results/classes.json` and prints its tables. `--fit` fits the constants of
`functional/gumbel.py` anew.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.record import save
from benchmarks.timing import medians
from fastdropout import Moments, functional, losses
from fastdropout.functional import gumbel, quadrature

CLASSES = (2, 10, 100, 1_000, 10_000)
VARIANCES = (0.0, 0.01, 0.1, 1.0, 4.0, 25.0, 100.0)
LEVELS = 8
MIXED = (0.0, 100.0, 1.0, 4.0, 9.0, 16.0, 25.0, 0.1)


def levels(classes: int, variance: float | None, seed: int) -> tuple[Moments, torch.Tensor]:
    """At most eight distinct logits, each `count` times: exact integration is cheap for any number."""
    n = min(classes, LEVELS)
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, generator=g).double() * 2
    var = torch.tensor(MIXED[:n]) if variance is None else torch.full((n,), variance)
    count = torch.full((n,), classes // n)
    count[0] += classes - count.sum()
    return Moments(mean, var.double()), count


@torch.no_grad()
def errors(seeds: int) -> list[dict[str, Any]]:
    rows = []
    for classes in CLASSES:
        for variance in (*VARIANCES, None):
            row: dict[str, Any] = {"classes": classes, "variance": "mixed" if variance is None else variance}
            found: dict[str, list[float]] = {"mean": [], "expected": [], "mean_loss": [], "expected_loss": []}
            for seed in range(seeds):
                few, count = levels(classes, variance, seed)
                log_p, lse = quadrature.categorical(few, count)
                every = torch.repeat_interleave(torch.arange(len(count)), count)
                x = few[every].to(torch.float32)
                first = torch.cat([torch.zeros(1).long(), count.cumsum(0)[:-1]])
                nll = torch.stack([losses.categorical_nll(x, i) for i in first])
                expected = functional.expected_logsumexp(x) - few.mean
                found["mean"].append((nll + log_p).abs().max().item())
                found["expected"].append((expected - lse + few.mean).abs().max().item())
                found["mean_loss"].append(nll.mean().item())
                found["expected_loss"].append(expected.mean().item())
            row["max_error"] = {name: max(found[name]) for name in ("mean", "expected")}
            row["loss"] = {name: sum(found[f"{name}_loss"]) / seeds for name in ("mean", "expected")}
            rows.append(row)
    return rows


@torch.no_grad()
def softmax_errors(draws: int) -> list[dict[str, Any]]:
    """Total variation of the mean probabilities and the ratio of summed variances, against sampling."""
    rows = []
    for classes in (2, 10, 64, 1_000):
        for variance in (0.1, 1.0, 4.0, 16.0):
            torch.manual_seed(0)
            x = Moments(torch.randn(classes) * 2, torch.rand(classes) * 2 * variance)
            p = torch.cat([x.sample((draws // classes // 8,)).softmax(-1) for _ in range(8)]).double()
            row: dict[str, Any] = {"classes": classes, "variance": variance, "rules": {}}
            for rule in ("fast", "accurate", "paper"):
                if rule == "paper" and classes > 64:
                    continue
                y = functional.softmax(x, rule=rule)  # type: ignore[arg-type]
                row["rules"][rule] = {
                    "total_variation": ((y.mean - p.mean(0)).abs().sum() / 2).item(),
                    "variance_ratio": (y.var.sum() / p.var(0).sum()).item(),
                }
            row["sampling_noise"] = ((p.std(0) / len(p) ** 0.5).sum() / 2).item()
            rows.append(row)
    return rows


def times(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a loss with its gradient; 32 rows of logits of variance 1."""
    rows = []
    for classes in CLASSES:
        torch.manual_seed(0)
        mean, var = torch.randn(32, classes).requires_grad_(), torch.ones(32, classes).requires_grad_()
        target = torch.randint(classes, (32,))

        def sampled(mean=mean, var=var, target=target):
            a = Moments(mean, var).sample((50,))
            F.cross_entropy(a.flatten(0, 1), target.repeat(50)).backward()

        contestants = {
            "plain": lambda m=mean, t=target: F.cross_entropy(m, t).backward(),
            "mean": lambda m=mean, v=var, t=target: losses.cross_entropy(Moments(m, v), t).backward(),
            "expected": lambda m=mean, v=var, t=target: losses.cross_entropy(
                Moments(m, v), t, expected=True
            ).backward(),
            "50 samples of the logits": sampled,
        }
        found = medians(contestants, rounds)
        rows.append({"classes": classes, "milliseconds": {k: v * 1e3 for k, v in found.items()}})
    return rows


def fit() -> None:
    """The constants of `gumbel`: least squares, with weights raised where the error is largest."""
    import numpy as np
    from scipy.optimize import least_squares
    from scipy.special import ndtr

    b = np.concatenate([np.linspace(-16, -8, 100, endpoint=False), np.linspace(-8, 8, 1200)])
    f, upper = -np.expm1(-np.exp(b)), np.exp(-np.exp(b))
    scale = (1 + np.exp(np.minimum(b, 2.7))) / f

    def residuals(p: Any) -> Any:
        mu, c, nu, d, (a, at, width) = p[0], p[1], p[2], p[3], p[4:].reshape(3, -1)
        rest = ndtr(-(b - mu) / c) - np.exp(b) * ndtr(-(b - nu) / d)
        rest = rest - (a * np.exp(-0.5 * ((b[:, None] - at) / width) ** 2)).sum(1)
        # F must not be negative anywhere: its average over any Gaussian then is not either.
        return np.concatenate([(upper - rest) * scale, np.minimum(rest, 0) * 100])

    p = np.array([gumbel._MU, gumbel._C, gumbel._NU, gumbel._D, *gumbel._A, *gumbel._B, *gumbel._G])
    weight, best = np.ones_like(b), (math.inf, p)
    for _ in range(30):
        w = np.sqrt(np.concatenate([weight, np.ones_like(b)]))
        p = least_squares(lambda q, w=w: residuals(q) * w, p, x_scale="jac", max_nfev=50).x
        found = residuals(p)
        error = np.abs(found[: len(b)])
        if error.max() < best[0] and -found[len(b) :].min() < 2e-5:
            best = (error.max(), p)
        weight *= error / error.max() + 0.02
        weight /= weight.mean()
    print(f"error relative to f / (1 + exp(b)): {best[0]:.2e}")
    for name, value in zip(("MU", "C", "NU", "D"), best[1], strict=False):
        print(f"_{name} = {value:.9f}")
    for name, values in zip(("A", "B", "G"), best[1][4:].reshape(3, -1), strict=True):
        print(f"_{name} = ({', '.join(f'{v:.9f}' for v in values)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--draws", type=int, default=20_000_000, help="drawn logits for a row of the softmax table"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fit", action="store_true", help="fit the constants and stop")
    args = parser.parse_args()
    if args.fit:
        fit()
        return
    torch.set_num_threads(1)
    figures = {
        "losses": errors(args.seeds),
        "softmax": softmax_errors(args.draws),
        "times": times(args.rounds),
    }
    print("| classes | variance | -log E[p] | error | E[-log p] | error |\n|---|---|---|---|---|---|")
    for row in figures["losses"]:
        cells = (f"{row['loss'][k]:.3f} | {row['max_error'][k]:.1e}" for k in ("mean", "expected"))
        print(f"| {row['classes']} | {row['variance']} | {' | '.join(cells)} |")
    print("\n| classes | variance | rule | total variation | variance / sampled |\n|---|---|---|---|---|")
    for row in figures["softmax"]:
        for rule, r in row["rules"].items():
            cells = f"{r['total_variation']:.1e} | {r['variance_ratio']:.2f}"
            print(f"| {row['classes']} | {row['variance']} | {rule} | {cells} |")
    names = list(figures["times"][0]["milliseconds"])
    print(f"\n| classes | {' | '.join(names)} |\n" + "|---" * (1 + len(names)) + "|")
    for row in figures["times"]:
        print(f"| {row['classes']} | " + " | ".join(f"{row['milliseconds'][n]:.2f}" for n in names) + " |")
    config = {"seeds": list(range(args.seeds)), "draws": args.draws, "rounds": args.rounds, "rows": 32}
    print("\nwrote", save("classes", config, figures))


if __name__ == "__main__":
    main()
