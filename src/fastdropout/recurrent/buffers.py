"""Large buffers on the CPU that are used again, as torch's allocator does on other devices.

Fresh memory comes from the system page by page, cleared, at the first touch: for a layer of 600 units and 256
pieces that costs 170 of 710 ms. torch hands large CPU tensors back to the system as soon as they die; here
their memory waits for the next call of about the same size.

At most as much waits as was used at once in the last minute, and what nobody took for half a minute goes back
to the system, at the next call or the next garbage collection of Python.
`fastdropout.release_memory()` gives it back at once. After a fork the child starts with none. (torch's
own threads do not survive a fork: a child of a process that used several must call
`torch.set_num_threads(1)` before it computes anything, or it hangs.)
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import time
import weakref

import numpy as np
import torch

# Smaller ones are kept by the C library.
SMALLEST = 2**22
# What waits at the most; beyond it, memory goes back to the system.
MOST_BYTES = 2**30
# How long it waits.
SECONDS = 30.0


class _Peak:
    """The most that was used at once in the last one to two periods of `SECONDS`."""

    def __init__(self) -> None:
        self.began, self.now, self.before = time.monotonic(), 0, 0

    def note(self, used: int) -> int:
        periods = (time.monotonic() - self.began) // SECONDS
        if periods:
            self.before = self.now if periods == 1 else 0
            self.began, self.now = time.monotonic(), 0
        self.now = max(self.now, used)
        return max(self.now, self.before)


# No lock: a tensor may die, and its memory come back, inside a call from here. Each line leaves these whole.
_waiting: list[tuple[float, mmap.mmap]] = []  # with the time since when, the longest first
_used: dict[int, int] = {}  # bytes by the memory's id
_peak = _Peak()


def empty(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """`like.new_empty(shape)`, from memory that waits if there is any that fits."""
    size = like.element_size() * int(np.prod(shape))
    if like.device.type != "cpu" or size < SMALLEST:
        return like.new_empty(shape)
    memory = _take(size)
    array = np.frombuffer(memory, np.uint8, size)
    # torch holds the array for as long as any tensor looks at the memory.
    weakref.finalize(array, _put_back, memory).atexit = False
    return torch.from_numpy(array).view(like.dtype).view(shape)


def release_memory() -> None:
    """Give the memory that fast layers keep for their next call back to the system.

    It goes back by itself half a minute after the last use; call this where something else needs it at once.
    The next pass is slower by some percent.

    >>> import fastdropout as fd
    >>> fd.release_memory()
    """
    _waiting.clear()


def waiting_bytes() -> int:
    """How much memory waits to be used again."""
    return sum(len(memory) for _, memory in list(_waiting))


def _take(size: int) -> mmap.mmap:
    memory = _take_waiting(size)
    if memory is None:
        memory = _map(size)
    _used[id(memory)] = len(memory)
    _give_back_surplus()
    return memory


def _take_waiting(size: int) -> mmap.mmap | None:
    """The smallest that fits, up to twice the size: sequences of different lengths share the longest's."""
    fitting = [item for item in list(_waiting) if size <= len(item[1]) <= 2 * size]
    for item in sorted(fitting, key=lambda item: len(item[1])):
        with contextlib.suppress(ValueError):  # another thread was faster
            _waiting.remove(item)
            return item[1]
    return None


def _map(size: int) -> mmap.mmap:
    if os.name != "posix":
        return mmap.mmap(-1, size)
    # Private: the default is shared with the children of a fork, who would write into each other's tensors.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer and larger pages, where the system has them
    return memory


def _put_back(memory: mmap.mmap) -> None:
    _used.pop(id(memory), None)
    _waiting.append((time.monotonic(), memory))
    _give_back_surplus()


def _give_back_surplus() -> None:
    most = min(MOST_BYTES, _peak.note(sum(list(_used.values()))))
    for item in list(_waiting):
        if not _is_stale(item) and waiting_bytes() <= most:
            break
        with contextlib.suppress(ValueError):  # another thread was faster
            _waiting.remove(item)


def _is_stale(item: tuple[float, mmap.mmap]) -> bool:
    return time.monotonic() - item[0] > SECONDS


def _after_collection(phase: str, info: dict[str, int]) -> None:
    """A process that has left the layers behind calls nothing here, but Python collects its garbage."""
    if phase == "stop" and any(map(_is_stale, _waiting[:1])):
        _give_back_surplus()


gc.callbacks.append(_after_collection)
if hasattr(os, "register_at_fork"):
    # Copies of pages that only the parent needs; the child would keep them for as long as it lives.
    os.register_at_fork(after_in_child=_waiting.clear)
