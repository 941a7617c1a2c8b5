"""`search`."""

from __future__ import annotations

import os
import reprlib
import secrets
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fastdropout.errors import ConfigError
from fastdropout.music.cli import INTERRUPTED, OK
from fastdropout.music.cli.flags import given_options, with_options

if TYPE_CHECKING:
    from rich.table import Table

    from fastdropout.music.study.search.folder import SearchFolder
    from fastdropout.music.study.search.loop import Search, Trial

NOTHING_FINISHED = 1


@with_options
def search(
    corpus: str | None = None,
    /,
    *,
    trials: int | None = None,
    space: str | None = None,
    sampler: str | None = None,
    prune: bool | None = None,
    executor: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    ray_cpus: float = 1,
    ray_gpus: float = 0,
    storage: str | None = None,
    study: str | None = None,
    resume: Path | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    searches: Path = Path("searches"),
    **flags: Annotated[str, Parameter(show=False)],
) -> int:
    """Search for a configuration: draw trials, train each, and report on the one with the lowest valid.

    An option given by its flag below is not drawn. Draws depend on --seed and the number of the trial alone.
    Ctrl-C saves; --resume continues.

    Parameters
    ----------
    corpus
        bach, piano-midi, nottingham, musedata, jsb-chorales, or a folder of MIDI files [bach]
    trials
        number of trials [32]; with --resume, the new total
    space
        paper (exactly its table of hyperparameters), wide (ours) or structured (deep networks, gates, NADE,
        a memory of the piece; fix output or memory to stay within a class) [paper]
    sampler
        random, or tpe, which learns from earlier trials [random]
    prune
        stop weak trials early, by successive halving
    executor
        process (one single-threaded worker per core), serial, or ray [process]
    workers
        trials at a time [one per core]
    ray
        address of a Ray cluster, or auto; its nodes share the search folder
    ray_cpus
        cores per trial
    ray_gpus
        GPUs per trial
    storage
        URL of a database for the study, such as postgresql+psycopg://user@host/name [study.db]
    study
        name of the study in that database; commands with the same name share its trials
    resume
        resume the search in this folder
    out
        the search folder [searches/CORPUS-DATE-N]
    searches
        where search folders are made
    """
    asked = {"trials": trials, "space": space, "sampler": sampler, "prune": prune, "study": study}
    asked = {name: value for name, value in asked.items() if value is not None}
    options = given_options(flags)
    if executor is None:
        executor = "process" if ray is None else "ray"
    if ray is not None and executor != "ray":
        raise ConfigError(f"ray is for the executor ray, got the executor {executor}")
    if resume is not None:
        others = [
            *asked.keys() - {"trials"},
            *options,
            *(["corpus"] if corpus is not None else []),
            *(["out"] if out else []),
        ]
        if others:
            raise ConfigError(f"a resumed search is what it was: leave out {', '.join(sorted(others))}")

    from fastdropout.music.cli.screen import console
    from fastdropout.music.cli.train import ctrl_c
    from fastdropout.music.study.search.executors import make_executor
    from fastdropout.music.study.search.folder import SearchFolder
    from fastdropout.music.study.search.loop import Search

    with (
        ctrl_c() as stop,
        closing(make_executor(executor, workers, ray, stop=stop, cpus=ray_cpus, gpus=ray_gpus)) as pool,
    ):
        if resume is None:
            folder = _new("bach" if corpus is None else corpus, asked, options, storage, out, searches)
        else:
            folder = SearchFolder(resume)
        named = "" if folder.settings.storage is None else f", study {folder.settings.study}"
        console.print(f"search {folder.path}{named}")
        work = Search(folder, storage)
        with SearchScreen(work) as screen:
            work.run(pool, screen, stop, trials=trials)
        stopped = stop()
    with closing(work):
        if stopped and work.unfinished:
            console.print(f"saved; resume with: fastdropout search --resume {folder.path}")
            return INTERRUPTED
        return _finish(work)


def _new(
    corpus: str,
    asked: dict[str, Any],
    options: dict[str, Any],
    storage: str | None,
    out: Path | None,
    searches: Path,
) -> SearchFolder:
    """Check everything that can be checked before there is a folder."""
    from pydantic import ValidationError

    from fastdropout.music.cli.screen import counting
    from fastdropout.music.data.corpora import NAMES, absolute
    from fastdropout.music.study.search.folder import Settings, create_folder, without_password
    from fastdropout.music.study.search.loop import check
    from fastdropout.music.study.search.space import SPACES, draw, trial_config
    from fastdropout.music.training.state import load_corpus

    if asked.get("study") and storage is None:
        raise ConfigError("study is the name in a database: give its storage too")
    if "threads" in options:
        raise ConfigError("threads is not for a search: a trial has one; workers says how many run at a time")
    if corpus and corpus not in NAMES and os.path.exists(os.path.expanduser(corpus)):
        corpus = absolute(corpus)
    if options.get("data") is not None:
        options["data"] = absolute(options["data"])
    if storage is not None:  # Its other studies are no business of ours.
        asked = {"study": f"{Path(corpus).name}-{secrets.token_hex(4)}", **asked}
    seed = options.pop("seed", 0)
    try:
        settings = Settings(
            corpus=corpus,
            seed=seed,
            options=options,
            storage=None if storage is None else without_password(storage),
            **asked,
        )
    except ValidationError as error:
        faults = []
        for item in error.errors():
            allowed = item["msg"].replace("Input should be", "must be", 1)
            faults.append(f"{item['loc'][0]} {allowed}, got {reprlib.repr(item['input'])}")
        raise ConfigError("; ".join(faults)) from error
    check(settings)
    first = draw(SPACES[settings.space], settings.seed, 0, options)
    with counting(f"reading {corpus}") as count:
        load_corpus(trial_config(SPACES[settings.space], corpus, first, settings.seed, 0), count)
    return create_folder(settings, out, searches)


def _finish(work: Search) -> int:
    """Write the report and say what came out; of all test figures, that of the best alone is shown."""
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.search.report import nll_on_test, write_search_report

    best = work.best
    if best is None:
        console.print("no trial has finished")
        return NOTHING_FINISHED
    page = write_search_report(work)
    console.print(f"best trial {best.number}: valid {best.valid:.3f}, {best.folder}")
    test = nll_on_test(best)
    if test is not None:
        console.print(f"test NLL {test:.3f} nats per frame")
    console.print(f"report {page}")
    return OK


class SearchScreen:
    """Follows a search: a table on a terminal, one line per trial in a log. Call it with the trials."""

    def __init__(self, work: Search) -> None:
        from rich.live import Live

        from fastdropout.music.cli.screen import Clock, console

        self.console, self.clock = console, Clock()
        self.told: set[int] | None = None
        self.work, self.epochs = work, work.epochs
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> SearchScreen:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, trials: Sequence[Trial]) -> None:
        """Show how far the trials are."""
        headline = self._headline(trials)
        if self.live is not None:
            self.live.update(_table(trials, headline, max(self.console.height - 6, 4)))
            return
        ended = [trial for trial in trials if trial.state not in ("waiting", "running")]
        if self.told is None:
            self.told = {trial.number for trial in ended}  # Of a search that is gone on with.
        for trial in ended:
            if trial.number not in self.told:
                self.told.add(trial.number)
                why = f"  {trial.reason}" if trial.reason else ""
                self.console.print(
                    f"trial {trial.number}  {trial.state}  valid {_number(trial.valid)}{why}  ({headline})",
                )

    def _headline(self, trials: Sequence[Trial]) -> str:
        ended = [t for t in trials if t.state not in ("waiting", "running")]
        best = min((t.valid for t in ended if t.state == "finished" and t.valid is not None), default=None)
        done = len(ended) + sum(min(t.epochs / self.epochs, 1.0) for t in trials if t.state == "running")
        total = self.work.settings.trials
        left = self.clock.left(done, total)
        return f"{len(ended)}/{total} ended  best {_number(best)}  {left} left"


def _table(trials: Sequence[Trial], headline: str, rows: int) -> Table:
    """The trials that run, then the best; as many as fit."""
    from rich.table import Column, Table

    order = {"running": 0, "finished": 1, "pruned": 2, "diverged": 2, "failed": 2, "waiting": 3}
    shown = sorted(trials, key=lambda t: (order[t.state], t.valid or 0.0, t.number))[:rows]
    drawn_column = Column("drawn", no_wrap=True, overflow="ellipsis", ratio=1)  # What the others leave.
    names = ("trial", "state", "epochs", "valid", "min")
    table = Table(*names, drawn_column, title=headline, title_justify="left", expand=True)
    for t in shown:
        drawn = t.reason or " ".join(f"{name}={value}" for name, value in t.options.items())
        table.add_row(str(t.number), t.state, str(t.epochs), _number(t.valid), f"{t.seconds / 60:.1f}", drawn)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
