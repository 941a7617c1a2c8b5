"""The study of a search as a file or database that may be full, gone or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import optuna
from pydantic import BaseModel

from fastdropout.errors import FastdropoutError, RunError, one_line
from fastdropout.music.study.search.folder import SearchFolder
from fastdropout.music.training.records import RECORD, Count, Number, Text


class Told(BaseModel):
    """What a driver has written down of a trial: its user attributes."""

    model_config = RECORD

    driver: Text = ""
    folder: Text = ""
    outcome: Literal["finished", "diverged", "pruned", "failed"] = "failed"
    valid: Number | None = None
    epochs: Count = 0
    seconds: Number = 0.0
    reason: Text = ""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """A study or folder that cannot be read or written, in a line that says how to go on."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        why = f"the study: {one_line(getattr(cause, 'orig', None) or cause or error, 300)}"
        raise RunError(SearchFolder.how_to_go_on(path, why)) from error
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror or error}"
        raise RunError(SearchFolder.how_to_go_on(path, why)) from error


@contextmanager
def study_errors(path: Path) -> Iterator[None]:
    """As `storage_errors`, for calls of Optuna alone: of a damaged study it raises whatever it comes to."""
    try:
        with storage_errors(path):
            yield
    except (FastdropoutError, optuna.exceptions.UpdateFinishedTrialError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error, 200)}"
        raise RunError(f"{path}: the study is damaged ({why})") from error
