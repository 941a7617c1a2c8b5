"""Pictures of the benchmark, drawn from the files under results/uncertainty alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.uncertainty import store
from benchmarks.uncertainty.regression import SHARES
from fastdropout.files import write_atomic
from fastdropout.music.study.gallery import THEMES, Theme

IMAGES = Path(__file__).parents[2] / "docs" / "images"
# The same colour for a method in all pictures; what else is there is grey.
COLOURS = {"fast dropout": "blue", "MC dropout 50": "orange", "deep ensemble 5": "green", "plain": "grey"}
FILES = {"fast dropout": "mean", "MC dropout 50": "mask", "deep ensemble 5": "plain", "plain": "plain"}


def _runs(name: str, method: str) -> list[dict[str, Any]]:
    return store.figures(f"{name}/{FILES[method]}")[method]


def band(theme: Theme) -> Figure:
    """Mean and two standard deviations over a function with a gap in the data."""
    found = store.figures("gap/all")
    figure = theme.figure(9.2, 2.9)
    all_axes = figure.subplots(1, len(found["bands"]), sharey=True)
    grid = np.array(found["grid"])
    for axes, (method, values) in zip(all_axes, found["bands"].items(), strict=True):
        colour = getattr(theme, COLOURS.get(method, "purple"))
        mean, std = np.array(values["mean"]), np.array(values["std"])
        axes.fill_between(grid, mean - 2 * std, mean + 2 * std, color=colour, alpha=0.22, linewidth=0)
        axes.plot(grid, found["true"], color=theme.ink, linewidth=0.9, linestyle=":")
        axes.plot(grid, mean, color=colour, linewidth=1.6)
        axes.plot(found["x"], found["y"], ".", color=theme.ink, markersize=2, alpha=0.6)
        axes.set_ylim(-3, 3)
        theme.dress(axes, "x", "y" if axes is all_axes[0] else "", method)
    return figure


def reliability(theme: Theme) -> Figure:
    """How often the prediction was right against how sure it was: as they come, and for rotated copies."""
    figure = theme.figure(7.4, 3.1)
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("digits", "mnist"), strict=True):
        axes.plot([0, 1], [0, 1], color=theme.grey, linewidth=1, linestyle=":")
        for method, colour in COLOURS.items():
            said, was = _pooled([run["rotated reliability"] for run in _runs(name, method)])
            axes.plot(
                said, was, "o-", color=getattr(theme, colour), linewidth=1.5, markersize=3, label=method
            )
        title = f"{name}, rotated"
        theme.dress(
            axes, "confidence", "share that was right" if name == "digits" else "", title, name == "digits"
        )
    return figure


def _pooled(tables: list[list[list[float]]], bins: int = 10) -> tuple[Any, Any]:
    """Bins of all splits together, those with at least 20 rows."""
    said, was, count = (np.concatenate([t[i] for t in tables]) for i in range(3))
    index = np.minimum((said * bins).astype(int), bins - 1)
    total = np.bincount(index, count, bins)
    used = total >= 20
    means = [np.bincount(index, v * count, bins)[used] / total[used] for v in (said, was)]
    return means[0], means[1]


def sparsification(theme: Theme) -> Figure:
    """RMSE of the rows that are left when the most uncertain ones are removed."""
    figure = theme.figure(9.2, 2.9)
    names = ("boston", "concrete", "computers")
    for axes, name in zip(figure.subplots(1, 3), names, strict=True):
        for method, colour in COLOURS.items():
            curves = np.array([np.array(run["curve"]) / run["curve"][0] for run in _runs(name, method)])
            axes.plot(SHARES, curves.mean(0), color=getattr(theme, colour), linewidth=1.6, label=method)
        axes.set_ylim(0, None)
        y = "RMSE of the rest / of all" if name == names[0] else ""
        theme.dress(axes, "share of rows removed, largest spread first", y, name, name == names[0])
    return figure


def risk_coverage(theme: Theme) -> Figure:
    """Error among the predictions that are given, the surest first."""
    figure = theme.figure(7.4, 3.1)
    shares = np.linspace(0.1, 1, 19)
    for axes, name in zip(figure.subplots(1, 2), ("digits", "mnist"), strict=True):
        for method, colour in COLOURS.items():
            curves = np.array([run["rotated risk"] for run in _runs(name, method)])
            axes.plot(shares, 100 * curves.mean(0), color=getattr(theme, colour), linewidth=1.6, label=method)
        axes.set_ylim(0, None)
        y = "errors among them, %" if name == "digits" else ""
        theme.dress(axes, "share of pictures that are answered", y, f"{name}, rotated", name == "digits")
    return figure


PICTURES: dict[str, Callable[[Theme], Figure]] = {
    "uncertainty-band": band,
    "uncertainty-reliability": reliability,
    "uncertainty-sparsification": sparsification,
    "uncertainty-risk-coverage": risk_coverage,
}


def main() -> None:
    """Draw the pictures of docs/uncertainty.md."""
    for name, draw in PICTURES.items():
        buffer = io.BytesIO()
        with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
            try:
                figure = draw(THEMES[0])
            except FileNotFoundError as missing:
                print(f"{name} is left out: {missing.filename} is not there yet")
                continue
            figure.savefig(buffer, format="png", dpi=150, facecolor=THEMES[0].paper)
        write_atomic(IMAGES / f"{name}.png", buffer.getvalue())
        print(f"wrote {IMAGES / name}.png")
