"""The picture of the README, docs/images/one-pass.png: one pass against many with drawn masks.

A tanh network of 100 units, spectral radius 1.2, with dropout on inputs and hidden units. Its weights are
drawn from a fixed seed and not trained; three of its units over 40 steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import fastdropout as fd
from benchmarks.rules import make_rnn

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "one-pass.png"
MASKS, UNITS, DROPS = 4000, (0, 1, 2), (0.1, 0.2)


@torch.no_grad()
def measure() -> dict[str, np.ndarray]:
    once, drawn = make_rnn(1.2, 0, DROPS), make_rnn(1.2, 0, DROPS, method="mask")
    x = torch.randn(40, 1, 20, generator=torch.Generator().manual_seed(5))
    exact: fd.Moments = once(x)[0]
    sample = drawn(x.expand(40, MASKS, 20))[0].mean
    return {
        "mean": exact.mean[:, 0].numpy(),
        "std": exact.std[:, 0].numpy(),
        "drawn": sample[:, :30, list(UNITS)].numpy(),
        "drawn_std": sample.std(1).numpy(),
    }


def draw(data: dict[str, np.ndarray]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig = plt.figure(figsize=(10, 4), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=[1.9, 1])
    axes = left.subplots(len(UNITS), 1, sharex=True)
    steps = np.arange(1, 41)
    for i, (axis, unit) in enumerate(zip(axes, UNITS, strict=True)):
        axis.plot(steps, data["drawn"][:, :, i], color="0.55", lw=0.4, alpha=0.8)
        mean, std = data["mean"][:, unit], data["std"][:, unit]
        axis.fill_between(steps, mean - std, mean + std, color="C0", alpha=0.35, lw=0)
        axis.plot(steps, mean, color="C0", lw=1.4)
        axis.set_ylim(-1.1, 1.1)
        axis.set_ylabel(f"unit {unit + 1}")
    axes[0].set_title(
        "Random weights: one pass (blue: mean ± 1 std), 30 passes with sampled masks (grey)", fontsize=10
    )
    axes[-1].set_xlabel("time step")
    axis = right.subplots()
    axis.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    axis.plot(data["drawn_std"].ravel(), data["std"].ravel(), ".", ms=2, alpha=0.35, color="C0")
    axis.set_xlim(0, 0.75)
    axis.set_ylim(0, 0.75)
    axis.set_aspect("equal")
    axis.set_xlabel(f"standard deviation over {MASKS} passes")
    axis.set_ylabel("standard deviation from one pass")
    axis.set_title("All 100 units and 40 steps", fontsize=10)
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(IMAGE, dpi=120)
    plt.close(fig)


if __name__ == "__main__":
    found = measure()
    np.savez_compressed(IMAGE.with_suffix(".npz"), **found)
    draw(found)
    ratio = (found["std"] ** 2).mean() / (found["drawn_std"] ** 2).mean()
    print(f"wrote {IMAGE}; mean variance of one pass over that of {MASKS} masks: {ratio:.3f}")
