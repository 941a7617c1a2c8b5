"""What is kept of a training when its run folder is gone: a line of `results/table/CORPUS.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import StrictBool

from fastdropout.files import lock_file, write_atomic
from fastdropout.music.training.records import Count, Number, check, read_json

Key = tuple[str, str, int, int]
"""Corpus, model, number of the setting, seed."""


@dataclass(frozen=True)
class Result:
    """A finished training and all that is needed to make it again."""

    corpus: str
    model: str
    candidate: int
    seed: int
    valid: Number | None
    """Nats per frame on the whole pieces; None if the training diverged before it had a network."""
    test: Number | None
    epochs: Count
    best_epoch: Count
    diverged: StrictBool
    seconds: Number
    parameters: Count
    budget: Number
    command: str
    corpus_sha256: str
    versions: dict[str, str]
    platform: str
    config: dict[str, Any]

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.corpus, self.model, self.candidate, self.seed


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """The results in a file; none if it is not there."""
    return check(read_json(path), list[Result], path) if os.path.lexists(path) else []


def write_results(path: str | os.PathLike[str], results: Iterable[Result]) -> None:
    """Replace the file: a list with one line per result, so that differences are easy to read."""
    lines = [json.dumps(asdict(result)) for result in sorted(results, key=lambda result: result.key)]
    write_atomic(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def merge_results(path: str | os.PathLike[str], new: Iterable[Result]) -> None:
    """Put new results in the places of those of the same corpus, model, candidate and seed.

    Several processes may do so at a time: a lock file beside it makes them wait for one another.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "ab") as file:
        lock_file(file, wait=True)
        write_results(path, {result.key: result for result in [*read_results(path), *new]}.values())
