"""Trained networks that come with the package: weights, configuration and scores in one safetensors file.

The metadata hold one JSON text, `fastdropout`, and `sha256`, of that text and all tensors; nothing in such
a file can be executed. They lie in the package itself, so that an installed one has them too.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from fastdropout.errors import ConfigError, RunError, is_out_of_memory, one_line
from fastdropout.music.data.rolls import KEYS
from fastdropout.music.training.build import build_model
from fastdropout.music.training.checkpoint import (
    check_finite,
    checked_features,
    read_tensors,
    sha256,
    write_tensors,
)
from fastdropout.music.training.config import Config
from fastdropout.music.training.network import Network
from fastdropout.music.training.options import make_config

VERSION = 1
_ABOUT = {
    "command": str,
    "corpus_sha256": str,
    "epochs": int,
    "seconds": float,
    "test": float,
    "valid": float,
    "versions": dict,
}


@dataclass(frozen=True)
class Published:
    """A trained network and what is known about it."""

    name: str
    model: Network
    """In evaluation mode, with averaged weights if the training averaged."""
    config: Config
    about: dict[str, Any]
    """`valid` and `test` (nats per frame), `epochs`, `seconds`, `command`, `corpus_sha256`, `versions`."""


def models_folder() -> Path:
    """Where the published models are."""
    return Path(str(resources.files("fastdropout.music"))) / "models"


def published_models(folder: Path | None = None) -> list[str]:
    """The names of the published models."""
    return sorted(path.stem for path in (folder or models_folder()).glob("*.safetensors"))


def load_model(name: str | os.PathLike[str]) -> Published:
    """A published model by its name, or by the path of its file."""
    path = Path(name)
    if path.suffix != ".safetensors":
        known = published_models()
        if str(name) not in known:
            there = f"there are {', '.join(known)}" if known else "there is none yet"
            raise RunError(f"{str(name)!r} is no published model, {there}; a file ends in .safetensors")
        path = models_folder() / f"{name}.safetensors"
    tensors, metadata = read_tensors(path, "model")
    text = str(metadata.get("fastdropout"))
    try:
        content = json.loads(text)
        version, about = content["model_version"], content["about"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RunError(f"{path}: not a published model of fastdropout") from None
    if version != VERSION:
        raise RunError(f"{path}: has layout version {str(version)[:20]}, this program reads {VERSION}")
    if metadata.get("sha256") != sha256(text, tensors):
        raise RunError(f"{path}: damaged, its content does not have its sha256; get it again")
    try:
        config = make_config(content["config"], what=f"{path}: config")
        wrong = [key for key, kind in _ABOUT.items() if type(about[key]) is not kind]
        wrong += [key for key, kind in _ABOUT.items() if kind is float and not math.isfinite(about[key])]
        if wrong:
            raise ValueError(f"{wrong[0]} must be {_ABOUT[wrong[0]].__name__}")
        config = config.model_copy(update={"threads": 0})  # A matter of the machine it is used on.
        with torch.random.fork_rng(devices=[]):
            model = build_model(config, checked_features(content.get("features", KEYS)))
        for name, own in model.state_dict().items():
            if name in tensors and tensors[name].dtype != own.dtype:
                raise ValueError(f"{name} must be {own.dtype}, got {tensors[name].dtype}")
        model.load_state_dict(tensors)
    except (ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise RunError(f"{path}: not a published model of this version ({one_line(error, 200)})") from error
    check_finite(model, path)
    return Published(path.stem, model.requires_grad_(False).eval(), config, about)


def save_model(path: str | os.PathLike[str], model: Network, config: Config, about: dict[str, Any]) -> None:
    """Write a model; the folder of the data, which is the writer's own, is left out."""
    content = {
        "model_version": VERSION,
        "config": config.model_dump(exclude_none=True, exclude={"data", "threads"}),
        "about": {key: about[key] for key in _ABOUT},
        "features": model.features,
    }
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    write_tensors(path, tensors, json.dumps(content, sort_keys=True))
