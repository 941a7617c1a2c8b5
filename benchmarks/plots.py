"""The benchmark as a picture, drawn from the JSON file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = ("products", "torch.nn.RNN", "fused", "torch.nn.LSTM", "naive")
MARKS = "sodv^"


def draw(path: Path) -> Path:
    """`{path}.png`: milliseconds of a training step, and growth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figures: dict[str, Any] = json.loads(path.read_text())["figures"]
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    rows = figures["speed"]
    # Points, not bars: on a logarithmic axis the length of a bar means nothing.
    for i, name in enumerate(NAMES):
        values = [row["milliseconds"].get(name, float("nan")) for row in rows]
        left.plot(range(len(rows)), values, MARKS[i], ms=6, label=name)
    left.set_yscale("log")
    left.grid(alpha=0.3, axis="y")
    left.set_xticks(range(len(rows)), [f"{row['batch']}\n{row['units']}" for row in rows], fontsize=8)
    left.set_xlabel("batch (above) and units (below)")
    left.set_ylabel("milliseconds, forward + backward")
    left.set_title("A training step of 100 steps")
    left.legend(fontsize=8)
    growth = next((row for row in figures.get("growth", []) if row["dimension"] == "steps"), None)
    if growth:
        for kind, values in growth["seconds"].items():
            label = f"{kind}: exponent {growth['time_exponent'][kind]:.2f}"
            right.loglog(growth["sizes"], values, "o-", label=label)
        right.set_xlabel("steps")
        right.set_ylabel("seconds, forward + backward")
        right.set_title("Growth with the number of steps (batch 16, 200 units)")
        right.legend(fontsize=8)
        right.grid(alpha=0.3, which="both")
    out = path.with_suffix(".png")
    fig.savefig(out, dpi=110)
    plt.close(fig)
    return out
