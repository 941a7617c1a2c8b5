"""Writes the tables of README.md and docs/ from the files under results/: `python -m docs.tables [--check]`.

A table stands between `<!-- table: name -->` and `<!-- end -->`; what is between is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def figures(name: str) -> Any:
    """The figures of `results/{name}.json`."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["figures"]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rules_errors() -> str:
    """Errors of the transfer rules."""
    keys = ("max_error_mean", "max_error_var", "max_var_of_certain")
    rows = [
        [row["function"], row["rule"], *(f"{row[key]:.1e}" if row[key] else "0" for key in keys)]
        for row in figures("rules")["errors"]
    ]
    return table(
        ["function", "rule", "max error of the mean", "of the variance", "variance of a certain input"], rows
    )


def rules_recurrence() -> str:
    """Predicted over true variance in a recurrence."""
    found = figures("rules")["recurrence"]
    names = list(found[0]["ratio"])
    rows = [
        [
            f"{row['drop_input']} / {row['drop_hidden']}",
            str(row["radius"]),
            *(f"{row['ratio'][n]:.3f}" for n in names),
        ]
        for row in found
    ]
    return table(["drop input / hidden", "spectral radius", *names], rows)


def speed() -> str:
    """Ratios of the benchmark; a dash for what took too long to be measured."""
    found = figures("benchmarks")["speed"]
    names = list(dict.fromkeys(name for row in found for name in row["ratios"]))
    rows = [
        [str(row["batch"]), str(row["units"]), *(_number(row["ratios"].get(name)) for name in names)]
        for row in found
    ]
    return table(["batch", "units", *names], rows)


def growth() -> str:
    """Exponents of the benchmark."""
    rows = [
        [
            row["dimension"],
            kind,
            _number(row["time_exponent"][kind]),
            _number(row["memory_exponent"].get(kind)),
        ]
        for row in figures("benchmarks")["growth"]
        for kind in row["time_exponent"]
    ]
    return table(["growing", "what", "exponent of time", "exponent of memory"], rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def bach() -> str:
    """The default training with and without dropout."""
    rows = []
    for name in ("train-bach", "train-bach-plain", "train-bach-plain-gentle"):
        found = figures(name)
        scores = (f"{found[split]:.3f}" for split in ("valid", "test"))
        rows.append([f"`{found['command']}`", *scores, f"{found['seconds']:.0f} s"])
    return table(["command", "valid NLL", "test NLL", "time"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "rules errors": rules_errors,
    "rules recurrence": rules_recurrence,
    "speed": speed,
    "growth": growth,
    "bach": bach,
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
