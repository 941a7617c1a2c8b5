"""What the tables share: where figures are read, and how a table is written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def figures(name: str) -> Any:
    """The figures of `results/{name}.json`."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["figures"]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Two decimals, three below .1; a dash for what was not measured."""
    return "–" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
