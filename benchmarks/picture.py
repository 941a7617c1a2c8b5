"""The picture of the README, docs/images/one-pass.png: one pass of a trained network against many with masks.

An LSTM of 64 units with dropout, trained to continue sines (`benchmarks.cells`), on a sine that doubles its
frequency on the way, which it has not seen. Left: forecasts and their standard deviation. Right: both
variances of all steps of 32 such sines against masks. The numbers are in `results/one-pass.npz`;
`python -m benchmarks.picture --draw` only draws them.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import fastdropout as fd
from benchmarks.cells import Forecaster, trained
from fastdropout.files import write_atomic
from fastdropout.music.study.gallery import THEMES, Theme, load

ROOT = Path(__file__).parents[1]
IMAGE = ROOT / "docs" / "images" / "one-pass.png"
NUMBERS = ROOT / "results" / "one-pass.npz"
LAYER, DROP, UPDATES, MASKS, SEQUENCES, SHOWN = "LSTM", 0.1, 600, 4000, 32, 30


def waves() -> Tensor:
    """Sines whose frequency doubles after 20 steps, (steps + 1, sequences, 1)."""
    generator = torch.Generator().manual_seed(3)
    slow = 0.15 + 0.15 * torch.rand(SEQUENCES, generator=generator)
    speed = slow * torch.where(torch.arange(41)[:, None] < 20, 1.0, 2.0)
    return torch.sin(speed.cumsum(0) + 6.3 * torch.rand(SEQUENCES, generator=generator))[..., None]


def measure() -> dict[str, np.ndarray]:
    model = trained(LAYER, "sine", DROP, UPDATES)
    masks = Forecaster(LAYER, DROP, "mask")
    masks.load_state_dict(model.state_dict())
    wave = waves()
    x = wave[:-1]
    diagonal = model(x).detach()
    with fd.integrate() as noise:
        y = model(x)
    traced = noise.std(y, batch_dim=1).detach()
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = [masks(x[:, [i]].expand(-1, MASKS, 1)).mean[..., 0] for i in range(SEQUENCES)]
    sample = torch.stack(drawn, 2)  # steps, masks, sequences
    found = {
        "wave": wave[1:, 0, 0],
        "mean": diagonal.mean[:, 0, 0],
        "std": traced[:, 0, 0],
        "drawn": sample[:, :SHOWN, 0],
        "diagonal_std": diagonal.std[..., 0],
        "traced_std": traced[..., 0],
        "drawn_std": sample.std(1),
    }
    return {name: value.numpy().astype(np.float32) for name, value in found.items()}


def draw(data: dict[str, np.ndarray], theme: Theme) -> Figure:
    figure = theme.figure(8.6, 3.1)
    left, right = figure.subplots(1, 2, width_ratios=[1.9, 1])
    steps = np.arange(1, len(data["mean"]) + 1)
    lines = left.plot(steps, data["drawn"], color=theme.grey, linewidth=0.5, alpha=0.6)
    lines[0].set_label(f"{SHOWN} passes with sampled masks")
    mean, std = data["mean"], data["std"]
    band = {"color": theme.blue, "alpha": 0.25, "linewidth": 0}
    left.fill_between(steps, mean - 2 * std, mean + 2 * std, label="predicted, ± 2 std", **band)
    left.plot(steps, mean, color=theme.blue, linewidth=1.6, label="predicted mean")
    left.plot(steps, data["wave"], ":", color=theme.ink, linewidth=1.2, label="truth")
    left.axvline(20.5, color=theme.ink, linewidth=0.6, alpha=0.5)
    theme.dress(left, "time step", "forecast", "a trained LSTM; the frequency doubles at step 20")
    left.set_ylim(-2.3, 1.75)
    left.legend(frameon=False, labelcolor=theme.ink, fontsize=7.5, ncols=2, loc="lower left")
    top = 1.05 * max(data["drawn_std"].max(), data["traced_std"].max())
    right.plot([0, top], [0, top], color=theme.ink, linewidth=0.8, alpha=0.7)
    for name, colour in (("diagonal", theme.orange), ("traced", theme.blue)):
        dots = {"s": 5, "alpha": 0.5, "linewidths": 0, "rasterized": True}
        right.scatter(
            data["drawn_std"].ravel(), data[f"{name}_std"].ravel(), color=colour, label=name, **dots
        )
    right.set_xlim(0, top)
    right.set_ylim(0, top)
    theme.dress(right, f"std over {MASKS:,} masks", "predicted std", f"{SEQUENCES} such sequences")
    legend = right.legend(frameon=False, labelcolor=theme.ink, fontsize=7.5, markerscale=2.5)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    return figure


def main() -> None:
    if "--draw" not in sys.argv:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **measure())  # type: ignore[arg-type]
        write_atomic(NUMBERS, buffer.getvalue())
    data = dict(load(NUMBERS))
    buffer = io.BytesIO()
    draw(data, THEMES[0]).savefig(buffer, format="png", dpi=150)
    write_atomic(IMAGE, buffer.getvalue())
    for name in ("diagonal", "traced"):
        ratio = data[f"{name}_std"].mean() / data["drawn_std"].mean()
        print(f"{name}: mean std of one pass / of {MASKS} masks = {ratio:.3f}")
    print("wrote", IMAGE, NUMBERS)


if __name__ == "__main__":
    main()
