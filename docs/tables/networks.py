"""The tables of stock networks under `integrate()`, from the files under results/integrate/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.tables.markdown import ROOT, table

FOLDER = ROOT / "results" / "integrate"
ORDER = (
    "BERT", "DistilBERT", "GPT-2", "T5", "BART", "ViT", "ResNet", "ConvNeXt", "EfficientNet", "wav2vec2",
    "nn.Transformer", "nn.LSTM tagger", "table MLP", "fd.nn.RNN", "fd.nn.LSTM", "fd.nn.GRU",
)  # fmt: skip
SHORT = ("BERT", "ResNet", "nn.LSTM tagger")
RATIOS = ("diagonal", "traced, 1 output", "traced, 10 outputs", "memory")


def accuracy() -> str:
    """All rows of all networks."""
    head = ["network", "weights", "drop", "diagonal", "traced", "correlation", "of masks"]
    rows = [_row(name, row) for name in ORDER for row in _figures(name).get("rows", ())]
    return table([*head, "error of the mean"], rows)


def accuracy_short() -> list[list[str]]:
    """Three networks at their default rates: diagonal with random weights, both with trained ones."""
    rows = []
    for name in SHORT:
        found = {row["weights"]: row for row in _figures(name)["rows"] if row["drop"] == "default"}
        random, trained = found["random"], found["trained"]
        rows.append([name, *map(_fixed, (random["diagonal"], trained["diagonal"], trained["traced"]))])
    return rows


def plain() -> str:
    """How large the networks are, and how far they are from the plain ones without dropout."""
    rows = []
    for name in ORDER:
        found = _figures(name)
        if found:
            size, difference = f"{found['parameters']:,}", f"{found['no_dropout']:.0e}"
            rows.append([name, size, difference, str(found["updates"])])
    return table(["network", "weights", "difference from the plain network", "updates of the training"], rows)


def times() -> str:
    """Ratios of time, over masks one after the other / in batches, and of memory."""
    rows = []
    for name in ORDER:
        path = _path(name, FOLDER / "times")
        if not path.exists():
            continue
        ratios = json.loads(path.read_text())["figures"]["ratios"]
        for batch in ("8", "32"):
            ways = ratios[batch].values()
            shown = [" / ".join(f"{way[key]:.3f}" for way in ways) for key in RATIOS[:-1]]
            rows.append([name, batch, *shown, f"{ratios['memory']:.1f}" if batch == "32" else ""])
    head = ["network", "batch", *RATIOS[:-1], "memory / training step"]
    return table(head, rows or [["not measured yet", *["–"] * 5]])


def others() -> str:
    """Other packages on the same noise of the weights."""
    found = json.loads((FOLDER / "others.json").read_text())["figures"]["rows"]
    keys = ("ratio", "correlation", "mean_error")
    rows = [[row["package"], *(_fixed(row[key]) for key in keys)] for row in found]
    head = ["package", "predicted / true standard deviation", "correlation", "error of the mean"]
    return table(head, rows)


def _row(name: str, row: dict[str, Any]) -> list[str]:
    keys = ("diagonal", "traced", "correlation", "best_correlation", "mean_error")
    return [name, row["weights"], row["drop"], *(_fixed(row[key]) for key in keys)]


def _path(name: str, folder: Path) -> Path:
    return folder / f"{name.replace(' ', '-')}.json"


def _figures(name: str) -> dict[str, Any]:
    path = _path(name, FOLDER)
    return json.loads(path.read_text())["figures"] if path.exists() else {}


def _fixed(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
