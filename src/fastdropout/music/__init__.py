"""The paper's experiment on polyphonic music: data, training, study, models and the command line."""

from importlib import import_module
from typing import Any

_ROOMS = ("cli", "data", "study", "training")


def __getattr__(name: str) -> Any:
    """Import a room when it is first used, as `fastdropout` does."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'fastdropout.music' has no attribute {name!r}")
    return import_module(f"fastdropout.music.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
