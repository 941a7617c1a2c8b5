"""Figure 2: the spectral radius of the recurrent weights over training, with fast dropout and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop
from fastdropout.music.study.trainings import KINDS


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Radius and valid nats of every epoch, (seeds, epochs) for each kind."""
    out: dict[str, npt.NDArray[Any]] = {}
    for kind in KINDS:
        those = [t for t in shop.trainings if t.kind == kind]
        # A training that diverged is shorter.
        longest = max(len(t.valid) for t in those)
        for name in ("train", "valid", "radius", "variance_radius"):
            rows = np.full((len(those), longest), np.nan)
            for row, training in zip(rows, those, strict=True):
                row[: len(getattr(training, name))] = getattr(training, name)
            out[_key(kind, name)] = rows
    out["first_radius"] = np.array(shop.trainings[0].config.spectral_radius)
    out["hidden"] = np.array(shop.trainings[0].config.hidden)
    return out


def _key(kind: str, name: str) -> str:
    return f"{kind}_{name}".replace(",", "").replace(" ", "_")


def draw(values: Values, theme: Theme) -> Figure:
    """Radii above, valid losses beneath."""
    figure = theme.figure(6.2, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for kind, colour in zip(KINDS, theme.series, strict=False):
        for axes, name in ((top, "radius"), (bottom, "valid")):
            rows = values[_key(kind, name)]
            first = float(values["first_radius"]) if name == "radius" else np.nan
            for number, row in enumerate(rows):
                label = f"{kind}, {len(rows)} seeds" if number == 0 else None
                y = np.concatenate([[first], row])
                axes.plot(np.arange(len(y)), y, color=colour, linewidth=1.5, alpha=0.9, label=label)
    theme.dress(top, "", "spectral radius of W_rec", legend=True)
    theme.dress(bottom, "epoch", "valid, nats per frame")
    top.set_ylim(bottom=0)
    low = min(float(np.nanmin(values[_key(kind, "valid")])) for kind in KINDS)
    bottom.set_ylim(low - 0.1, low + 2.2)
    top.set_xlim(left=0)
    return figure


def shape(radius: npt.NDArray[Any]) -> tuple[float, int, float, float]:
    """Of the mean over seeds: peak, the epoch of it, end, and the last third's change in percent."""
    mean = np.nanmean(radius, axis=0)
    peak = int(np.argmax(mean))
    tail = mean[-max(2, len(mean) // 3)]
    return float(mean[peak]), peak + 1, float(mean[-1]), float(100 * (mean[-1] / tail - 1))


def _seen(values: Values) -> dict[str, tuple[float, int, float, float]]:
    return {kind: shape(values[_key(kind, "radius")]) for kind in KINDS}


def caption(values: Values) -> str:
    """What is seen, and whether it is what the paper says."""
    first, hidden = float(values["first_radius"]), int(values["hidden"])
    what = f"{hidden} tanh units on Bach's chorales, the same data and initial weights (radius {first:.1f})."
    return f"{what} {verdict(_seen(values), first)}"


def table(values: Values) -> Table:
    """Radii and valid losses; means over the seeds, their range in brackets."""
    rows = []
    for kind, (peak, epoch, end, change) in _seen(values).items():
        radius, valid = (values[_key(kind, name)] for name in ("radius", "valid"))
        low, high = np.nanmin(radius[:, -1]), np.nanmax(radius[:, -1])
        at = np.nanargmin(valid, axis=1) + 1
        rows.append(
            [
                kind,
                f"{end:.1f} ({low:.1f} to {high:.1f})",
                f"{peak:.1f} at epoch {epoch}",
                f"{change:+.0f} %",
                f"{np.nanmin(valid, axis=1).mean():.3f} at epoch {at.min()} to {at.max()}",
                f"{np.nanmean(valid[:, -1]):.3f}",
            ]
        )
    return ["network", "last radius", "highest", "last third", "best valid", "last valid"], rows


def verdict(seen: dict[str, tuple[float, int, float, float]], first: float) -> str:
    """Whether the paper's two sentences are supported by these networks."""
    fast, *plain = KINDS
    peak, _, end, change = seen[fast]
    rises = "is seen" if peak > 3 * first else "is not seen"
    falls = "does" if end < 0.97 * peak else "does not"
    settles = "and it settles" if abs(change) < 5 else "and it has not settled"
    text = (
        'The paper says that under fast dropout the radius "first increases sharply to a rather high value '
        f'and then decreases slowly to settle". The sharp rise {rises}; it {falls} fall from its peak by '
        f"more than 3 % within these epochs, {settles} (last third {change:+.0f} %). It says that plain "
        "networks never exceed a certain radius at which they are stuck; "
    )
    ours = []
    for kind in plain:
        highest, _, last, moved = seen[kind]
        stuck = highest < 2 * first or abs(moved) < 5
        ours.append(
            f"{kind}: {'stuck' if stuck else 'not stuck'}, at {last / end:.2f} times the radius of fast "
            f"dropout in the end"
        )
    return f"{text}{'; '.join(ours)}."


EXHIBIT = Exhibit("spectral-radius", "Spectral radius over training", 190, measure, draw, caption, table)
