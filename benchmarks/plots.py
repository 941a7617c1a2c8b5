"""The benchmark as a picture, drawn from the JSON file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdropout.music.study.gallery import THEMES

NAMES = ("products", "torch.nn.RNN", "fused", "torch.nn.LSTM", "naive")
MARKS = "sodv^"


def draw(path: Path) -> Path:
    """`{path}.png`: milliseconds of a training step, and growth."""
    figures: dict[str, Any] = json.loads(path.read_text())["figures"]
    theme = THEMES[0]
    figure = theme.figure(8.6, 3.4)
    left, right = figure.subplots(1, 2)
    rows = figures["speed"]
    # Points, not bars: on a logarithmic axis the length of a bar means nothing.
    colours = dict(zip(NAMES, (*theme.series, theme.grey), strict=True))
    colours["recompute"] = colours["fused"]  # The same layer: dashed.
    for name, mark in zip(NAMES, MARKS, strict=True):
        values = [row["milliseconds"].get(name, float("nan")) for row in rows]
        left.plot(range(len(rows)), values, mark, color=colours[name], markersize=5, label=name)
    left.set_yscale("log")
    left.set_xticks(range(len(rows)), [f"{row['batch']}\n{row['units']}" for row in rows])
    what = "milliseconds, forward + backward"
    theme.dress(left, "batch (above) and units (below)", what, "a training step of 100 steps")
    left.set_ylim(top=2e5)
    left.legend(frameon=False, labelcolor=theme.ink, fontsize=8, ncols=2, loc="upper left")
    growth = next((row for row in figures.get("growth", []) if row["dimension"] == "steps"), None)
    if growth:
        for kind, values in growth["seconds"].items():
            label = f"{kind}: exponent {growth['time_exponent'][kind]:.2f}"
            line = "o--" if kind == "recompute" else "o-"
            right.loglog(growth["sizes"], values, line, color=colours[kind], markersize=4, label=label)
        title = "growth with the steps (batch 16, 200 units)"
        theme.dress(right, "steps", "seconds, forward + backward", title, legend=True)
    out = path.with_suffix(".png")
    figure.savefig(out, dpi=150)
    return out
