"""Several runs compared: a table, and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastdropout.errors import RunError
from fastdropout.music.study import figures
from fastdropout.music.study.page import page
from fastdropout.music.training.run import Run

SHOWN = ("corpus", "data")
"""Options that have a column anyway, or say where things are."""


@dataclass(frozen=True)
class Line:
    """A run in a comparison."""

    run: Run
    corpus: str
    corpus_sha256: str
    test: float | None
    valid: float | None
    best_epoch: int
    epochs: int
    seconds: float
    parameters: int
    options: dict[str, Any]
    """Those in which the compared runs differ."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.run.name


def compare(runs: Sequence[Run | str | os.PathLike[str]]) -> list[Line]:
    """The runs with their figures and the options in which they differ, the best valid first.

    Not the best test: who chooses by it has no test left. Runs on one corpus stand together.
    """
    folders = [run if isinstance(run, Run) else Run(run) for run in runs]
    if not folders:
        raise RunError("nothing to compare: name at least one run folder")
    configs = [dict(run.config) for run in folders]
    differing = [
        name
        for name in configs[0]
        if name not in SHOWN and len({repr(config[name]) for config in configs}) > 1
    ]
    lines = []
    for run, config in zip(folders, configs, strict=True):
        result, about = run.result, run.about.corpus
        lines.append(
            Line(
                run=run,
                corpus=about.name or config["corpus"],
                corpus_sha256=about.sha256,
                test=result.test.nll_per_step if result.test else None,
                valid=result.valid.nll_per_step if result.valid else None,
                best_epoch=result.best_epoch,
                epochs=result.epochs,
                seconds=result.seconds,
                parameters=result.parameters,
                options={name: config[name] for name in differing},
            )
        )
    return sorted(lines, key=lambda x: (x.corpus, x.corpus_sha256, x.valid is None, x.valid))


def comparison_html(runs: Sequence[Run | str | os.PathLike[str]]) -> str:
    """Several runs compared, as a page of HTML."""
    lines = compare(runs)
    groups: dict[str, list[tuple[int, Line]]] = {}
    for number, line in enumerate(lines, 1):
        groups.setdefault(line.corpus_sha256, []).append((number, line))
    shown = []
    for place, group in enumerate(groups.values()):
        labels = {f"{number}  {line.name}": line.run.metrics for number, line in group}
        picture = figures.to_svg(figures.valid_curves(labels), f"compare{place}")
        shown.append((group[0][1].corpus, group, picture))
    return page(
        "compare.html",
        title=f"{len(lines)} runs",
        lines=lines,
        options=list(lines[0].options),
        groups=shown,
    )
