"""Figure 1: what a loss does to the mean and the variance of one output unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from fastdropout.functional import losses
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop

TARGET = 0.2
LOSSES: dict[str, tuple[str, Callable[[Moments, Tensor], Tensor]]] = {
    "squared": ("squared error of the mean", losses.squared_error),
    "gaussian": ("Gaussian log-likelihood", losses.gaussian_nll),
    "bernoulli": ("Bernoulli cross entropy", losses.bernoulli_nll),
}


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Losses and gradients on a grid of E[a] and V[a]."""
    n = 21 if shop.quick else 161
    mean = torch.linspace(TARGET - 4, TARGET + 4, n, dtype=torch.float64)
    var = torch.linspace(0.05, 6, n, dtype=torch.float64)
    m, v = (t.requires_grad_() for t in torch.meshgrid(mean, var, indexing="xy"))
    out: dict[str, npt.NDArray[Any]] = {"mean": mean.numpy(), "var": var.numpy()}
    for name, (_, loss) in LOSSES.items():
        value = loss(unchecked_moments(m, v), torch.full_like(m, TARGET))
        by_mean, by_var = torch.autograd.grad(value.sum(), (m, v), allow_unused=True)
        out[name] = value.detach().numpy()
        out[f"{name}_by_mean"] = by_mean.numpy()
        out[f"{name}_by_var"] = torch.zeros_like(v).numpy() if by_var is None else by_var.numpy()
    # The mean that gives the target as expected probability, for each variance: the lowest loss there.
    rows = out["bernoulli"].argmin(1)
    out["bernoulli_best_mean"] = out["mean"][rows]
    return {name: found.astype(np.float32) for name, found in out.items()}


def draw(values: Values, theme: Theme) -> Figure:
    """Loss above its least value in colour, descent as arrows, the optimum marked."""
    figure = theme.figure(7.4, 3.1)
    all_axes = figure.subplots(1, 3, sharey=True)
    mean, var = values["mean"], values["var"]
    skip = max(1, len(mean) // 17)
    at = slice(skip // 2, None, skip)
    for axes, (name, (title, _)) in zip(all_axes, LOSSES.items(), strict=True):
        loss = values[name]
        above = loss - loss.min() + 1e-2  # a log scale needs positive numbers
        shown = axes.pcolormesh(
            mean, var, above, norm=LogNorm(1e-2, 30), cmap="viridis", shading="gouraud", rasterized=True
        )
        right, up = -values[f"{name}_by_mean"][at, at], -values[f"{name}_by_var"][at, at]
        # Lengths are compressed to the fourth root: they differ by orders of magnitude.
        length = np.hypot(right, up)
        scale = np.divide(length**0.25, length, out=np.zeros_like(length), where=length > 1e-12)
        axes.quiver(
            mean[at],
            var[at],
            right * scale,
            up * scale,
            color="white",
            alpha=0.9,
            angles="xy",
            width=0.006,
            scale=28,
            headwidth=4,
        )
        theme.dress(axes, "E[a]", "V[a]" if name == "squared" else "", title)
        axes.grid(visible=False)
        mark = {"color": theme.orange, "clip_on": False, "zorder": 5}
        if name == "gaussian":
            star = {"marker": "*", "markersize": 13, "markeredgecolor": "white", "linestyle": ""}
            axes.plot([TARGET], [var[0]], label="optimum", **star, **mark)
        else:
            x = np.full_like(var, TARGET) if name == "squared" else _smooth(values["bernoulli_best_mean"])
            axes.plot(x, var, linewidth=2, label="optima", **mark)
        box = {"facecolor": theme.paper, "edgecolor": "none", "labelcolor": theme.ink}
        axes.legend(loc="upper right", fontsize=7.5, **box)
        axes.set_xlim(mean[0], mean[-1])
        axes.set_ylim(var[0], var[-1])
    bar = figure.colorbar(shown, ax=all_axes, shrink=0.9, pad=0.02)
    bar.set_label("loss above its least, + 0.01", color=theme.ink, fontsize=8.5)
    bar.ax.tick_params(colors=theme.ink, labelsize=8)
    bar.outline.set_visible(False)
    return figure


def _smooth(line: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A line found on a grid, without its stairs."""
    position = np.linspace(-1, 1, len(line))
    return np.polynomial.Polynomial.fit(position, line, 4)(position)


def caption(values: Values) -> str:
    """What is seen."""
    return (
        f"One output unit with target {TARGET}: loss above its least value in colour (log scale), arrows "
        "down the gradient (fourth root of its length), the optimum in orange. The squared error leaves "
        "the variance free; the Gaussian likelihood ends at the target without variance; under the "
        f"Bernoulli loss the optimum is a line on which E[p] = {TARGET}, so that variance is penalised only "
        "by what it does to the mean probability."
    )


def table(values: Values) -> Table:
    """Where more variance lowers the loss, and where the optimum is."""
    best, var = values["bernoulli_best_mean"], values["var"]
    optimum = {
        "squared": f"E[a] = {TARGET}, any V[a]",
        "gaussian": f"E[a] = {TARGET}, V[a] -> 0",
        "bernoulli": f"E[a] = {best[0]:.2f} at V[a] = {var[0]:.2f} to {best[-1]:.2f} at {var[-1]:.0f}",
    }
    rows = []
    for name, (title, _) in LOSSES.items():
        by_var = values[f"{name}_by_var"]
        rows.append([title, f"{(by_var < 0).mean():.0%}", f"{(by_var == 0).mean():.0%}", optimum[name]])
    return ["loss", "delta < 0 (rewarded), of the plane", "delta = 0", "optimum"], rows


EXHIBIT = Exhibit("fields", "Mean and variance of one output unit", 5, measure, draw, caption, table)
