"""Making the table: each cell an ordinary run folder, resumed where it stopped, never trained twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from fastdropout.errors import RunError
from fastdropout.music.study.results import Result
from fastdropout.music.study.search.executors import Executor
from fastdropout.music.study.search.job import Job
from fastdropout.music.study.table import SETTINGS, Cell, Key, plan
from fastdropout.music.training.config import Config
from fastdropout.music.training.run import Run

PLACE = ("threads", "data")
"""Options that say where a run is made, not what."""


@dataclass
class Board:
    """How far the table is: what the caller shows."""

    cells: list[Cell] = field(default_factory=list)
    folders: dict[Key, Path] = field(default_factory=dict)
    running: set[Key] = field(default_factory=set)
    results: dict[Key, Result] = field(default_factory=dict)
    failed: dict[Key, str] = field(default_factory=dict)


def reproduce(
    corpora: Sequence[str],
    models: Sequence[str],
    executor: Executor,
    *,
    out: Path,
    seeds: int = 1,
    settings: int = SETTINGS,
    budget: float = 1.0,
    quick: bool = False,
    data: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Board]:
    """Train what is missing, yielding about every second; the caller shows it and closes the executor.

    Leaving at any time loses nothing: the next call resumes in the same folders.
    """
    board = Board()
    threads = 1 if executor.slots > 1 else 0
    while not stop():
        board.cells = plan(
            corpora, models, seeds, board.results.values(), settings=settings, budget=budget, quick=quick
        )
        if _adopt_finished(board, out):
            continue  # What valid chose among them may be wanted with more seeds.
        done = board.running | board.results.keys() | board.failed.keys()
        waiting = [cell for cell in board.cells if cell.key not in done]
        for cell in waiting[: executor.slots - len(board.running)]:
            executor.submit(cell.key, Job(str(board.folders[cell.key]), _settled(cell, data, threads)))
            board.running.add(cell.key)
        yield board
        if not board.running:
            return
        cells = {cell.key: cell for cell in board.cells}
        for key, outcome in executor.wait(1.0):
            assert isinstance(key, tuple)
            board.running.discard(key)
            if outcome.state in ("finished", "diverged"):
                board.results[key] = result_of(cells[key], Run(board.folders[key]))
            elif outcome.state == "halted":
                raise RunError(f"{outcome.reason}; fix this and run the same command again to continue")
            elif outcome.state == "failed":
                board.failed[key] = outcome.reason
    yield board


def _adopt_finished(board: Board, out: Path) -> bool:
    """Take what other calls have finished; whether there was any."""
    before = len(board.results)
    for cell in board.cells:
        if cell.key not in board.folders:
            path = board.folders[cell.key] = folder_of(cell, out)
            if (path / "result.json").is_file():
                board.results[cell.key] = result_of(cell, Run(path))
    return len(board.results) > before


def _settled(cell: Cell, data: Path | None, threads: int) -> Config:
    """The configuration of a cell at this place."""
    config = cell.config
    change = {"threads": config.threads or threads, "data": None if data is None else str(data)}
    return config.model_copy(update=change if cell.corpus != "bach" else {"threads": change["threads"]})


def folder_of(cell: Cell, out: Path) -> Path:
    """Where a cell is, or will be, trained: a changed setting gets another folder, the old one stays."""
    wanted = _what(cell.config)
    for number in count(1):
        path = out / cell.corpus / (cell.name if number == 1 else f"{cell.name}.{number}")
        begun = (path / "config.toml").is_file()
        if not begun or _what(Run(path).config) == wanted:
            return path
    raise AssertionError("unreachable")


def result_of(cell: Cell, run: Run) -> Result:
    """What is published of a finished run."""
    result, about, config = run.result, run.about, run.config
    scores = [None if split is None else split.nll_per_step for split in (result.valid, result.test)]
    return Result(
        corpus=cell.corpus,
        model=cell.model,
        candidate=cell.candidate,
        seed=cell.seed,
        valid=scores[0],
        test=scores[1],
        epochs=result.epochs,
        best_epoch=result.best_epoch,
        diverged=result.diverged,
        seconds=round(result.seconds, 1),
        parameters=result.parameters,
        budget=cell.budget,
        command=cell.command,
        corpus_sha256=about.corpus.sha256,
        versions=about.versions,
        platform=about.platform,
        config=config.model_dump(exclude_none=True, exclude={"data"}),
    )


def _what(config: Config) -> dict[str, object]:
    return {name: value for name, value in config if name not in PLACE}
