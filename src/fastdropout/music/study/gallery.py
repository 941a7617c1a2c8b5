"""The paper's analysis in pictures: measured, saved, and drawn from what was saved, for light and dark pages.

>>> from fastdropout.music.study.gallery import make_all                              # doctest: +SKIP
>>> make_all("figures")                                                         # doctest: +SKIP
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastdropout.errors import FastdropoutError
from fastdropout.files import write_atomic
from fastdropout.music.study.trainings import Training, train_all

Values = Mapping[str, npt.NDArray[Any]]
Table = tuple[list[str], list[list[str]]]
"""The head and the rows."""
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Theme:
    """Colours that suit a page."""

    name: str
    ink: str
    paper: str
    blue: str
    orange: str
    green: str
    purple: str
    grey: str

    @property
    def series(self) -> tuple[str, ...]:
        """Colours of things that are compared, in order."""
        return self.blue, self.orange, self.green, self.purple

    def dress(self, axes: Axes, x: str = "", y: str = "", title: str = "", legend: bool = False) -> None:
        """Labels, a quiet grid, and no box."""
        axes.set_xlabel(x, color=self.ink, fontsize=8.5)
        axes.set_ylabel(y, color=self.ink, fontsize=8.5)
        axes.set_title(title, color=self.ink, fontsize=9, loc="left")
        axes.set_facecolor(self.paper)
        axes.tick_params(colors=self.ink, labelsize=8, which="both")
        axes.grid(color=self.grey, alpha=0.2, linewidth=0.6)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_color(self.ink)
            spine.set_alpha(0.5)
            spine.set_visible(side in ("left", "bottom"))
        if legend:
            axes.legend(frameon=False, labelcolor=self.ink, fontsize=8)

    def figure(self, width: float, height: float) -> Figure:
        """A figure on this page, in inches."""
        return Figure(figsize=(width, height), layout="constrained", facecolor=self.paper)


THEMES = (
    Theme("light", "#1f2328", "#ffffff", "#2563eb", "#ea580c", "#059669", "#9333ea", "#8b8b8b"),
    Theme("dark", "#e6edf3", "#0d1117", "#60a5fa", "#fb923c", "#34d399", "#c084fc", "#8b8b8b"),
)


class Workshop:
    """What the exhibits share: how thorough to be, where to report to, and the networks trained once."""

    def __init__(self, quick: bool, tell: Callable[[float, str], None]) -> None:
        self.quick = quick
        self.tell = tell
        """`tell(done, text)`: how much of the exhibit at hand is done, from 0 to 1."""
        self.memo: dict[str, dict[str, npt.NDArray[Any]]] = {}
        """Measurements that several exhibits show."""

    @cached_property
    def trainings(self) -> list[Training]:
        """Fast-dropout and plain networks on the same chorales."""
        return train_all(self.quick, self.tell)


@dataclass(frozen=True)
class Exhibit:
    """A figure: how its numbers are measured, how it is drawn from them and what it says."""

    name: str
    title: str
    cost: float
    """Seconds that it takes, about."""
    measure: Callable[[Workshop], dict[str, npt.NDArray[Any]]]
    draw: Callable[[Values, Theme], Figure]
    caption: Callable[[Values], str]
    """What is seen, in a few sentences."""
    table: Callable[[Values], Table]
    """The numbers behind it."""

    def text(self, values: Values) -> str:
        """The caption and the table, in Markdown."""
        head, rows = self.table(values)
        lines = [head, ["---"] * len(head), *rows]
        cells = "\n".join("| " + " | ".join(c.replace("|", r"\|") for c in line) + " |" for line in lines)
        return f"{self.caption(values)}\n\n{cells}\n"


def exhibits() -> tuple[Exhibit, ...]:
    """All figures, in the order of the paper."""
    from fastdropout.music.study import (
        adaptive_decay,
        attractor,
        loss_fields,
        mask_accuracy,
        radii,
        weight_noise_equivalence,
    )

    return (
        loss_fields.EXHIBIT,
        radii.EXHIBIT,
        adaptive_decay.EXHIBIT,
        attractor.EXHIBIT,
        weight_noise_equivalence.EXHIBIT,
        mask_accuracy.MOMENTS,
        mask_accuracy.OVER_TIME,
    )


def make_all(
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    quick: bool = False,
    only: Iterable[str] | None = None,
) -> list[Path]:
    """Measure and draw all figures into `folder`, and return the files that were written.

    For each figure `name.npz` holds the numbers, `name.svg`, `name.png` and `name-dark.*` are drawn from it,
    and `captions.md` says what is seen. `progress(done, text)` is told the share that is done. `quick` makes
    small ones that prove nothing, for tests. `only` names those to make.
    """
    place = Path(folder)
    shown = exhibits()
    if only is not None:
        wanted, known = list(only), [e.name for e in shown]
        for name in wanted:
            if name not in known:
                raise FastdropoutError(f"figures must be among {', '.join(known)}, got {name}")
        shown = tuple(e for e in shown if e.name in wanted)
    place.mkdir(parents=True, exist_ok=True)
    total, before = sum(e.cost for e in shown), 0.0
    written: list[Path] = []
    captions = []
    at: list[tuple[float, Exhibit]] = []

    def tell(done: float, text: str) -> None:
        if progress is not None:
            start, exhibit = at[-1]
            progress((start + exhibit.cost * min(done, 1.0)) / total, f"{exhibit.title}: {text}")

    shop = Workshop(quick, tell)
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(0)
        for exhibit in shown:
            at.append((before, exhibit))
            tell(0.0, "measuring")
            written += _make(exhibit, shop, place)
            captions.append(_entry(exhibit, load(place / f"{exhibit.name}.npz")))
            before += exhibit.cost
    written.append(place / "captions.md")
    write_atomic(written[-1], ("# Figures\n\n" + "\n".join(captions)).encode())
    if progress is not None:
        progress(1.0, "done")
    return written


@contextmanager
def _one_thread() -> Iterator[None]:
    """All networks are small: two threads take as long on idle cores, and much longer on busy ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(path: str | os.PathLike[str]) -> Values:
    """The numbers of a figure."""
    with np.load(path, allow_pickle=False) as saved:
        return dict(saved)


def _make(exhibit: Exhibit, shop: Workshop, place: Path) -> list[Path]:
    data = place / f"{exhibit.name}.npz"
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **exhibit.measure(shop))  # type: ignore[arg-type]
    write_atomic(data, buffer.getvalue())
    values = load(data)  # From what was saved, so that nothing else can enter the picture.
    shop.tell(1.0, "drawing")
    written = [data]
    for theme in THEMES:
        for kind in ("svg", "png"):
            path = place / f"{exhibit.name}{'' if theme.name == 'light' else '-dark'}.{kind}"
            write_atomic(path, render(exhibit, values, theme, kind))
            written.append(path)
    return written


def render(exhibit: Exhibit, values: Values, theme: Theme, kind: str) -> bytes:
    """A figure as the bytes of a file."""
    buffer = io.BytesIO()
    style: Any = {"svg.hashsalt": exhibit.name, "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(style):
        figure = exhibit.draw(values, theme)
        _settle(figure)
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=180, facecolor=theme.paper, metadata=metadata)
    return buffer.getvalue()


def _settle(figure: Figure) -> None:
    """Lay the axes out once, to a millionth of the figure.

    The solver of the layout sums in an order of memory addresses: the last digits differ between drawings.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(float(x), 6) for x in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def _entry(exhibit: Exhibit, values: Values) -> str:
    return f"## {exhibit.title}\n\n![]({exhibit.name}.png)\n\n{exhibit.text(values)}"
