"""`compare`: several runs in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.music.cli import OK


def compare(run: Path, /, *more: Path, output: Annotated[Path | None, Parameter(alias="-o")] = None) -> int:
    """Compare several runs in one table.

    Parameters
    ----------
    run
        a run folder
    more
        other run folders
    output
        also write a page of HTML
    """
    from rich.table import Table

    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.comparison import compare as compare_runs
    from fastdropout.music.study.comparison import comparison_html
    from fastdropout.music.training.run import Run

    folders = [Run(path) for path in (run, *more)]
    lines = compare_runs(folders)
    table = Table("", "run", "corpus", "valid", "test", "best epoch", "minutes")
    for number, line in enumerate(lines, 1):
        scores = ("diverged" if s is None else f"{s:.3f}" for s in (line.valid, line.test))
        epoch = f"{line.best_epoch}/{line.epochs}"
        table.add_row(str(number), line.name, line.corpus, *scores, epoch, f"{line.seconds / 60:.1f}")
    console.print(table)
    if lines[0].options:
        table = Table("option", *(str(number) for number in range(1, len(lines) + 1)))
        for name in lines[0].options:
            table.add_row(name, *("" if x.options[name] is None else str(x.options[name]) for x in lines))
        console.print(table)
    if len({line.corpus_sha256 for line in lines}) > 1:
        console.print("the runs are on different corpora: their figures do not compare")
    if output is not None:
        write_output(output, comparison_html(folders).encode())
        console.print(f"page {output}")
    return OK
