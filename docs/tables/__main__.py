"""Writes the tables of README.md and docs/ from the files under results/: `python -m docs.tables [--check]`.

The text between `<!-- table: name -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from benchmarks.uncertainty.page import PAGE as UNCERTAINTY
from docs.tables import accuracy, functions, music, networks, speed
from docs.tables.markdown import ROOT

TABLES: dict[str, Callable[[], str]] = {
    "functions": functions.table,
    "networks": networks.accuracy,
    "accuracy short": accuracy.short,
    "networks plain": networks.plain,
    "networks times": networks.times,
    "networks others": networks.others,
    "rules errors": accuracy.rules_errors,
    "rules recurrence": accuracy.rules_recurrence,
    "speed": speed.speed,
    "speed short": speed.speed_short,
    "gated": speed.gated,
    "compiled": speed.compiled,
    "cells trained": accuracy.cells_trained,
    "cells random": accuracy.cells_random,
    "claims published": accuracy.claims_published,
    "claims settings": accuracy.claims_settings,
    "claims masks": accuracy.claims_masks,
    "growth": speed.growth,
    "profile": speed.profile,
    "bach": music.bach,
    "table 1": music.table_1,
    "table 1 short": music.table_1_short,
    "twins": music.twins,
    "table 1 runs": music.table_1_runs,
    "ablation": music.ablation,
    "executors": speed.executors,
    "models": music.models,
    "explored": music.explored,
    **UNCERTAINTY,
}
PATTERN = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The text with its tables made anew."""
    return PATTERN.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> None:
    """Write the tables, or with `--check` say whether they are up to date."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        new = filled(text)
        if new != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    print("stale: " + ", ".join(stale) if stale else "all tables are up to date")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
