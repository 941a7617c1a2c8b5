"""`train` and `resume`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fastdropout.errors import FastdropoutError, RunError
from fastdropout.music.cli import INTERRUPTED, OK
from fastdropout.music.cli.flags import given_options, with_options
from fastdropout.music.training.options import from_text, make_config, read_toml, with_drop

if TYPE_CHECKING:
    from fastdropout.music.cli.screen import TrainingScreen
    from fastdropout.music.data.rolls import Corpus
    from fastdropout.music.training.run import Run

DIVERGED = 1


@with_options
def train(
    corpus: str | None = None,
    /,
    *,
    preset: str | None = None,
    config: Path | None = None,
    drop: str | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    runs: Path = Path("runs"),
    tensorboard: bool = False,
    **flags: Annotated[str, Parameter(show=False)],
) -> int:
    """Train a network on a corpus, a folder of MIDI files or any sequences, and write a report.

    A preset is overridden by a configuration file, and that by flags. Ctrl-C saves; `resume` continues.

    Parameters
    ----------
    corpus
        bach, piano-midi, nottingham, musedata, jsb-chorales, a folder of MIDI files, or sequences of zeros
        and ones or real values, steps x features: a .npz, .npy or .csv file or a folder of such [bach]
    preset
        default, paper (its table of chosen hyperparameters), best (ours), or of another class of
        network: deep, gru, lstm, memory, nade, nade-memory, nade-similar
    config
        a TOML file of options, such as the config.toml of a run
    drop
        sets drop_input, drop_hidden and drop_output; 0 is the plain network, without any noise
    out
        the run folder [runs/CORPUS-DATE-N]
    runs
        where run folders are made
    tensorboard
        also write TensorBoard events into the run folder
    """
    options = read_toml(config) if config is not None else {}
    if drop is not None:
        options = with_drop(options, from_text("drop", drop))
    if corpus is not None:
        options["corpus"] = corpus
    options |= given_options(flags)
    what = "options" if config is None else str(config)
    settled = make_config(options, preset_name=preset, what=what)

    from fastdropout.music.cli.screen import TrainingScreen, console, counting
    from fastdropout.music.training.runner import train as train_run
    from fastdropout.music.training.state import load_corpus

    with counting(f"reading {settled.corpus}") as count:
        pieces = load_corpus(settled, count)
    if pieces.skipped and settled.corpus != "bach":
        name, why = pieces.skipped[0]
        console.print(f"left out {len(pieces.skipped)} files, such as {name}: {why}")
    places: list[Path] = []

    def began(run: Run) -> None:
        places.append(run.path)
        console.print(f"run {run.path}")

    def work(screen: TrainingScreen, stop: Callable[[], bool]) -> Run:
        return train_run(
            settled,
            corpus=pieces,
            out=out,
            root=runs,
            command=["fastdropout", *sys.argv[1:]],
            watch=screen,
            stop=stop,
            tensorboard=tensorboard,
            began=began,
        )

    return _follow(work, TrainingScreen(settled.epochs), places, pieces)


def resume(run: Path, /, *, tensorboard: bool = False) -> int:
    """Resume an interrupted run, bit-identical to an uninterrupted one.

    Parameters
    ----------
    run
        the run folder
    tensorboard
        also write TensorBoard events into the run folder
    """
    from fastdropout.music.cli.screen import TrainingScreen, console, counting
    from fastdropout.music.training.run import Run
    from fastdropout.music.training.runner import resume as resume_run
    from fastdropout.music.training.state import load_corpus

    folder = Run(run)
    if folder.finished:
        console.print(f"{run} is finished")
        return _finish(folder)
    settled = folder.config
    with counting(f"reading {settled.corpus}") as count:
        pieces = load_corpus(settled, count)

    def work(screen: TrainingScreen, stop: Callable[[], bool]) -> Run:
        return resume_run(folder, corpus=pieces, watch=screen, stop=stop, tensorboard=tensorboard)

    return _follow(work, TrainingScreen(settled.epochs), [run], pieces)


def _follow(work: Any, screen: TrainingScreen, places: list[Path], corpus: Corpus) -> int:
    """Train under a progress bar, with Ctrl-C meaning: save after this update."""
    from fastdropout.music.cli.screen import console

    try:
        with ctrl_c() as stop, screen:
            run = work(screen, stop)
    except OSError as error:
        if not places or isinstance(error, FastdropoutError):
            raise
        why = f"{error.filename or places[0]}: {error.strerror or error}"
        raise RunError(
            f"{why}; the last checkpoint is whole, once this is fixed: fastdropout resume {places[0]}"
        ) from error
    if not run.finished:
        console.print(f"saved; resume with: fastdropout resume {run.path}")
        return INTERRUPTED
    return _finish(run, corpus)


def _finish(run: Run, corpus: Corpus | None = None) -> int:
    """Write the report and say what came out."""
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.report import write_report

    result = run.result
    if result.diverged:
        kept = f"; the best network is of epoch {result.best_epoch}" if result.test else ""
        console.print(f"the training diverged in epoch {result.epochs}: try a lower lr{kept}")
    if result.test is None:
        return DIVERGED
    page = write_report(run, corpus=corpus)
    console.print(f"test NLL {result.test.nll_per_step:.3f} nats per frame (epoch {result.best_epoch})")
    console.print(f"report {page}")
    return DIVERGED if result.diverged else OK


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; pressed again it ends at once, with the last checkpoint as it is."""
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
