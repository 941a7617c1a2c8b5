"""Words to calls: the only package that prints, parses or exits.

Each command lies in a module that is imported when it is called, and torch only when it is needed, so that
`--help` answers at once.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import IO, cast

from cyclopts import App, CycloptsError
from rich.console import Console

from fastdropout.errors import FastdropoutError, is_out_of_memory, one_line
from fastdropout.music.cli.output import output

OK, FAULT, INTERRUPTED = 0, 2, 130

_HELP = """Deterministic dropout for recurrent networks: the paper's music experiment.

`fastdropout train` trains on Bach's chorales and writes a report; every command has --help.
"""
_COMMANDS = {
    "train": ("train:train", "Train a network on a corpus, MIDI files or any sequences, and write a report."),
    "resume": ("train:resume", "Resume an interrupted run, bit-identical to an uninterrupted one."),
    "evaluate": (
        "evaluate:evaluate",
        "Score a network on a split: nats per frame, by piece, calibration.",
    ),
    "listen": ("listen:listen", "Write a page that plays what a network makes, and a test piece."),
    "generate": (
        "generate:generate",
        "Sample a piece of music from a network: .mid, .wav and a picture.",
    ),
    "report": ("report:report", "Write the report of a run, one page of HTML."),
    "compare": ("compare:compare", "Compare several runs in one table."),
    "search": ("search:search", "Search for a configuration in the paper's table of choices, or in ours."),
    "figures": ("figures:figures", "Measure and draw the figures of the paper's analysis."),
    "reproduce": ("reproduce:reproduce", "Train the models of the paper's Table 1, and compare."),
    "data": ("corpora:app", "List the corpora with statistics, or download one."),
}


def _version() -> str:
    from importlib.metadata import version

    return version("fastdropout")


def build_app() -> App:
    """The commands, not yet imported."""
    app = App(
        name="fastdropout",
        help=_HELP,
        version=_version,
        help_format="plaintext",  # Another format imports a parser for it.
        suppress_keyboard_interrupt=False,
        console=Console(file=cast(IO[str], output)),
    )
    for name, (place, text) in _COMMANDS.items():
        app.command(f"{__name__}.{place}", name=name, help=text)
    return app


def main(argv: Sequence[str] | None = None, *, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run a command and return its exit code; a user or system error is one line on stderr and 2.

    `interrupted` says whether Ctrl-C was pressed: inside an import it may come out as any other error.
    """
    output.lost = None
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(argv, interrupted)


def _run(argv: Sequence[str] | None, interrupted: Callable[[], bool]) -> int:
    try:
        code = build_app()(
            argv if argv is None else list(argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        output.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if interrupted():
            return INTERRUPTED
        if is_out_of_memory(error):
            return _fault(f"not enough memory; try a smaller batch, chunk or hidden ({one_line(error, 200)})")
        if not isinstance(error, FastdropoutError | CycloptsError | OSError):
            traceback.print_exc()  # A bug. Not code 1, which says that a training diverged.
            return FAULT
        return _fault(one_line(error))
    if output.lost is not None and not isinstance(output.lost, BrokenPipeError):
        return _fault(f"standard output: {one_line(output.lost)}")
    return code if isinstance(code, int) else OK


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """One line, without the place in the source."""
    text = one_line(message) if isinstance(message, Warning) else message
    _tell(f"warning: {text}")


def _fault(text: str) -> int:
    _tell(text)
    return FAULT


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # Standard error may be closed or full too.
        print(f"fastdropout: {text}", file=sys.stderr, flush=True)
