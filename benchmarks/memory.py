"""Peak memory that a computation adds, in a process that does nothing else. Linux only."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path


def added_megabytes(run: Callable[[], object]) -> float:
    """How far the peak of the process rises above what it holds before; run something small first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again, and not be seen
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """A line of /proc/self/status, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])
