"""Large buffers on the CPU that are used again, as torch's allocator does on other devices.

Fresh memory comes from the system page by page, cleared, at the first touch: for a layer of 600 units and 256
pieces that costs 170 of 710 ms. torch hands large CPU tensors back to the system as soon as they die; here
their memory waits for the next call of the same size.
"""

from __future__ import annotations

import mmap
import weakref

import numpy as np
import torch

# Smaller ones are kept by the C library.
SMALLEST = 2**22
# What waits at the most; beyond it, memory goes back to the system.
MOST_BYTES = 2**30

_waiting: list[mmap.mmap] = []


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


def release() -> None:
    """Give the memory that waits back to the system."""
    _waiting.clear()


def waiting_bytes() -> int:
    """How much memory waits to be used again."""
    return sum(len(memory) for memory in list(_waiting))


def _take(size: int) -> mmap.mmap:
    for memory in reversed(list(_waiting)):
        if size <= len(memory) <= size + size // 4:
            try:
                _waiting.remove(memory)
            except ValueError:  # another thread was faster
                continue
            return memory
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer and larger pages, where the system has them
    return memory


def _put_back(memory: mmap.mmap) -> None:
    _waiting.append(memory)
    while waiting_bytes() > MOST_BYTES:
        del _waiting[0]  # the one that waits longest
