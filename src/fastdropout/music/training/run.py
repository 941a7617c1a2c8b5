"""A run folder: what was asked for, what happened, and what came out.

config.toml        the resolved configuration; `fastdropout train --config` reruns it
run.json           versions, whether the kernel was built, seed, hash of the corpus, command
metrics.jsonl      a line for each epoch
last.safetensors   where to go on
best.safetensors   the lowest valid
result.json        the final figures; there when the run is finished
report.html        the page to look at
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdropout.errors import ConfigError, RunError
from fastdropout.files import append_line, lock_file, new_folder, write_atomic
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fastdropout.music.training.config import Config
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.network import Network
from fastdropout.music.training.options import read_config, to_toml
from fastdropout.music.training.state import State
from fastdropout.recurrent import kernel

FORMAT = 1
"""Version of the layout of a run folder."""
MAX_JSON = 256 << 20
_PACKAGES = ("fastdropout", "torch", "numpy", "safetensors")


class Run:
    """A run folder that is there. `create_run` makes a new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such run folder")
        if not (self.path / "config.toml").is_file():
            raise RunError(f"{self.path}: not a run folder, it has no config.toml; train again")
        about = self.about
        if about.get("format", FORMAT) != FORMAT:
            raise RunError(
                f"{self.path}: has layout version {str(about['format'])[:20]}, this program reads {FORMAT}; "
                "use the version of fastdropout that wrote it"
            )

    @property
    def about(self) -> dict[str, Any]:
        """The content of run.json, empty if it was never written."""
        path = self.path / "run.json"
        return _read_json(path) if path.exists() else {}

    @property
    def config(self) -> Config:
        """The configuration in config.toml."""
        try:
            return read_config(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(str(error)) from error

    @property
    def finished(self) -> bool:
        """Whether the final figures are there."""
        return (self.path / "result.json").is_file()

    @property
    def result(self) -> dict[str, Any]:
        """The final figures; a `RunError` says how to get them."""
        if not self.finished:
            raise RunError(f"{self.path}: is not finished; fastdropout resume {self.path}")
        return _read_json(self.path / "result.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A record for each epoch, as `Record` describes them; a torn last line is left out."""
        return [record for _, record in self._lines()]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def checkpoint(self, which: str = "best") -> Checkpoint:
        """The checkpoint `best` or `last`."""
        path = self.path / f"{which}.safetensors"
        if not path.is_file():
            raise RunError(f"{self.path}: has no {which} checkpoint yet; fastdropout resume {self.path}")
        return load_checkpoint(path)

    def model(self, which: str = "best") -> Network:
        """The trained network in evaluation mode, with averaged weights if the run averages."""
        return self.checkpoint(which).state.evaluated.eval()

    def save(self, state: State, corpus: Corpus, record: Record | None = None) -> None:
        """Write a state down; after an epoch with its record.

        The order matters to a crash in between: a line or a best checkpoint of an epoch that `last` does not
        know of is made again, exactly alike, when the run goes on.
        """
        if record is not None:
            append_line(self.path / "metrics.jsonl", json.dumps(record.to_json()), sync=True)
            if record.best:
                save_checkpoint(state, self.path / "best.safetensors", corpus.sha256)
        save_checkpoint(state, self.path / "last.safetensors", corpus.sha256)

    def save_result(self, result: dict[str, Any]) -> None:
        """Write the final figures."""
        write_atomic(self.path / "result.json", (json.dumps(result, indent=1) + "\n").encode())

    def forget_after(self, epoch: int) -> None:
        """Take away the records of epochs after `epoch`, which will be made again."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = [line for line, record in self._lines() if record["epoch"] <= epoch]
        write_atomic(path, "".join(line + "\n" for line in kept).encode())

    def sweep(self) -> None:
        """Take away what a killed process was writing; only for who holds the lock."""
        for path in self.path.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this folder. The lock of a dead process is gone with it."""
        with open(self.path / ".lock", "a+b") as file:
            try:
                lock_file(file)
            except OSError as error:
                raise RunError(f"{self.path}: another process trains in it; wait for it to end") from error
            yield

    def _lines(self) -> list[tuple[str, dict[str, Any]]]:
        path = self.path / "metrics.jsonl"
        try:
            text = path.read_bytes()[:MAX_JSON].decode("utf-8", "replace") if path.exists() else ""
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
        lines: list[tuple[str, dict[str, Any]]] = []
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # Torn by a crash; the epoch was made again.
            if isinstance(record, dict) and type(record.get("epoch")) is int:
                lines.append((line, record))
        return lines


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
    about = {
        "format": FORMAT,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": config.seed,
        "corpus": {
            "name": corpus.name,
            "source": corpus.source,
            "sha256": corpus.sha256,
            "skipped": [list(item) for item in corpus.skipped],
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "kernel": kernel.status(),
        },
        "platform": platform.platform(),
    }
    write_atomic(path / "run.json", (json.dumps(about, indent=1) + "\n").encode())
    # Last: a folder that has it can be resumed.
    write_atomic(path / "config.toml", to_toml(config).encode())
    return Run(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(MAX_JSON))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a JSON file ({str(error).splitlines()[0][:100]})") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: must hold a JSON object, got {type(content).__name__}")
    return content


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
