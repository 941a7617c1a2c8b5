"""The functions of kernel.c, called with addresses; without a compiler it is only slower."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from fastdropout.recurrent import compiler
from fastdropout.recurrent.cells import Cell

RULES = {"fast": 0, "paper": 1}
NAMES = {torch.float32: "float32", torch.float64: "float64"}


def _structure(counts: tuple[str, ...], numbers: tuple[str, ...], *names: str) -> list[tuple[str, type]]:
    """Whole numbers, then addresses, then numbers."""
    return [
        *((name, ctypes.c_int64) for name in counts),
        *_addresses(*names),
        *((name, ctypes.c_double) for name in numbers),
    ]


def _addresses(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in names]


class Forward(ctypes.Structure):
    """Of cells.h: what a chunk of forward steps works on, as addresses."""

    _fields_ = _structure(
        ("units", "rule", "keeps"),
        ("noise", "keep", "spread"),
        *("pre_m", "pre_v", "rec_m", "rec_v", "bias", "out_m", "out_v", "out_u", "carry_m", "carry_v"),
    ) + _addresses("norms", "level", "before_v")


class Backward(ctypes.Structure):
    """Of cells.h: what a chunk of backward steps works on, as addresses."""

    _fields_ = _structure(
        ("units", "rule"),
        ("keep", "spread"),
        *("pre_m", "pre_v", "out_m", "carry_m", "carry_v", "grad_m", "grad_v", "next_m", "next_u"),
        *("last_m", "last_v", "flow_m", "flow_v", "end_m", "end_v", "dpre_m", "dpre_v"),
    ) + _addresses("norms", "level", "dnorms", "dlevel")


class Kernel:
    """The two functions of a cell for one floating-point type."""

    def __init__(self, library: ctypes.CDLL, cell: str, name: str) -> None:
        # forward(arguments, first row, rows, carried mean, carried variance); backward has the number of rows
        # with a next step behind the rows
        self.forward = library[f"forward_{cell}_{name}"]
        self.backward = library[f"backward_{cell}_{name}"]
        addresses = [ctypes.c_void_p] * 2
        self.forward.argtypes = [ctypes.POINTER(Forward), *[ctypes.c_int64] * 2, *addresses]
        self.backward.argtypes = [ctypes.POINTER(Backward), *[ctypes.c_int64] * 3, *addresses]
        self.forward.restype = self.backward.restype = None
        self.most_threads = library["most_threads"]
        self.most_threads.restype = ctypes.c_int64


@functools.cache
def load(cell: str, dtype: torch.dtype) -> Kernel | None:
    """The kernel of a cell for `dtype`, built if need be; None where there is no C compiler that can."""
    if dtype not in NAMES:
        return None
    library = compiler.library()
    return None if library is None else Kernel(library, cell, NAMES[dtype])


def serving(cell: Cell, rule: str, x: Tensor) -> Kernel | None:
    """The kernel for a cell, a rule and the type and device of `x`, if there is one."""
    if cell.kernel is None or rule not in RULES or x.device.type != "cpu":
        return None
    return load(cell.kernel, x.dtype)


def pointers(pair: tuple[Tensor, Tensor] | None) -> tuple[int, int]:
    """The addresses of a mean and a variance; none where nothing is carried."""
    return (0, 0) if pair is None else (pair[0].data_ptr(), pair[1].data_ptr())


def status() -> str:
    """Whether there is a kernel: `"built"`, or `"none: "` and the reason."""
    return compiler.status()


def has_what_serves(x: torch.Tensor) -> bool:
    """Whether the kernel is there, if it is one for tensors such as `x`; does not warn."""
    return x.device.type != "cpu" or x.dtype not in NAMES or compiler.status() == "built"
