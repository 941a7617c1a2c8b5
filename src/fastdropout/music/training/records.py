"""What the JSON files of run and search folders hold, as records: read once, checked, then believed.

A file may have been edited, damaged, or put there by someone else. Whatever is wrong with it is a `RunError`
that names the file, the place in it and what should be there.
"""

from __future__ import annotations

import functools
import json
import os
import reprlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fastdropout.errors import RunError, one_line, visible
from fastdropout.files import open_file, read_file

MAX_JSON = 16 << 20
"""Bytes of a JSON file, which take 25 times as much in memory at worst."""
MAX_LINES = 1 << 30
"""Bytes of a file of JSON lines, read one at a time: a million epochs take half of it."""
MAX_LINE = 1 << 16
MAX_SKIPPED = 1000
"""Files that run.json lists as left out."""

T = TypeVar("T")


def _within(value: float) -> float:
    if not abs(value) <= 1e100:
        raise ValueError(f"must be a number within 1e100 of zero, got {value}")
    return value


Text = Annotated[str, BeforeValidator(lambda value: visible(value) if isinstance(value, str) else value)]
"""Text that can be shown and stored: JSON may hold what neither a terminal nor UTF-8 can."""
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Number = Annotated[float, Field(strict=True), AfterValidator(_within)]
"""Finite, and far enough from the end of the range that it can be drawn."""
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


RECORD = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)
"""Unknown entries are ignored: a later version may have written them."""


class _Record(BaseModel):
    model_config = RECORD


class CorpusAbout(_Record):
    """The corpus of a run."""

    name: Text = ""
    source: Text = ""
    sha256: Text = ""
    skipped: list[Annotated[list[Text], Field(min_length=2, max_length=2)]] = []
    """The first files that were left out, each with the reason."""


class About(_Record):
    """How a run was made: the content of run.json."""

    format: int = 1
    created: Text = ""
    command: list[Text] = []
    seed: int = 0
    corpus: CorpusAbout = CorpusAbout()
    versions: dict[Text, Text] = {}
    platform: Text = ""


class CalibrationTable(_Record):
    """`Calibration` as plain numbers; None where a bin is empty."""

    edges: list[Number]
    count: list[Count]
    mean_probability: list[Share | None]
    frequency: list[Share | None]

    @model_validator(mode="after")
    def _one_length(self) -> CalibrationTable:
        bins = len(self.count)
        if [len(self.edges), len(self.mean_probability), len(self.frequency)] != [bins + 1, bins, bins]:
            raise ValueError("edges, count, mean_probability and frequency must be of one number of bins")
        if any(n and None in (p, f) for n, p, f in self._bins):
            raise ValueError("a bin that is not empty must have a mean_probability and a frequency")
        return self

    @property
    def _bins(self) -> Iterator[tuple[int, float | None, float | None]]:
        return zip(self.count, self.mean_probability, self.frequency, strict=True)


class Scores(_Record):
    """`Evaluation` as plain numbers, without single frames."""

    nll_per_step: Number
    frames: Count
    calibration_error: Number
    by_piece: list[Number | None]
    piece_frames: list[Count]
    calibration: CalibrationTable

    @model_validator(mode="after")
    def _one_length(self) -> Scores:
        if len(self.by_piece) != len(self.piece_frames):
            raise ValueError("by_piece and piece_frames must be of one length")
        return self


class Result(_Record):
    """The final figures of a run: the content of result.json."""

    epochs: Count
    updates: Count = 0
    best_epoch: Count
    diverged: bool
    seconds: Annotated[Number, Field(ge=0)]
    parameters: Count
    valid: Scores | None = None
    """Of the best network on whole pieces; None if the training diverged before it had one."""
    test: Scores | None = None

    @model_validator(mode="after")
    def _both(self) -> Result:
        if (self.valid is None) != (self.test is None):
            raise ValueError("valid and test must both be there, or neither")
        return self

    @property
    def scores(self) -> tuple[Scores, Scores] | None:
        """Those of valid and test; None if the training diverged before it had a network."""
        return None if self.valid is None or self.test is None else (self.valid, self.test)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file, not yet checked."""
    try:
        return json.loads(read_file(path, MAX_JSON))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a JSON file ({one_line(error, 100)})") from error


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes, Any]]:
    """Number, bytes and content of each line of a file of JSON lines.

    What is no JSON is left out: a crash may tear a line, and the epoch is then made again.
    """
    try:
        with open_file(path, MAX_LINES) as file:
            number, whole = 1, True  # Whether the next bytes begin a line.
            while line := file.readline(MAX_LINE):
                ends = line.endswith(b"\n")
                if whole and (ends or len(line) < MAX_LINE):
                    content = _parsed(line)
                    if content is not None:
                        yield number, line.rstrip(b"\n"), content
                whole, number = ends, number + ends
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def check(content: Any, kind: type[T], where: str | os.PathLike[str]) -> T:
    """The record that a content is, or a `RunError` about its first fault."""
    try:
        record: T = _adapter(kind).validate_python(content)  # type: ignore[arg-type]
        return record
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"]))
        said = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
        said = _SAID.get(fault["type"], said)
        got = "" if fault["type"] in ("value_error", "missing") else f", got {_short(fault['input'])}"
        raise RunError(f"{where}: {place}{' ' if place else ''}{said}{got}") from error


_OBJECT = "must be a JSON object"
_SAID = {"missing": "is missing", "model_type": _OBJECT, "dataclass_type": _OBJECT, "dict_type": _OBJECT}


@functools.lru_cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _short(value: object) -> str:
    text = visible(reprlib.repr(value))  # Which does not take long for a long list, nor recurse.
    return text if len(text) <= 60 else text[:57] + "..."
