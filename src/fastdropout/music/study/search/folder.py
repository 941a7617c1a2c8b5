"""The folder of a search, and where its study is stored."""

from __future__ import annotations

import os
import secrets
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import optuna
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from fastdropout.errors import ConfigError, RunError, one_line
from fastdropout.files import lock_folder, new_folder, write_atomic
from fastdropout.music.training.records import check, read_json


class Settings(BaseModel):
    """What was asked for: the content of search.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    """Version of the layout of a search folder."""
    corpus: str = Field("bach", min_length=1)
    trials: int = Field(32, ge=1, le=100_000)
    space: Literal["paper", "wide", "structured"] = "paper"
    sampler: Literal["random", "tpe"] = "random"
    seed: int = Field(0, ge=0, le=2**63 - 1)
    prune: bool = False
    options: dict[str, Any] = {}
    """Options of a configuration that are not drawn."""
    storage: str | None = None
    """URL of a database without its password; None for study.db in the folder."""
    study: str = Field("search", min_length=1, max_length=500)
    driver: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Tells the trials of this folder from those of others in one study."""


class SearchFolder:
    """A search folder that is there. `create_folder` makes a new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        file = self.path / "search.json"
        if not os.path.lexists(file):
            raise RunError(f"{self.path}: not a search folder, it has no search.json")
        self.settings = check(read_json(file), Settings, file)

    def trial(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.path / "trials" / f"{number:03}"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from driving this search. The lock of a dead process is gone with it."""
        return lock_folder(self.path, "another process drives this search")

    def extend(self, trials: int) -> None:
        """Ask for more trials; those that are there stay what they are. Only for who holds the lock."""
        if trials < self.settings.trials:
            raise ConfigError(
                f"trials must be at least the {self.settings.trials} of the search, got {trials}"
            )
        self.settings = self.settings.model_copy(update={"trials": trials})
        _write(self.path, self.settings)

    def open_storage(self, storage: str | None = None) -> optuna.storages.RDBStorage:
        """The database of the study; `storage` is its URL with a password, where that is needed."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        file = self.path / "study.db"
        url = storage or self.settings.storage or f"sqlite:///{file}"
        if url.startswith("sqlite") and os.path.lexists(file) and not file.is_file():
            raise RunError(f"{file}: not a regular file")  # SQLite would wait for a pipe.
        try:
            return optuna.storages.RDBStorage(url, skip_compatibility_check=False)
        except ImportError as error:
            ours = url.startswith("postgresql")
            what = "pip install 'fastdropout[postgres]'" if ours else "install the driver that its URL names"
            raise ConfigError(f"{without_password(url)}: {one_line(error, 200)}; {what}") from error
        except Exception as error:  # Whatever a database's driver raises.
            why = one_line(getattr(error, "orig", None) or error, 300)
            raise RunError(f"{without_password(url)}: cannot be opened ({why})") from error

    def mend(self, why: str) -> str:
        """A sentence about how to go on."""
        return self.how_to_go_on(self.path, why)

    @staticmethod
    def how_to_go_on(path: Path, why: str) -> str:
        """A sentence about how to resume the search in `path`."""
        return f"{why}; once this is fixed: fastdropout search --resume {path}"


def create_folder(
    settings: Settings, out: str | os.PathLike[str] | None = None, root: str | os.PathLike[str] = "searches"
) -> SearchFolder:
    """Make a new search folder: `out`, or `root`/<corpus>-<date>-<n>."""
    path = new_folder(root, Path(settings.corpus).name) if out is None else Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path}: is not empty; choose another folder, or fastdropout search --resume {path}")
    path.mkdir(parents=True, exist_ok=True)
    _write(path, settings)
    return SearchFolder(path)


def without_password(url: str) -> str:
    """A database's URL as it may be shown and stored."""
    try:
        parts = make_url(url)
    except ArgumentError:
        raise ConfigError("storage must be a URL such as postgresql+psycopg://user@host/name") from None
    bare = URL.create(
        parts.drivername, parts.username, None, parts.host, parts.port, parts.database, parts.query
    )
    return bare.render_as_string(hide_password=False)


def _write(path: Path, settings: Settings) -> None:
    write_atomic(path / "search.json", (settings.model_dump_json(indent=1) + "\n").encode())
