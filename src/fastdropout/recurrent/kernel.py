"""The functions of kernel.c, called with addresses; without a compiler it is only slower."""

from __future__ import annotations

import ctypes
import functools

import torch

from fastdropout.recurrent import compiler

RULES = {"fast": 0, "paper": 1}
NAMES = {torch.float32: "float32", torch.float64: "float64"}


class Forward(ctypes.Structure):
    """Of kernel.c: what a chunk of forward steps works on, as addresses."""

    _fields_ = (
        ("units", ctypes.c_int64),
        ("rule", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("pre_m", "pre_v", "rec_m", "rec_v", "bias")],
        *[(name, ctypes.c_void_p) for name in ("out_m", "out_v", "out_u")],
        ("noise", ctypes.c_double),
        ("drop", ctypes.c_double),
    )


class Backward(ctypes.Structure):
    """Of kernel.c: what a chunk of backward steps works on, as addresses."""

    _fields_ = (
        ("units", ctypes.c_int64),
        ("rule", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("pre_m", "pre_v", "out_m", "grad_m", "grad_v")],
        *[(name, ctypes.c_void_p) for name in ("next_m", "next_u", "last_m", "last_v", "dpre_m", "dpre_v")],
        ("drop", ctypes.c_double),
    )


class Kernel:
    """The two functions of kernel.c for one floating-point type."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        # forward(arguments, first row, rows), backward(arguments, first row, rows, rows with a next step)
        self.forward = library[f"forward_{name}"]
        self.backward = library[f"backward_{name}"]
        self.forward.argtypes = [ctypes.POINTER(Forward), *[ctypes.c_int64] * 2]
        self.backward.argtypes = [ctypes.POINTER(Backward), *[ctypes.c_int64] * 3]
        self.forward.restype = self.backward.restype = None


@functools.cache
def load(dtype: torch.dtype) -> Kernel | None:
    """The kernel for `dtype`, built if need be; None where there is no C compiler that can."""
    if dtype not in NAMES:
        return None
    library = compiler.library()
    return None if library is None else Kernel(library, NAMES[dtype])


def status() -> str:
    """Whether there is a kernel: `"built"`, or `"none: "` and the reason."""
    return compiler.status()


def has_what_serves(x: torch.Tensor) -> bool:
    """Whether the kernel is there, if it is one for tensors such as `x`; does not warn."""
    return x.device.type != "cpu" or x.dtype not in NAMES or compiler.status() == "built"
