"""The one who owns a study: draws trials, hands them to an executor, and writes down how they end.

A folder holds all of a search:

    search.json     what was asked for
    study.db        the trials, an Optuna study in SQLite (or elsewhere, by URL)
    trials/000      a run folder for each trial, named by its number
    report.html     a page to look at
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from fastdropout.errors import ConfigError, RunError
from fastdropout.files import lock_file
from fastdropout.music.study.search.executors import Executor
from fastdropout.music.study.search.folder import SearchFolder, Settings
from fastdropout.music.study.search.job import Job, Outcome
from fastdropout.music.study.search.space import SPACES, Sampler, choose, draw, suggest, trial_config
from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.run import Run

Ending = Literal["waiting", "running", "finished", "diverged", "pruned", "failed"]

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
        with storage_errors(folder.path):
            self.study = optuna.create_study(
                study_name=self.settings.study,
                storage=self._storage,
                sampler=self._sampler,
                direction="minimize",
                load_if_exists=True,
            )
            self._join()

    def close(self) -> None:
        """Give the connections to the data base back; a later use opens them again."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers, those of other drivers too."""
        with storage_errors(self.folder.path):
            return [self._trial(frozen) for frozen in self._frozen()]

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
        self, executor: Executor, watch: Watch | None = None, stop: Callable[[], bool] | None = None
    ) -> None:
        """Work until no trial is left, or `stop` answers True. Closing the executor is the caller's.

        What ran when a driver died goes on where it was. A trial is told to the study when it has ended, and
        never again.
        """
        with self._alone(), storage_errors(self.folder.path):
            self._enqueue()
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
        settings, trial = self.settings, self._by_number(number)
        options = choose(self.space, lambda name, _: trial.params[name], settings.options)
        return trial_config(self.space, settings.corpus, options, settings.seed, number)

    def _join(self) -> None:
        """Drivers that share a study must ask for the same."""
        ours = self.settings.model_dump(include={"space", "sampler", "seed", "prune", "options"})
        ours["corpus"] = Path(self.settings.corpus).name
        theirs = self.study.user_attrs.get("asked")
        if theirs is None:
            self.study.set_user_attr("asked", ours)
        elif theirs != ours:
            other = ", ".join(name for name in ours if ours[name] != theirs.get(name))
            raise ConfigError(f"the study {self.settings.study} was begun with other {other}; name another")

    def _enqueue(self) -> None:
        """Put all trials into the study, waiting: of those, several drivers cannot make one too many."""
        for _ in range(len(self._frozen()), self.settings.trials):
            self.study.add_trial(optuna.trial.create_trial(state=TrialState.WAITING))

    def _next(self, waiting: list[int]) -> int | None:
        """A trial that is ours from before, or one that nobody has."""
        if waiting:
            return waiting.pop(0)
        for frozen in self._frozen():
            if frozen.state == TrialState.WAITING and self._claim(frozen):
                return frozen.number
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
        trial = optuna.Trial(self.study, frozen._trial_id)
        trial.set_user_attr("driver", settings.driver)
        trial.set_user_attr("folder", f"{socket.gethostname()}:{self.folder.trial(number).resolve()}")
        choose(self.space, lambda name, among: suggest(trial, name, among), settings.options)
        try:
            config = self.config(number)
        except Exception as error:  # Only `tpe` can get here; random draws are checked before they begin.
            self._tell(number, Outcome("failed", reason=str(error)))
            return 0
        until = next((rung for rung in self._rungs(config) if rung > (frozen.last_step or 0)), 0)
        executor.submit(number, Job(str(self.folder.trial(number).resolve()), config, until))
        return 1

    def _rungs(self, config: Config) -> list[int]:
        return rungs(config.epochs) if self.settings.prune else []

    def _judge(self, executor: Executor, number: int, outcome: Outcome) -> int:
        """After a rung: on to the next, or pruned; 1 if it goes on."""
        frozen = self._by_number(number)
        step = outcome.epochs
        assert outcome.valid is not None
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
        trial = optuna.Trial(self.study, frozen._trial_id)
        about = {"outcome": ending, "epochs": outcome.epochs, "seconds": round(outcome.seconds, 3)}
        for name, value in {**about, "reason": outcome.reason, "valid": outcome.valid}.items():
            if value not in ("", None):
                trial.set_user_attr(name, value)
        value = outcome.valid if ending == "finished" else None
        self.study.tell(number, value, state=_TOLD[ending], skip_if_finished=True)

    def _frozen(self) -> list[FrozenTrial]:
        frozen = self.study.get_trials(deepcopy=False)
        return sorted((t for t in frozen if t.number < self.settings.trials), key=lambda t: t.number)

    def _by_number(self, number: int) -> FrozenTrial:
        return next(t for t in self._frozen() if t.number == number)

    def _trial(self, frozen: FrozenTrial) -> Trial:
        about, folder = frozen.user_attrs, self.folder.trial(frozen.number)
        if about.get("driver", self.settings.driver) != self.settings.driver:
            folder = Path(str(about.get("folder", "")))
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
        return Trial(
            frozen.number,
            about.get("outcome", "failed"),
            folder,
            frozen.params,
            about.get("valid"),
            about.get("epochs", 0),
            about.get("seconds", 0.0),
            about.get("reason", ""),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self.folder.path / ".lock", "a+b") as file:
            try:
                lock_file(file)
            except OSError as error:
                raise RunError(f"{self.folder.path}: another process drives this search") from error
            yield


def check(settings: Settings) -> None:
    """Raise a `ConfigError` if a draw contradicts the options that were fixed."""
    for number in range(settings.trials):
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

    Asynchronous successive halving: nobody waits for the others, so who is pruned depends on who came first.
    """
    return value > sorted(values)[max(1, len(values) // REDUCTION) - 1]


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """A study or folder that cannot be read or written, in a line that says how to go on."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        why = str(getattr(cause, "orig", None) or cause or error)
        why = f"the study: {' '.join(why.split())[:300]}"
        raise RunError(SearchFolder.how_to_go_on(path, why)) from error
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror or error}"
        raise RunError(SearchFolder.how_to_go_on(path, why)) from error


def _metrics(folder: Path) -> list[Record]:
    try:
        return Run(folder).metrics
    except RunError:
        return []  # Not begun yet.
