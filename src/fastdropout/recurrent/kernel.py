"""Builds kernel.c at its first use and calls it; without a compiler there is none, which is only slower."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernel.c")
# Not -ffast-math: linked into a library it would change the rounding of the whole process.
FLAGS = (
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-std=c11",
)
# What not every compiler or processor has: tried together, then fewer.
WELCOME = ("-fopenmp", "-mprefer-vector-width=512")
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
    library = _library()
    return None if library is None or dtype not in NAMES else Kernel(library, NAMES[dtype])


@functools.cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("FASTDROPOUT_KERNEL", "1") == "0":
        log.debug("no kernel: FASTDROPOUT_KERNEL=0")
        return None
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "cc", "gcc", "clang"))), None)
    if compiler is None:
        log.debug("no kernel: no C compiler on PATH")
        return None
    try:
        path = _cache() / f"kernel-{_fingerprint(compiler)}.so"
        if not path.exists():
            _build(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("no kernel: %s", error)
        return None


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastdropout"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(root, os.W_OK):
            return root
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="fastdropout-"))


def _fingerprint(compiler: str) -> str:
    """Of all that the machine code depends on: a cache in a shared home serves different processors."""
    parts = [SOURCE.read_text(), compiler, *FLAGS, *WELCOME, platform.machine(), platform.system()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        parts += next(([line] for line in lines if line.startswith(("flags", "Features"))), [])
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: str, path: Path) -> None:
    """Compile beside and rename, so that two processes that start together cannot spoil each other's."""
    handle, beside = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        for count in reversed(range(len(WELCOME) + 1)):
            command = [compiler, *FLAGS, *WELCOME[:count], str(SOURCE), "-o", beside, "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            if done.returncode == 0:
                break
        else:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[:500]}")
        os.replace(beside, path)
        log.debug("built %s with %s", path, compiler)
    finally:
        Path(beside).unlink(missing_ok=True)
