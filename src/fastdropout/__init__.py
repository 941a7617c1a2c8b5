"""Deterministic dropout for PyTorch: the noise is integrated out.

>>> import torch, fastdropout as fd
>>> rnn = fd.nn.RNN(88, 400, drop_input=0.1, drop_hidden=0.2)
>>> out = fd.nn.Linear(400, 88, drop=0.5)
>>> hidden, last = rnn(torch.rand(100, 16, 88))
>>> nll = fd.losses.bernoulli_nll(out(hidden), torch.ones(100, 16, 88))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdropout import analysis, functional, music, nn, optim, recurrent
    from fastdropout.functional import losses
    from fastdropout.integration import check, integrate, register
    from fastdropout.moments import Moments
    from fastdropout.recurrent.buffers import release_memory

__version__ = "0.1.0"
__all__ = [
    "Moments",
    "analysis",
    "check",
    "functional",
    "integrate",
    "losses",
    "music",
    "nn",
    "optim",
    "recurrent",
    "register",
    "release_memory",
]

_HOMES = {
    "Moments": "fastdropout.moments",
    "check": "fastdropout.integration",
    "integrate": "fastdropout.integration",
    "losses": "fastdropout.functional",
    "register": "fastdropout.integration",
    "release_memory": "fastdropout.recurrent.buffers",
}


def __getattr__(name: str) -> Any:
    """Import a room when it is first used: torch takes two seconds, and `fastdropout --help` needs none."""
    if name not in __all__:
        raise AttributeError(f"module 'fastdropout' has no attribute {name!r}")
    home = _HOMES.get(name)
    value = getattr(import_module(home), name) if home else import_module(f"fastdropout.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
