"""`reproduce`: the paper's Table 1 from trainings of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fastdropout.errors import ConfigError, DataError
from fastdropout.music.cli import INTERRUPTED, OK

if TYPE_CHECKING:
    from rich.table import Table

    from fastdropout.music.study.reproduce import Board
    from fastdropout.music.study.results import Result


def reproduce(
    *corpora: str,
    models: str | None = None,
    ablation: bool = False,
    seeds: int = 1,
    settings: int | None = None,
    quick: bool = False,
    budget: float = 1.0,
    executor: str = "process",
    workers: int | None = None,
    data: Path | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    results: Path | None = None,
) -> int:
    """Train the models of the paper's Table 1, and compare with its figures.

    Run again, it resumes where it was stopped; finished models are not trained again. Of a model's settings
    the one with the lowest valid NLL counts.

    Parameters
    ----------
    corpora
        piano-midi, nottingham, musedata, jsb-chorales, bach [those of the four that are there, else bach]
    models
        some of plain, paper, single, best, output-dropout, weight-noise, weight-decay; of other classes
        deep, gru, lstm, memory, nade, nade-memory, nade-similar; and of these, such as nade-plain and
        nade-masks, the twins without noise and with dropout masks; separated by commas [all; with quick,
        without twins and lstm]
    ablation
        instead of these: one member of best, and it without each of its ingredients in turn
    seeds
        seeds of the setting that was chosen
    settings
        of models that are compared with ours, from which valid chooses: 1 to 3 [3]
    quick
        a small version in minutes, on jsb-chorales or else bach: few units and epochs, one setting per model
    budget
        multiplies the epochs
    executor
        process (several trainings at a time), serial, or ray (the cluster of this machine)
    workers
        trainings at a time [one per core]
    data
        folder of the canonical data sets [$FASTDROPOUT_DATA]
    out
        where the run folders are [runs/table, runs/quick]
    results
        folder for CORPUS.json, one line per run [as out]
    """
    from fastdropout.music.cli.screen import console
    from fastdropout.music.cli.train import ctrl_c
    from fastdropout.music.study.reproduce import Board
    from fastdropout.music.study.reproduce import reproduce as train_cells
    from fastdropout.music.study.results import Key, merge_results
    from fastdropout.music.study.search.executors import make_executor
    from fastdropout.music.study.table import ABLATIONS, MODELS, QUICK_MODELS, SETTINGS

    settings = SETTINGS if settings is None else settings
    if seeds < 1 or not 1 <= settings <= SETTINGS or not 0 < budget <= 100:
        raise ConfigError(
            f"seeds must be at least 1, settings lie in 1..{SETTINGS} and budget in (0, 100], "
            f"got {seeds}, {settings} and {budget:g}"
        )
    chosen = _corpora(corpora, data, quick)
    every = ["single", "best", *ABLATIONS] if ablation else list(QUICK_MODELS if quick else MODELS)
    names = models.replace(" ", "").split(",") if models else every
    out = Path("runs/quick" if quick else "runs/table") if out is None else out
    results = out if results is None else results
    board, kept = Board(), set[Key]()
    with (
        ctrl_c() as stop,
        closing(make_executor(executor, workers, stop=stop)) as place,
        _Screen() as show,
    ):
        for board in train_cells(
            chosen,
            names,
            place,
            out=out,
            seeds=seeds,
            settings=settings,
            budget=budget,
            quick=quick,
            data=data,
            stop=stop,
        ):
            show(board)
            new = [result for key, result in board.results.items() if key not in kept]
            for corpus in {result.corpus for result in new}:
                merge_results(results / f"{corpus}.json", [r for r in new if r.corpus == corpus])
            kept |= board.results.keys()
    found = list(board.results.values())
    console.print(summary(found, chosen, names))
    console.print(verdict(found, chosen))
    for key, why in board.failed.items():
        console.print(f"{' '.join(map(str, key))}: {why}")
    console.print(f"results {results}")
    if stop():
        console.print("stopped; run the same command again to continue")
        return INTERRUPTED
    return 1 if board.failed else OK


def _corpora(names: Sequence[str], data: Path | None, quick: bool) -> list[str]:
    """Those that are asked for, else those that are there, saying what is missing."""
    from fastdropout.music.cli.screen import console
    from fastdropout.music.data.canonical import find
    from fastdropout.music.data.corpora import NAMES
    from fastdropout.music.study.table import CORPORA

    for name in names:
        if name not in NAMES:
            raise DataError(f"a corpus must be one of {', '.join(NAMES)}, got {name!r}")
        if name != "bach":
            find(name, data)
    if names:
        return list(dict.fromkeys(names))
    there = []
    for name in CORPORA:
        try:
            find(name, data)
            there.append(name)
        except DataError:
            continue
    missing = [name for name in CORPORA if name not in there]
    if missing:
        console.print(
            f"not there: {', '.join(missing)}; get one by: fastdropout data get {missing[0]} --data DIR, "
            "then give --data DIR",
        )
    if quick:
        return ["jsb-chorales"] if "jsb-chorales" in there else ["bach"]
    return there or ["bach"]


class _Screen:
    """A table of all cells on a terminal, a line for each beginning and end in a log."""

    def __init__(self) -> None:
        from rich.live import Live

        from fastdropout.music.cli.screen import Clock, console
        from fastdropout.music.study.reproduce import Board

        self.board, self.told, self.console = Board(), set[object](), console
        self.clock = Clock()
        self.live = Live(get_renderable=self.table, console=console, refresh_per_second=1, transient=True)

    def __enter__(self) -> Callable[[Board], None]:
        if self.console.is_terminal:
            self.live.start()
        return self.show

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def table(self) -> Table:
        """The cells, and the time left at the speed up to now."""
        (ended, done), total = progress(self.board), len(self.board.cells)
        left = self.clock.left(done, total) if total else "?"  # Nothing is planned yet.
        table = _cells(self.board)
        table.title, table.title_justify = f"{ended}/{total} trainings ended  {left} left", "left"
        return table

    def show(self, board: Board) -> None:
        """Take note of a change."""
        self.board = board
        if self.console.is_terminal:
            return
        for cell in board.cells:
            for state, text in (
                (cell.key in board.running, "begins"),
                (cell.key in board.results, "ends"),
                (cell.key in board.failed, "fails"),
            ):
                if state and (cell.key, text) not in self.told:
                    self.told.add((cell.key, text))
                    scores = _scores(board.results[cell.key]) if text == "ends" else ""
                    self.console.print(f"{cell.corpus} {cell.name} {text}{scores}")


def _scores(result: Result) -> str:
    if result.valid is None or result.test is None:
        return ": diverged"
    return f": valid {result.valid:.3f}, test {result.test:.3f}, {result.seconds:.0f} s"


def _cells(board: Board) -> Table:
    """A row a model, a column a corpus: the lowest valid so far, what is done, what runs."""
    from rich.table import Table

    corpora = list(dict.fromkeys(cell.corpus for cell in board.cells))
    models = list(dict.fromkeys(cell.model for cell in board.cells))
    table = Table("valid NLL so far", *corpora)
    for model in models:
        table.add_row(model, *(_state(board, corpus, model) for corpus in corpora))
    return table


def progress(board: Board) -> tuple[int, float]:
    """Trainings that have ended, and that number with the parts of those that run."""
    ended = len(board.results) + len(board.failed)
    running = [cell for cell in board.cells if cell.key in board.running]
    epochs = [_last_epoch(board.folders[cell.key])[0] / cell.config.epochs for cell in running]
    return ended, ended + sum(epochs)


def _state(board: Board, corpus: str, model: str) -> str:
    from fastdropout.music.study.table import chosen

    cells = [cell for cell in board.cells if (cell.corpus, cell.model) == (corpus, model)]
    done = [board.results[cell.key] for cell in cells if cell.key in board.results]
    failed = sum(cell.key in board.failed for cell in cells)
    best = chosen(done)
    words = [_figure(best.valid)] if best else []
    words += [f"{len(done)}/{len(cells)}"] if cells else []
    words += [f"{failed} failed"] if failed else []
    for cell in cells:
        if cell.key in board.running:
            epoch, valid = _last_epoch(board.folders[cell.key])
            words.append(f"epoch {epoch}/{cell.config.epochs}" + (f" {valid:.3f}" if valid else ""))
    return "  ".join(words)


def _last_epoch(folder: Path) -> tuple[int, float | None]:
    """The number of the last epoch and its valid NLL."""
    from fastdropout.errors import RunError
    from fastdropout.music.training.run import Run

    try:
        record = Run(folder).metrics[-1]
    except (RunError, IndexError):
        return 0, None
    return record.epoch, record.valid_nll_per_step


def summary(results: Sequence[Result], corpora: Sequence[str], models: Sequence[str]) -> Table:
    """Test NLL of what valid chose, above the paper's figures."""
    from rich.table import Table

    from fastdropout.music.study import paper
    from fastdropout.music.study.table import MODELS, chosen

    table = Table("test NLL, nats per frame", *corpora)
    for model in models:
        best = [chosen(r for r in results if (r.corpus, r.model) == (c, model)) for c in corpora]
        if any(best):
            table.add_row(MODELS.get(model, model), *(_figure(r.test if r else None) for r in best))
    table.add_section()
    for row, name in enumerate(paper.MODELS):
        figures = [paper.TABLE_1[c][row] if c in paper.TABLE_1 else None for c in corpora]
        table.add_row(name if row == 0 else f"{name} (the paper)", *map(_figure, figures))
    return table


def verdict(results: Sequence[Result], corpora: Sequence[str]) -> str:
    """What is better than the paper's figure for its class."""
    from fastdropout.music.study.paper import TABLE_1, figure_for
    from fastdropout.music.study.table import MODELS, chosen

    lines = []
    for corpus in corpora:
        if corpus not in TABLE_1:
            lines.append(f"{corpus}: the paper has no figures for it")
            continue
        by_limit: dict[float, list[str]] = {TABLE_1[corpus][0] or 0.0: []}
        for model, label in MODELS.items():
            best = chosen(r for r in results if (r.corpus, r.model) == (corpus, model))
            limit = figure_for(model, corpus)
            if best and best.test and limit:
                below = by_limit.setdefault(limit, [])
                below += [f"{label} {best.test:.3f}"] if best.test < limit else []
        told = (f"below the paper's {limit}: {', '.join(some) or 'none'}" for limit, some in by_limit.items())
        lines.append(f"{corpus}: {'; '.join(told)}")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
