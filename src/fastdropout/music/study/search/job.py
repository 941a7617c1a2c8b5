"""One training as a pure function of its arguments, to be run anywhere and any number of times."""

from __future__ import annotations

import errno
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fastdropout.errors import DataError, RunError, is_out_of_memory, one_line
from fastdropout.files import lock_file
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import Progress
from fastdropout.music.training.run import Run
from fastdropout.music.training.runner import evaluate_run, resume, train
from fastdropout.music.training.state import load_corpus

State = Literal["finished", "diverged", "paused", "stopped", "failed", "halted"]

PATIENCE = 120.0
"""Seconds to wait for a process that still trains in the folder, such as one whose node is being lost."""
_UNFIT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}
_UNBORN = {"run.json", ".lock"}


@dataclass(frozen=True)
class Job:
    """Train the run folder `folder` with `config`, or resume it.

    Several jobs at a time want `config.threads` to be 1.
    """

    folder: str
    config: Config
    until: int = 0
    """Pause after so many epochs; 0 for no pause."""
    save_every: float = 30.0
    """Seconds between checkpoints within an epoch."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    - finished: all was trained;
    - diverged: the loss was no longer a number; `valid` is that of the best network before, if there was one;
    - paused: `until` was reached;
    - stopped: it was asked to stop, its state is saved;
    - failed: `reason` says why this job cannot be done, out of memory for one;
    - halted: `reason` says what is wrong here for any job, a full disk for one; mend it, run it again.
    """

    state: State
    valid: float | None = None
    """`nll_per_step` of the best network so far on the whole valid pieces."""
    epochs: int = 0
    seconds: float = 0.0
    """Of training, all attempts together."""
    reason: str = ""
    """Why it failed or halted; of others, what is to be known of the run."""


class _Pause(Exception):
    """Raised after an epoch has been saved."""


def run_job(job: Job, stop: Callable[[], bool] | None = None) -> Outcome:
    """Do a job from wherever its folder is: not there, half made, half trained, finished.

    Whatever goes wrong is in the outcome. Two processes with the same job take turns, and the second finds it
    finished.
    """
    folder = Path(job.folder)
    try:
        with _alone(folder), _told() as told:
            outcome = _run(job, folder, stop)
        return replace(outcome, reason="; ".join(told)) if told else outcome
    except OSError as error:
        why = f"{error.filename or folder}: {error.strerror or error}"
        if error.errno == errno.ENOMEM:
            return Outcome("failed", reason=f"out of memory ({why})")
        return Outcome("halted" if error.errno in _UNFIT else "failed", reason=why)
    except DataError as error:
        return Outcome("halted", reason=_line(error))
    except Exception as error:
        if is_out_of_memory(error):
            return Outcome("failed", reason=f"out of memory ({_line(error)})")
        known = isinstance(error, RunError)
        return Outcome("failed", reason=_line(error) if known else f"{type(error).__name__}: {_line(error)}")


@contextmanager
def _told() -> Iterator[list[str]]:
    """What a run says of itself, such as that its last checkpoint was damaged: a worker has no screen."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=RuntimeWarning, module="fastdropout")
        yield told
    for warning in caught:
        if isinstance(warning.message, RuntimeWarning):
            told.append(_line(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _run(job: Job, folder: Path, stop: Callable[[], bool] | None) -> Outcome:
    def watch(step: Progress) -> None:
        record = step.record
        if record is not None and job.until and job.until <= record.epoch < step.epochs:
            if record.diverged:
                return
            raise _Pause

    config, begun = job.config, (folder / "config.toml").is_file()
    if begun and _essence(Run(folder).config) != _essence(config):
        raise RunError(f"{folder}: holds a run of another configuration; choose another folder")
    if begun and _is_paused(Run(folder), job.until):
        return _look(Run(folder), "paused")
    corpus = _corpus(config.corpus, config.data, config.steps_per_quarter, config.pieces)
    try:
        if begun:
            run = resume(folder, corpus=corpus, watch=watch, stop=stop, save_every=job.save_every)
        else:
            _clear(folder)
            run = train(config, corpus=corpus, out=folder, watch=watch, stop=stop, save_every=job.save_every)
    except _Pause:
        return _look(Run(folder), "paused")
    if not run.finished:
        return _look(run, "stopped")
    result = run.result
    return Outcome(
        "diverged" if result.diverged else "finished",
        result.valid.nll_per_step if result.valid else None,
        result.epochs,
        result.seconds,
    )


def _look(run: Run, state: State) -> Outcome:
    """An outcome of a run that has not ended."""
    valid = None
    if state == "paused":
        config = run.config
        corpus = _corpus(config.corpus, config.data, config.steps_per_quarter, config.pieces)
        valid = evaluate_run(run, "valid", corpus=corpus).nll_per_step
    metrics = run.metrics
    return Outcome(state, valid, len(metrics), sum(record.seconds for record in metrics))


def _is_paused(run: Run, until: int) -> bool:
    """Whether the pause was reached before, by a job whose outcome nobody has heard."""
    found = None if not until or run.finished else run.latest()
    if found is None:
        return False
    state = found[1].state
    return state.counters.epoch >= until and not state.finished


@functools.lru_cache(maxsize=2)
def _corpus(name: str, data: str | None, steps_per_quarter: int | None, pieces: int) -> Corpus:
    """Read once a process."""
    options = {"corpus": name, "data": data, "steps_per_quarter": steps_per_quarter, "pieces": pieces}
    return load_corpus(Config.model_validate(options))


def _essence(config: Config) -> Config:
    """Without what a run folder settles for itself."""
    return config.model_copy(update={"corpus": Path(config.corpus).name, "data": None, "threads": 1})


def _clear(folder: Path) -> None:
    """Take away what a process left that was killed before there was a configuration to resume."""
    if not folder.is_dir():
        return
    left = list(folder.iterdir())
    if all(path.name in _UNBORN or path.name.endswith(".tmp") for path in left):
        for path in left:
            path.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others away from a folder, which may not be there yet; wait for one who is about to die."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "a+b") as file:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                lock_file(file)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RunError(f"{folder}: another process trains in it; wait for it to end") from error
                time.sleep(0.2)
        yield


def _line(error: BaseException) -> str:
    return one_line(error, 300)
