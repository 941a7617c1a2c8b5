"""Options from TOML files, flags and presets to a `Config`, and back."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from fastdropout.errors import ConfigError, one_line
from fastdropout.files import read_file
from fastdropout.music.training.config import Config, contradictions
from fastdropout.music.training.presets import PRESETS, preset

MAX_TOML = 1 << 20
"""Bytes of a configuration file."""

OPTIONS: tuple[str, ...] = tuple(Config.model_fields)
DROPS = ("drop_input", "drop_hidden", "drop_output")
"""What `drop` sets."""
NO_MORE_NOISE: dict[str, Any] = {
    "drop_memory": 0.0,
    "drop_between": 0.0,
    "drop_nade_input": 0.0,
    "drop_nade_hidden": 0.0,
    "noise_hidden": 0.0,
    "rule": "fast",
    "output_rule": "fast",
}
"""What `drop=0` sets besides the three drop probabilities."""


def make_config(
    options: Mapping[str, Any] | None = None, *, preset_name: str | None = None, what: str = "configuration"
) -> Config:
    """`options` over a preset; every fault is named in one `ConfigError`.

    Beside the fields of `Config`, `options` may hold `preset` and `drop`: the latter sets `drop_input`,
    `drop_hidden` and `drop_output` at once. `drop=0` is the plain network, so it also takes away the other
    noise that a preset may have (all other drop probabilities, `noise_hidden`, the paper's rule).

    >>> make_config({"hidden": 0, "drop_hiden": 0.5})
    Traceback (most recent call last):
    ...
    fastdropout.errors.ConfigError: configuration: hidden must be greater than or equal to 1, got 0;
    drop_hiden is unknown, did you mean drop_hidden?
    """
    given = dict(options or {})
    faults: list[str] = []
    name = given.pop("preset", None)
    name = preset_name if preset_name is not None else name if name is not None else "default"
    if name not in PRESETS:
        faults.append(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        name = "default"
    if "drop" in given:
        given, fault = _expand_drop(given)
        faults += fault
    corpus = given.get("corpus", "bach")
    values = {**preset(name, corpus if isinstance(corpus, str) else "bach"), **given}
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        faults += _describe(error, values)
    if faults:
        raise ConfigError(f"{what}: {'; '.join(faults)}")
    return config


def with_drop(options: Mapping[str, Any], drop: Any) -> dict[str, Any]:
    """The options of a file, with `drop` in place of the rates, and for 0 of all noise, that it sets."""
    gone = {"drop", *DROPS, *(NO_MORE_NOISE if drop == 0 else ())}
    return {**{name: value for name, value in options.items() if name not in gone}, "drop": drop}


def from_text(name: str, text: str) -> Any:
    """The value of a flag: a number where the option is one, else the text, which validation then judges."""
    kinds = get_args(Config.model_fields[name].annotation) if name in OPTIONS else (float,)
    kinds = kinds or (Config.model_fields[name].annotation,)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options in a TOML file, not yet validated."""
    path = Path(path)
    try:
        return tomllib.loads(read_file(path, MAX_TOML).decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a TOML file ({one_line(error, 200)})") from error
    except ValueError as error:  # Some versions let a bad date or number through as such.
        raise ConfigError(f"{path}: not a TOML file ({one_line(error, 200)})") from error


def read_config(path: str | os.PathLike[str]) -> Config:
    """The configuration in a TOML file, over the preset it names."""
    return make_config(read_toml(path), what=str(path))


def to_toml(config: Config) -> str:
    """All options as TOML, which `read_config` reads back to an equal configuration."""
    lines = ["# Rerun: fastdropout train --config THIS_FILE"]
    for name, value in config:
        if value is not None:
            lines += [f"{name} = {_toml(value)}"]
    return "\n".join(lines) + "\n"


def _expand_drop(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    drop = given.pop("drop")
    twice = [name for name in DROPS if name in given]
    if twice:
        return given, [f"drop sets all three of {', '.join(DROPS)}: give it or {', '.join(twice)}, not both"]
    if drop == 0:
        given = {**NO_MORE_NOISE, **given}
    return {**given, **dict.fromkeys(DROPS, drop)}, []


def _describe(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    """Each fault in our own words, in the order of the options."""
    faults, bad = [], set()
    for item in error.errors(include_url=False, include_context=False):
        if not item["loc"]:
            continue  # The contradictions, found again below.
        name = str(item["loc"][0])
        if name in bad:
            continue  # A union reports each of its kinds.
        bad.add(name)
        if item["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, (*OPTIONS, "drop", "preset"), 1)
            hint = f", did you mean {close[0]}?" if close else f", allowed are {', '.join(OPTIONS)}"
            faults.append(f"{name[:80]} is unknown{hint}")
        else:
            allowed = item["msg"].replace("Input should be", "must be", 1)
            allowed = "must be a number or 'frequencies'" if name == "output_bias" else allowed
            faults.append(f"{name} {allowed}, got {_short(item['input'])}")
    defaults = {name: field.default for name, field in Config.model_fields.items()}
    valid = {name: value for name, value in {**defaults, **values}.items() if name not in bad}
    return faults + contradictions(valid)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Basic strings: what must be escaped is what lies below a space, the quote, the backslash and DEL.
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in text) + '"'
    return repr(value)
