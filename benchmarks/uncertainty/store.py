"""One file for each finished task under results/uncertainty/: a stopped benchmark goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, machine
from fastdropout.files import write_atomic

FOLDER = RESULTS / "uncertainty"


def path_of(task: str, folder: Path = FOLDER) -> Path:
    """Where the figures of a task are: `set/family`."""
    return folder / f"{task}.json"


def done(task: str, folder: Path = FOLDER) -> bool:
    """Whether the task has been finished."""
    return path_of(task, folder).exists()


def run(
    task: str, compute: Callable[[], Any], config: dict[str, Any], folder: Path = FOLDER, command: str = ""
) -> None:
    """Compute the figures of a task and keep them."""
    figures = _rounded(compute())
    command = f"python -m benchmarks.uncertainty {command or f'--only {task}'}"
    content = {"command": command, "config": config, "machine": machine(), "figures": figures}
    write_atomic(path_of(task, folder), (json.dumps(content, indent=1) + "\n").encode())


def figures(task: str, folder: Path = FOLDER) -> Any:
    """The figures of a finished task."""
    return json.loads(path_of(task, folder).read_text())["figures"]


def _rounded(value: Any) -> Any:
    """Seven digits are enough."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
