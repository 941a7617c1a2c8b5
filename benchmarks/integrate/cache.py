"""What does not depend on our rules is computed once: trained weights, and the moments over masks.

Kept under build/integrate/, which is not part of the repository. So a changed rule is measured again in
seconds, by the same networks and the same masks.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from fastdropout.files import write_atomic

FOLDER = Path(__file__).parents[2] / "build" / "integrate"


def cached(name: str, config: dict[str, Any], compute: Callable[[], Any], folder: Path | None) -> Any:
    """The value of `compute`, or what it was when it was last called with this configuration."""
    if folder is None:
        return compute()
    config = {**config, "torch": str(torch.__version__)}
    path = folder / f"{name.replace(' ', '-')}.pt"
    if path.exists():
        found = torch.load(path, weights_only=True)
        if found["config"] == config:
            return found["value"]
    value = compute()
    buffer = BytesIO()
    torch.save({"config": config, "value": value}, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())
    return value
