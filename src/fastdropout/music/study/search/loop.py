"""The one who owns a study: draws trials, hands them to an executor, and writes down how they end.

A folder holds all of a search:

    search.json     what was asked for
    study.db        the trials, an Optuna study in SQLite (or elsewhere, by URL)
    trials/000      a run folder for each trial, named by its number
    report.html     a page to look at
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from fastdropout.errors import ConfigError, RunError, visible
from fastdropout.music.study.search.executors import Executor
from fastdropout.music.study.search.folder import SearchFolder, Settings
from fastdropout.music.study.search.job import Job, Outcome
from fastdropout.music.study.search.space import SPACES, Sampler, choose, draw, suggest, trial_config
from fastdropout.music.study.search.storage import Told, storage_errors, study_errors
from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.records import check as check_record
from fastdropout.music.training.run import Run

Ending = Literal["waiting", "running", "finished", "diverged", "pruned", "failed"]

BLOCK = 64
"""Trials that are put into the study at a time."""
CHECKED = 1000
"""Draws that are checked before a search begins."""
REDUCTION = 3
"""Successive halving keeps the best one in so many at each rung."""
_TOLD: dict[str, TrialState] = {
    "finished": TrialState.COMPLETE,
    # Diverged counts as bad, where failed says nothing about the options: `tpe` learns from the former only.
    "diverged": TrialState.PRUNED,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True)
class Trial:
    """A trial, as far as it has come."""

    number: int
    state: Ending
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    """Those that were drawn."""
    valid: float | None = None
    """Of a finished one on whole pieces; before, of the best epoch so far as the training scores it."""
    epochs: int = 0
    seconds: float = 0.0
    reason: str = ""


Watch = Callable[[Sequence[Trial]], object]


class Search:
    """A search folder with its study open."""

    def __init__(self, folder: SearchFolder, storage: str | None = None) -> None:
        self.folder, self.settings = folder, folder.settings
        self.space = SPACES[self.settings.space]
        self._storage = folder.open_storage(storage)
        self._sampler = Sampler(self.settings.sampler, self.settings.seed)
        self._ended: dict[int, Trial] = {}
        with study_errors(folder.path):
            self.study = optuna.create_study(
                study_name=self.settings.study,
                storage=self._storage,
                sampler=self._sampler,
                direction="minimize",
                load_if_exists=True,
            )
            self._join()

    def close(self) -> None:
        """Give the connections to the database back; a later use opens them again."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def trials(self) -> list[Trial]:
        """The trials in the order of their numbers, those of other drivers too.

        There may be fewer than `settings.trials`: they enter the study when their turn comes near.
        """
        with storage_errors(self.folder.path):
            return [self._trial(frozen) for frozen in self._frozen()]

    @property
    def unfinished(self) -> bool:
        """Whether a trial is still to be made."""
        trials = self.trials
        waits = any(trial.state in ("waiting", "running") for trial in trials)
        return waits or len(trials) < self.settings.trials

    @property
    def best(self) -> Trial | None:
        """The finished trial with the lowest valid."""
        done = [t for t in self.trials if t.state == "finished" and t.valid is not None]
        return min(done, key=lambda t: (t.valid, t.number), default=None)

    @property
    def epochs(self) -> int:
        """Most epochs of a trial."""
        return _drawn(self.settings, 0).epochs

    def run(
        self,
        executor: Executor,
        watch: Watch | None = None,
        stop: Callable[[], bool] | None = None,
        *,
        trials: int | None = None,
    ) -> None:
        """Work until no trial is left, or `stop` answers True. Closing the executor is the caller's.

        `trials` extends the search to so many, if nobody else drives it.
        What ran when a driver died goes on where it was. A trial is told to the study when it has ended, and
        never again.
        """
        with self.folder.lock(), storage_errors(self.folder.path):
            if trials is not None:
                self.folder.extend(trials)
                self.settings = self.folder.settings
            running = 0
            waiting = [frozen.number for frozen in self._frozen() if self._is_mine(frozen)]
            while stop is None or not stop():
                while running < executor.slots and (number := self._next(waiting)) is not None:
                    running += self._submit(executor, number)
                if watch is not None:
                    watch(self.trials)
                if not running:
                    break
                for key, outcome in executor.wait(1.0):
                    running -= 1
                    if outcome.state == "halted":
                        raise RunError(self.folder.mend(outcome.reason))
                    if outcome.state == "paused":
                        running += self._judge(executor, int(str(key)), outcome)
                    elif outcome.state != "stopped":
                        self._tell(int(str(key)), outcome)

    def config(self, number: int) -> Config:
        """The configuration of a trial that has been drawn."""
        settings, params = self.settings, self._by_number(number).params

        def drawn(name: str, _: object) -> Any:
            if name not in params:
                raise RunError(f"{self.folder.path}: the study is damaged, trial {number} has no {name}")
            return params[name]

        options = choose(self.space, drawn, settings.options)
        return trial_config(self.space, settings.corpus, options, settings.seed, number)

    def _join(self) -> None:
        """Drivers that share a study must ask for the same."""
        ours = self.settings.model_dump(include={"space", "sampler", "seed", "prune", "options"})
        ours["corpus"] = Path(self.settings.corpus).name
        theirs = self.study.user_attrs.get("asked")
        if theirs is None:
            self.study.set_user_attr("asked", ours)
        elif theirs != ours:
            known = theirs if isinstance(theirs, dict) else {}
            other = ", ".join(name for name in ours if ours[name] != known.get(name))
            raise ConfigError(
                f"the study {self.settings.study} was started with other {other}; choose another name"
            )

    def _enqueue(self) -> bool:
        """Put the next trials into the study, waiting; whether there were any.

        A block at a time, as a hundred thousand take minutes. Several drivers may make too many of them, but
        none takes one whose number is too high.
        """
        there = len(self._frozen())
        for _ in range(there, min(there + BLOCK, self.settings.trials)):
            self.study.add_trial(optuna.trial.create_trial(state=TrialState.WAITING))
        return there < self.settings.trials

    def _next(self, waiting: list[int]) -> int | None:
        """A trial that is ours from before, or one that nobody has."""
        if waiting:
            return waiting.pop(0)
        while True:
            for frozen in self._frozen():
                if frozen.state == TrialState.WAITING and self._claim(frozen):
                    return frozen.number
            if not self._enqueue():
                return None

    def _claim(self, frozen: FrozenTrial) -> bool:
        # The folder first: if we die before the study knows whose the trial is, it says so.
        place = self.folder.trial(frozen.number)
        place.mkdir(parents=True, exist_ok=True)
        try:
            if self._storage.set_trial_state_values(frozen._trial_id, TrialState.RUNNING):
                return True
        except optuna.exceptions.UpdateFinishedTrialError:
            pass  # Another driver has taken and finished it since we looked.
        place.rmdir()
        return False

    def _is_mine(self, frozen: FrozenTrial) -> bool:
        if frozen.state != TrialState.RUNNING:
            return False
        owner = frozen.user_attrs.get("driver")
        return owner == self.settings.driver or (owner is None and self.folder.trial(frozen.number).is_dir())

    def _submit(self, executor: Executor, number: int) -> int:
        """Draw a trial, unless it was drawn before, and hand it out; 1 if that was possible."""
        settings, frozen = self.settings, self._by_number(number)
        place = os.path.realpath(self.folder.trial(number))
        with study_errors(self.folder.path):
            trial = optuna.Trial(self.study, frozen._trial_id)
            trial.set_user_attr("driver", settings.driver)
            trial.set_user_attr("folder", f"{socket.gethostname()}:{visible(place)}")
            choose(self.space, lambda name, among: suggest(trial, name, among), settings.options)
        try:
            config = self.config(number)
        except ConfigError as error:  # The first random draws were checked before they began.
            self._tell(number, Outcome("failed", reason=str(error)))
            return 0
        until = next((rung for rung in self._rungs(config) if rung > (frozen.last_step or 0)), 0)
        executor.submit(number, Job(place, config, until))
        return 1

    def _rungs(self, config: Config) -> list[int]:
        return rungs(config.epochs) if self.settings.prune else []

    def _judge(self, executor: Executor, number: int, outcome: Outcome) -> int:
        """After a rung: on to the next, or pruned; 1 if it goes on."""
        frozen = self._by_number(number)
        step = outcome.epochs
        assert outcome.valid is not None
        with study_errors(self.folder.path):
            self._storage.set_trial_intermediate_value(frozen._trial_id, step, outcome.valid)
        rivals = [t.intermediate_values[step] for t in self._frozen() if step in t.intermediate_values]
        if hopeless(outcome.valid, rivals):
            self._tell(number, outcome, "pruned")
            return 0
        return self._submit(executor, number)

    def _tell(self, number: int, outcome: Outcome, ending: str | None = None) -> None:
        ending = ending or outcome.state
        frozen = self._by_number(number)
        if frozen.state.is_finished():
            return
        about = {"outcome": ending, "epochs": outcome.epochs, "seconds": round(outcome.seconds, 3)}
        with study_errors(self.folder.path):
            trial = optuna.Trial(self.study, frozen._trial_id)
            for name, value in {**about, "reason": outcome.reason, "valid": outcome.valid}.items():
                if value not in ("", None):
                    trial.set_user_attr(name, value)
            value = outcome.valid if ending == "finished" else None
            self.study.tell(number, value, state=_TOLD[ending], skip_if_finished=True)

    def _frozen(self) -> list[FrozenTrial]:
        with study_errors(self.folder.path):
            frozen = sorted(self.study.get_trials(deepcopy=False), key=lambda t: t.number)
            if any(n != t.number for n, t in enumerate(frozen)):  # A missing one would be waited for.
                raise RunError(
                    f"{self.folder.path}: the study is damaged, not all numbers of trials are there"
                )
        return frozen[: self.settings.trials]

    def _by_number(self, number: int) -> FrozenTrial:
        for frozen in self._frozen():
            if frozen.number == number:
                return frozen
        raise RunError(f"{self.folder.path}: the study is damaged, trial {number} has gone")

    def _trial(self, frozen: FrozenTrial) -> Trial:
        if frozen.number in self._ended:
            return self._ended[frozen.number]
        about = check_record(frozen.user_attrs, Told, f"{self.folder.path}: the study: trial {frozen.number}")
        folder = self.folder.trial(frozen.number)
        if about.driver not in ("", self.settings.driver):
            folder = Path(about.folder)
        if frozen.state == TrialState.WAITING:
            return Trial(frozen.number, "waiting", folder)
        if frozen.state == TrialState.RUNNING:
            metrics = _metrics(folder)
            scores = [m.valid_nll_per_step for m in metrics if m.valid_nll_per_step is not None]
            return Trial(
                frozen.number,
                "running",
                folder,
                frozen.params,
                min(scores, default=None),
                len(metrics),
                sum(m.seconds for m in metrics),
            )
        ended = Trial(
            frozen.number,
            about.outcome,
            folder,
            frozen.params,
            about.valid,
            about.epochs,
            about.seconds,
            about.reason,
        )
        return self._ended.setdefault(frozen.number, ended)


def check(settings: Settings) -> None:
    """Raise a `ConfigError` if one of the first draws contradicts the options that were fixed."""
    for number in range(min(settings.trials, CHECKED)):
        _drawn(settings, number)


def _drawn(settings: Settings, number: int) -> Config:
    space = SPACES[settings.space]
    options = draw(space, settings.seed, number, settings.options)
    return trial_config(space, settings.corpus, options, settings.seed, number)


def rungs(epochs: int) -> list[int]:
    """After which epochs a trial is compared: a ninth and a third of all.

    >>> rungs(90), rungs(5), rungs(2)
    ([10, 30], [1], [])
    """
    return sorted({epochs // REDUCTION**2, epochs // REDUCTION} - {0})


def hopeless(value: float, values: Sequence[float]) -> bool:
    """Whether `value` is not among the best third of `values`, which it is one of; the first never is.

    Asynchronous successive halving: no trial waits for the others, so it depends on their order which ones
    are pruned.
    """
    return value > sorted(values)[max(1, len(values) // REDUCTION) - 1]


def _metrics(folder: Path) -> list[Record]:
    try:
        return Run(folder).metrics
    except RunError:
        return []  # Not begun yet.
