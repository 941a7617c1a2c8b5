"""Pictures of runs and music. On a page they take its text colour, so they suit light and dark alike."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastdropout.errors import visible
from fastdropout.music.data.rolls import KEYS, LOWEST, Roll
from fastdropout.music.training.evaluation import Calibration
from fastdropout.music.training.fitting import Record

BLUE, ORANGE, GREEN, GREY = "#3b82f6", "#f97316", "#10b981", "#8b8b8b"
_COLOURS = (BLUE, ORANGE, GREEN, "#a855f7", "#ef4444", "#eab308", "#06b6d4", GREY)
_INK = "#010203"  # Stands for the page's text colour.
_NAMES = ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")

Records = Sequence[Record]


def learning_curves(metrics: Records, best_epoch: int = 0) -> Figure:
    """Train and valid `nll_per_step` over the epochs."""
    figure, axes = small_figure()
    for name, label, colour in (("train", "train", GREY), ("valid", "valid", BLUE)):
        x, y = series(metrics, f"{name}_nll_per_step")
        axes.plot(x, y, label=label, color=colour, linewidth=1.8)
    if best_epoch:
        axes.axvline(best_epoch, color=ORANGE, linewidth=1, linestyle="--", label="best valid")
    dress(axes, "epoch", "nats per frame")
    _whole_numbers(axes)
    return figure


def radii(metrics: Records) -> Figure:
    """Spectral radius of the recurrent weights and variance radius over the epochs."""
    figure, axes = small_figure()
    labels = (
        ("spectral_radius", "spectral radius ρ(W)", BLUE),
        ("variance_radius", "variance radius keep·ρ(W∘W)", ORANGE),
    )
    largest = 0.0
    for name, label, colour in labels:
        x, y = series(metrics, name)
        axes.plot(x, y, label=label, color=colour, linewidth=1.8)
        largest = max(largest, *y, 0.0) if len(y) else largest
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    if largest > 20:
        axes.set_yscale("log")
    dress(axes, "epoch", "radius")
    _whole_numbers(axes)
    return figure


def regulariser(metrics: Records) -> Figure:
    """Shares of weights with negative and positive lambda over the epochs, and the distribution of lambda."""
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    figure.patch.set_alpha(0)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for name, label, colour in (
        ("penalised", "penalised, λ > 0", BLUE),
        ("rewarded", "rewarded, λ < 0", ORANGE),
    ):
        x, y = series(metrics, name)
        top.plot(x, y, label=label, color=colour, linewidth=1.8)
    top.set_ylim(-0.02, 1.02)
    dress(top, "", "share of weights")
    those = [m for m in metrics if m.lambda_quantiles]
    epochs = [m.epoch for m in those]
    q = np.array([m.lambda_quantiles for m in those]).T
    bottom.fill_between(epochs, q[0], q[4], color=GREEN, alpha=0.25, linewidth=0, label="90 % of λ")
    bottom.fill_between(epochs, q[1], q[3], color=GREEN, alpha=0.4, linewidth=0, label="half of λ")
    bottom.plot(epochs, q[2], color=GREEN, linewidth=1.8, label="median")
    bottom.axhline(0, color=GREY, linewidth=1, linestyle=":")
    bottom.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    dress(bottom, "epoch", "λ", legend=False)
    place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "columnspacing": 1.2}
    bottom.legend(frameon=False, labelcolor=_INK, fontsize=9, borderpad=0, **place)  # not on the bands
    bottom.yaxis.get_offset_text().set_color(_INK)
    _whole_numbers(bottom)
    return figure


def calibration(table: Calibration, real: bool = False) -> Figure:
    """How often a note sounded, or a value lay below a quantile, against how probable it was said to be."""
    figure, axes = small_figure()
    used = table.count > 0
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    p = table.frequency[used]
    low, high = wilson(p, table.count[used])
    axes.errorbar(
        table.mean_probability[used],
        p,
        yerr=[p - low, high - p],
        color=BLUE,
        linewidth=1.2,
        marker="o",
        markersize=4,
        capsize=2,
    )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    dress(axes, "predicted probability", "share below" if real else "share that sounded", legend=False)
    return figure


def wilson(
    share: npt.NDArray[np.float64], count: npt.NDArray[np.int64], z: float = 1.959964
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Wilson's interval of a share out of `count` draws, 95 % by default.

        (s + z^2 / 2n -+ z sqrt(s (1 - s) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Unlike s -+ z sqrt(s (1 - s) / n) it stays in [0, 1] and has a width where all or none sounded.
    """
    middle = share + z**2 / (2 * count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    # Exact at shares of 0 and 1; rounding leaves about 1e-17 outside, which is no length of a bar.
    return np.minimum((middle - half) / scale, share), np.maximum((middle + half) / scale, share)


def valid_curves(runs: Mapping[str, Records]) -> Figure:
    """The valid `nll_per_step` of several runs."""
    figure, axes = small_figure()
    for number, (name, metrics) in enumerate(runs.items()):
        x, y = series(metrics, "valid_nll_per_step")
        axes.plot(x, y, label=plain(name), color=_COLOURS[number % len(_COLOURS)], linewidth=1.8)
    dress(axes, "epoch", "valid, nats per frame")
    _whole_numbers(axes)
    return figure


def predictions(
    truth: Roll, mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32] | None = None
) -> Figure:
    """What sounded, how probable it was said to be, and how uncertain that probability is."""
    panels: list[tuple[str, npt.NDArray[Any], str, float]] = [
        ("what sounded", truth.astype(np.float32), BLUE, 1.0),
        ("predicted probability, 0 to 1", mean, GREEN, 1.0),
    ]
    if std is not None and std.max() > 0:
        top = float(std.max())
        panels.append((f"its standard deviation, 0 to {top:.2f}", std, ORANGE, top))
    low, high = _range(truth)
    figure = Figure(figsize=(4.6, 1.6 * len(panels) + 0.3), layout="constrained")
    figure.patch.set_alpha(0)
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, values, colour, top) in zip(all_axes, panels, strict=True):
        _show_roll(axes, values, low, high, colour, top)
        axes.set_title(title, fontsize=10, color=_INK, loc="left")
    all_axes[-1].set_xlabel("frame", color=_INK)
    return figure


def piano_roll(roll: Roll, given: int = 0) -> Figure:
    """A piece; the frames before `given`, which were not generated, in grey."""
    low, high = _range(roll)
    wide = float(np.clip(len(roll) / 12, 5, 40))
    figure = Figure(figsize=(wide, 3.2), layout="constrained")
    axes = figure.subplots()
    if given:
        axes.axvspan(-0.5, given - 0.5, color=GREY, alpha=0.2, linewidth=0)
    _show_roll(axes, roll.astype(np.float32), low, high, BLUE, 1.0)
    axes.set_xlabel("frame", color=_INK)
    return figure


def to_svg(figure: Figure, name: str) -> str:
    """A figure to be put into a page; `name` keeps its ids apart from those of other figures there."""
    buffer = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
    with matplotlib.rc_context(style), _any_letters():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)  # The page decides.
    return f"{head} role='img'>{rest}".replace(_INK, "currentColor")


def to_png(figure: Figure, dpi: int = 120) -> bytes:
    """A figure as a picture on white."""
    buffer = io.BytesIO()
    with _any_letters():
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


SHOWN = 4
"""Features of a sequence that is no music that are drawn, each with axes of its own."""


def sequence(
    values: npt.NDArray[Any],
    given: int = 0,
    mean: npt.NDArray[Any] | None = None,
    std: npt.NDArray[Any] | None = None,
) -> Figure:
    """The first features of a sequence over its steps; a line where an opening ends.

    With `mean` and `std`, what was expected and two standard deviations about it.
    """
    shown = min(SHOWN, values.shape[1])
    figure = Figure(figsize=(9.5, 1.2 + 1.5 * shown), layout="constrained")
    figure.patch.set_alpha(0)
    steps = np.arange(len(values))
    for number, axes in enumerate(np.atleast_1d(figure.subplots(shown, 1, sharex=True))):
        if mean is not None:
            axes.plot(steps, mean[:, number], color=ORANGE, linewidth=1.2, label="expected")
            if std is not None:
                low, high = (mean[:, number] + sign * 2 * std[:, number] for sign in (-1, 1))
                axes.fill_between(steps, low, high, color=ORANGE, alpha=0.2, linewidth=0)
        axes.plot(
            steps, values[:, number], color=BLUE, linewidth=1.2, label="observed" if mean is not None else ""
        )
        if given:
            axes.axvline(given - 0.5, color=GREY, linewidth=1)
        last = number == shown - 1
        dress(axes, "step" if last else "", f"feature {number + 1}", legend=mean is not None and number == 0)
    return figure


def small_figure() -> tuple[Figure, Axes]:
    """An empty figure of the size of those in a report."""
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    figure.patch.set_alpha(0)
    return figure, figure.subplots()


def dress(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    """Labels, grid and colours that all figures share."""
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.grid(color=GREY, alpha=0.25, linewidth=0.7)
    _ink(axes)
    if legend:
        axes.legend(frameon=False, labelcolor=_INK, fontsize=9)


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ink(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    axes.tick_params(colors=_INK, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_color(_INK)
        spine.set_alpha(0.5)
        spine.set_visible(side in ("left", "bottom"))


def _show_roll(axes: Axes, values: npt.NDArray[Any], low: int, high: int, colour: str, top: float) -> None:
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    shades = ListedColormap([[*rgb, alpha] for alpha in np.linspace(0, 1, 256)])
    axes.imshow(
        values[:, low : high + 1].T,
        origin="lower",
        aspect="auto",
        interpolation="none",
        cmap=shades,
        vmin=0,
        vmax=top,
        extent=(-0.5, len(values) - 0.5, low - 0.5, high + 0.5),
    )
    octaves = [key for key in range(low, high + 1) if (key + LOWEST) % 12 == 0]
    ticks = octaves or [low, high]
    axes.set_yticks(ticks, [_key_name(key) for key in ticks])
    _ink(axes)


def _range(roll: Roll) -> tuple[int, int]:
    used = np.flatnonzero(roll.any(axis=0))
    if not len(used):
        return 39 - 12, 39 + 12  # Around the middle C.
    return max(0, int(used[0]) - 3), min(KEYS - 1, int(used[-1]) + 3)


def _key_name(key: int) -> str:
    number = key + LOWEST
    return f"{_NAMES[number % 12]}{number // 12 - 1}"


def series(metrics: Records, name: str) -> tuple[list[int], list[float]]:
    """The epochs that have a value of this name, and the values."""
    points = [(m.epoch, getattr(m, name)) for m in metrics if getattr(m, name) is not None]
    return [x for x, _ in points], [float(y) for _, y in points]


@contextmanager
def _any_letters() -> Iterator[None]:
    """Without warnings about letters that matplotlib's own font lacks: a page is read with another one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def plain(text: str) -> str:
    """A label for a figure that shows `text` as it is: to matplotlib, dollars enclose a formula."""
    return visible(text).replace("$", r"\$")
