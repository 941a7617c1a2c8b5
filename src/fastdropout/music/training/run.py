"""A run folder: what was asked for, what happened, and what came out.

config.toml        the resolved configuration; `fastdropout train --config` reruns it
run.json           versions, whether the kernel was built, seed, hash of the corpus, command
metrics.jsonl      a line for each epoch
last.safetensors   the checkpoint to resume from; previous.safetensors is the one before
best.safetensors   the lowest valid
result.json        the final figures; there when the run is finished
report.html        the page to look at
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fastdropout.errors import ConfigError, RunError, visible
from fastdropout.files import append_line, lock_folder, new_folder, write_atomic
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.training.checkpoint import Checkpoint, check_finite, load_checkpoint, save_checkpoint
from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.network import Network
from fastdropout.music.training.options import read_config, to_toml
from fastdropout.music.training.records import (
    MAX_SKIPPED,
    About,
    CorpusAbout,
    Result,
    check,
    read_json,
    read_lines,
)
from fastdropout.music.training.state import State
from fastdropout.recurrent import kernel

FORMAT = 1
"""Version of the layout of a run folder."""
CHECKPOINTS = ("last", "previous", "best")
"""In the order in which a run is resumed from them."""
_PACKAGES = ("fastdropout", "torch", "numpy", "safetensors")


class Run:
    """A run folder that is there. `create_run` makes a new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such run folder")
        if not (self.path / "config.toml").is_file():
            raise RunError(f"{self.path}: not a run folder, it has no config.toml; train again")
        self.about = _read_about(self.path / "run.json")
        """The content of run.json."""

    @functools.cached_property
    def config(self) -> Config:
        """The configuration in config.toml."""
        try:
            return read_config(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(str(error)) from error

    @property
    def finished(self) -> bool:
        """Whether the final figures are there."""
        return os.path.lexists(self.path / "result.json")

    @property
    def result(self) -> Result:
        """The final figures; a `RunError` says how to get them."""
        if not self.finished:
            raise RunError(f"{self.path}: is not finished; fastdropout resume {self.path}")
        path = self.path / "result.json"
        try:
            return check(read_json(path), Result, path)
        except RunError as error:
            raise RunError(
                f"{error}; without this file, fastdropout resume {self.path} makes it again"
            ) from error

    @property
    def metrics(self) -> list[Record]:
        """A record for each epoch; a line that a crash has torn is left out."""
        path = self.path / "metrics.jsonl"
        if not os.path.lexists(path):
            return []
        return [check(content, Record, f"{path}: line {n}") for n, _, content in read_lines(path)]

    @property
    def name(self) -> str:
        """The folder's name."""
        return visible(os.path.basename(os.path.realpath(self.path)))

    def checkpoint(self, which: str = "best") -> Checkpoint:
        """The checkpoint `best`, `last` or `previous`."""
        if not self.has(which):
            raise RunError(f"{self.path}: has no {which} checkpoint; fastdropout resume {self.path}")
        return load_checkpoint(self.path / f"{which}.safetensors")

    def latest(self) -> tuple[str, Checkpoint] | None:
        """Which checkpoint to resume from: the first of `CHECKPOINTS` that can be read.

        None before the first was written. With a warning if it is not `last`.

        If none can be read, a `RunError` says so: a run is never begun again without a word.
        """
        faults = []
        for which in CHECKPOINTS:
            try:
                found = self.checkpoint(which)
            except RunError as error:
                faults.append(self.fault(which, error))
                continue
            if faults:
                done = found.state.counters
                warnings.warn(
                    f"{faults[0]}; resumes from the checkpoint {which}, after epoch {done.epoch} "
                    f"and {done.updates} updates",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return which, found
        if any(map(self.has, CHECKPOINTS)) or self.metrics:
            raise RunError(
                f"{faults[0]}, and there is no other to resume from; "
                f"start a new run: fastdropout train --config {self.path / 'config.toml'}"
            )
        return None

    def has(self, which: str) -> bool:
        """Whether there is a file of this name, readable or not."""
        return os.path.lexists(self.path / f"{which}.safetensors")

    def fault(self, which: str, error: RunError) -> str:
        """What is wrong with a checkpoint, without advice."""
        return str(error) if self.has(which) else f"{self.path}: has no {which} checkpoint"

    def model(self, which: str = "best") -> Network:
        """The trained network in evaluation mode, with averaged weights if the run averages."""
        model = self.checkpoint(which).state.evaluated.eval()
        check_finite(model, self.path / f"{which}.safetensors")
        return model

    def save(self, state: State, corpus: Corpus, record: Record | None = None) -> None:
        """Write a state down; after an epoch with its record.

        The order matters to a crash in between: a line or a best checkpoint of an epoch that `last` does not
        know of is made again, exactly alike, when the run goes on.
        """
        if record is not None:
            append_line(self.path / "metrics.jsonl", json.dumps(record.to_json()), sync=True)
            if record.best:
                self.save_best(state, corpus.sha256)
        last, previous = (self.path / f"{which}.safetensors" for which in ("last", "previous"))
        save_checkpoint(state, last, corpus.sha256, keep=previous)

    def save_best(self, state: State, corpus_sha256: str) -> None:
        """Write a state down as the one with the lowest valid."""
        save_checkpoint(state, self.path / "best.safetensors", corpus_sha256)

    def save_result(self, result: Result) -> None:
        """Write the final figures."""
        text = json.dumps(result.model_dump(exclude_none=True), indent=1) + "\n"
        write_atomic(self.path / "result.json", text.encode())

    def forget_after(self, epoch: int) -> None:
        """Take away the records of epochs after `epoch`, which will be made again, and what is no record."""
        path = self.path / "metrics.jsonl"
        if not os.path.lexists(path):
            return
        kept, faults = [], []
        for number, line, content in read_lines(path):
            try:
                if check(content, Record, f"{path}: line {number}").epoch <= epoch:
                    kept.append(line + b"\n")
            except RunError as error:
                faults.append(str(error))
        write_atomic(path, b"".join(kept))
        if faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            warnings.warn(f"{faults[0]}; the line{more} was taken away", RuntimeWarning, stacklevel=2)

    def set_aside(self, which: str) -> None:
        """Rename a checkpoint that cannot be read, so that none that can be is replaced by it."""
        path = self.path / f"{which}.safetensors"
        if os.path.lexists(path):
            os.replace(path, path.with_name(f"{path.name}.damaged"))

    def sweep(self) -> None:
        """Take away what a killed process was writing; only for who holds the lock."""
        for path in self.path.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder. The lock of a dead process is gone with it."""
        return lock_folder(self.path, "another process trains in it; wait for it to end")


def create_run(
    config: Config,
    corpus: Corpus,
    *,
    out: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    command: Sequence[str] = (),
) -> Run:
    """Make a new run folder: `out`, or `root`/<corpus>-<date>-<n>."""
    path = new_folder(root, corpus.name) if out is None else Path(out)
    if out is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RunError(f"{path}: is a file, a run needs a folder") from None
        if any(path.iterdir()):
            raise RunError(f"{path}: is not empty; choose another folder, or fastdropout resume {path}")
    about = About(
        format=FORMAT,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=list(command),
        seed=config.seed,
        corpus=CorpusAbout(
            name=corpus.name,
            source=corpus.source,
            sha256=corpus.sha256,
            skipped=[list(item) for item in corpus.skipped[:MAX_SKIPPED]],
        ),
        versions={
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "kernel": kernel.status(),
        },
        platform=platform.platform(),
    )
    write_atomic(path / "run.json", (json.dumps(about.model_dump(), indent=1) + "\n").encode())
    # Last: a folder that has it can be resumed.
    write_atomic(path / "config.toml", to_toml(config).encode())
    return Run(path)


def _read_about(path: Path) -> About:
    if not os.path.lexists(path):
        return About()  # Killed before it was written.
    content = read_json(path)
    version = content.get("format", FORMAT) if isinstance(content, dict) else FORMAT
    if version != FORMAT:
        raise RunError(
            f"{path.parent}: has layout version {str(version)[:20]}, this program reads {FORMAT}; "
            "use the version of fastdropout that wrote it"
        )
    return check(content, About, path)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
