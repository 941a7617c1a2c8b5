"""How a measurement is kept: figures with what they were measured on."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastdropout
from fastdropout.files import write_atomic

RESULTS = Path(__file__).parents[1] / "results"


def machine() -> dict[str, Any]:
    """The processor, the threads and the versions."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fastdropout": fastdropout.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def save(name: str, config: dict[str, Any], figures: Any) -> Path:
    """Write `results/{name}.json`: the command, its configuration, the machine, the figures."""
    command = f"python -m {Path(sys.argv[0]).parent.name}.{Path(sys.argv[0]).stem}".removesuffix(".__main__")
    return write(RESULTS / f"{name}.json", command, config, figures)


def write(path: Path, command: str, config: dict[str, Any], figures: Any) -> Path:
    """Write a file of figures, replacing it whole."""
    content = {"command": command, "config": config, "machine": machine(), "figures": figures}
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
    return path
