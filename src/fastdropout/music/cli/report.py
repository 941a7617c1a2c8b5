"""`report`: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.music.cli import OK


def report(run: Path, /, *, output: Annotated[Path | None, Parameter(alias="-o")] = None) -> int:
    """Write the report of a run, one page of HTML.

    Parameters
    ----------
    run
        the run folder
    output
        the page [report.html in the run folder]
    """
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.report import write_report

    console.print(f"report {write_report(run, output)}")
    return OK
