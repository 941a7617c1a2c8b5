"""Words to calls: the only package that prints, parses or exits.

Each command lies in a module that is imported when it is called, and torch only when it is needed, so that
`--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from fastdropout.errors import FastdropoutError

OK, FAULT, INTERRUPTED = 0, 2, 130

_HELP = """Deterministic dropout for recurrent networks: the paper's music experiment.

`fastdropout train` trains on Bach's chorales and writes a report; every command has --help.
"""
_COMMANDS = {
    "train": ("train:train", "Train a network on a corpus or a folder of MIDI files, and write a report."),
    "resume": ("train:resume", "Go on with an interrupted run, bit for bit."),
    "evaluate": (
        "after:evaluate",
        "Score a run's network on a split: nats per frame, by piece, and calibration.",
    ),
    "generate": ("after:generate", "Draw a piece of music from a run's network: .mid, .wav and a picture."),
    "report": ("after:report", "Write the report of a run, one page of HTML."),
    "compare": ("after:compare", "Set several runs side by side."),
    "search": ("search:search", "Search for a configuration in the paper's table of choices, or in ours."),
    "figures": ("figures:figures", "Measure and draw the figures of the paper's analysis."),
    "reproduce": ("reproduce:reproduce", "Train the models of the paper's Table 1, beside its figures."),
    "data": ("corpora:app", "List the corpora with statistics, or get one."),
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
    )
    for name, (place, text) in _COMMANDS.items():
        app.command(f"{__name__}.{place}", name=name, help=text)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a mistake of the user's is one line on stderr and 2."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        code = build_app()(
            argv if argv is None else list(argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except (FastdropoutError, CycloptsError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader has gone (`| head`); a second failure, when Python flushes, would be printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        return _fault(_one_line(error))
    except MemoryError:
        return _fault("not enough memory; try a smaller batch, chunk or hidden")
    except KeyboardInterrupt:
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, FastdropoutError):
        path = f"{error.filename}: " if error.filename else ""
        return f"{path}{error.strerror or error}"
    return " ".join(str(error).split())


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """One line, without the place in the source."""
    print(f"fastdropout: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _fault(text: str) -> int:
    print(f"fastdropout: {text}", file=sys.stderr)
    return FAULT
