"""Training: configuration, fitting, evaluation, run folders with checkpoints, and playing from them.

>>> from fastdropout.music import training                                            # doctest: +SKIP
>>> run = training.train(training.make_config({"hidden": 300}))                 # doctest: +SKIP
>>> training.evaluate_run(run, "test").nll_per_step                             # doctest: +SKIP

Everything is loaded when it is first asked for: the command line reads the options without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastdropout.renaming import renamed

if TYPE_CHECKING:
    from fastdropout.music.training.checkpoint import Checkpoint as Checkpoint
    from fastdropout.music.training.checkpoint import load_checkpoint as load_checkpoint
    from fastdropout.music.training.checkpoint import save_checkpoint as save_checkpoint
    from fastdropout.music.training.config import Config as Config
    from fastdropout.music.training.evaluation import Calibration as Calibration
    from fastdropout.music.training.evaluation import Evaluation as Evaluation
    from fastdropout.music.training.evaluation import evaluate as evaluate
    from fastdropout.music.training.fitting import Progress as Progress
    from fastdropout.music.training.fitting import Record as Record
    from fastdropout.music.training.fitting import fit as fit
    from fastdropout.music.training.generation import generate as generate
    from fastdropout.music.training.network import Ensemble as Ensemble
    from fastdropout.music.training.network import Network as Network
    from fastdropout.music.training.network import NoteRNN as NoteRNN
    from fastdropout.music.training.options import make_config as make_config
    from fastdropout.music.training.options import read_config as read_config
    from fastdropout.music.training.options import to_toml as to_toml
    from fastdropout.music.training.published import Published as Published
    from fastdropout.music.training.published import load_model as load_model
    from fastdropout.music.training.published import published_models as published_models
    from fastdropout.music.training.run import Run as Run
    from fastdropout.music.training.runner import evaluate_model as evaluate_model
    from fastdropout.music.training.runner import evaluate_run as evaluate_run
    from fastdropout.music.training.runner import resume as resume
    from fastdropout.music.training.runner import train as train
    from fastdropout.music.training.state import Data as Data
    from fastdropout.music.training.state import State as State
    from fastdropout.music.training.state import load_corpus as load_corpus
    from fastdropout.music.training.state import new_state as new_state
    from fastdropout.music.training.state import prepare as prepare

_HOMES = {
    "checkpoint": ("Checkpoint", "load_checkpoint", "save_checkpoint"),
    "config": ("Config",),
    "evaluation": ("Calibration", "Evaluation", "evaluate"),
    "fitting": ("Progress", "Record", "fit"),
    "generation": ("generate",),
    "network": ("Ensemble", "Network", "NoteRNN"),
    "options": ("make_config", "read_config", "to_toml"),
    "published": ("Published", "load_model", "published_models"),
    "run": ("Run",),
    "state": ("Data", "State", "load_corpus", "new_state", "prepare"),
    "runner": ("evaluate_model", "evaluate_run", "resume", "train"),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_NAMES)


_old = renamed(__name__, {"Committee": "Ensemble"})


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        return _old(name)
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
