"""A `State` as one safetensors file: written whole or not at all, and believed only if it all fits.

Tensors: `model.*`, `averaged.*`, `optimiser.last_step.*`, `optimiser.square.*`, `rng`, `carried.mean`,
`carried.var`. The metadata hold one JSON text, `fastdropout`, with the version of this layout, the
configuration, the counters and the corpus, and `sha256`, of that text and all tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fastdropout.errors import ConfigError, RunError, one_line
from fastdropout.files import open_file, write_atomic
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.data.rolls import KEYS
from fastdropout.music.training.options import make_config
from fastdropout.music.training.state import Counters, State, blank_state

VERSION = 1
MAX_BYTES = 4 << 30
MAX_FEATURES = 65_536
MAX_HEADER = 16 << 20
_SLOTS = ("last_step", "square")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds."""

    state: State
    corpus_sha256: str
    """Of the pieces it was trained on."""


def save_checkpoint(
    state: State,
    path: str | os.PathLike[str],
    corpus_sha256: str = "",
    *,
    keep: str | os.PathLike[str] | None = None,
) -> None:
    """Replace the file at `path` by this state; on any failure the old file stays. `keep` renames that."""
    tensors = _tensors(state)
    text = json.dumps(
        {
            "version": VERSION,
            "config": state.config.model_dump(exclude_none=True),
            "counters": asdict(state.counters),
            "corpus_sha256": corpus_sha256,
            "features": state.model.features,
        },
        sort_keys=True,
    )
    write_tensors(path, tensors, text, keep)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; whatever does not fit is a `RunError`."""
    path = Path(path)
    tensors, metadata = read_tensors(path, "checkpoint")
    text = str(metadata.get("fastdropout"))
    try:
        content = json.loads(text)
        version = content["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RunError(f"{path}: not a checkpoint of fastdropout") from None
    if version != VERSION:
        raise RunError(
            f"{path}: has layout version {str(version)[:20]}, this program reads {VERSION}; "
            "use the version of fastdropout that wrote it"
        )
    if metadata.get("sha256") != sha256(text, tensors):
        raise RunError(f"{path}: damaged, its content does not have its sha256")
    try:
        config = make_config(content["config"], what=f"{path}: config")
        counters = _counters(content["counters"])
        corpus = content["corpus_sha256"]
        if not isinstance(corpus, str):
            raise ValueError("corpus_sha256 must be text")
        features = checked_features(content.get("features", KEYS))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: not a checkpoint of this version ({_line(error)})") from error
    try:
        state = blank_state(config, features)
    except ConfigError as error:
        raise RunError(f"{path}: not a checkpoint of this version ({_line(error)})") from error
    state.counters = counters
    _fill(state, tensors, path)
    return Checkpoint(state, corpus)


def checked_features(features: Any) -> int:
    """The number of features in a file; those from before it was written down are of piano rolls."""
    if type(features) is not int or not 1 <= features <= MAX_FEATURES:
        raise ValueError(f"features must lie in 1..{MAX_FEATURES}, got {str(features)[:20]}")
    return features


def write_tensors(
    path: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    text: str,
    keep: str | os.PathLike[str] | None = None,
) -> None:
    """Tensors with a text about them, and the hash of both."""
    content = save_tensors(tensors, {"fastdropout": text, "sha256": sha256(text, tensors)})
    write_atomic(path, content, keep=keep)


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a safetensors file that is to be a `what`."""
    try:
        with open_file(path, MAX_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            header = int.from_bytes(file.read(8), "little")
            # A file of zeros, which takes no room on a disk, shall take none in memory.
            if not 2 <= header <= min(size - 8, MAX_HEADER):
                raise RunError(f"{path}: not a readable safetensors file (its header does not fit)")
            file.seek(0)
            data = file.read(size)
    except FileNotFoundError:
        raise RunError(f"{path}: no such {what}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        tensors = load_tensors(data)
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise RunError(f"{path}: not a readable safetensors file ({_line(error)})") from error
    return tensors, metadata if isinstance(metadata, dict) else {}


def check_finite(model: nn.Module, where: str | os.PathLike[str]) -> None:
    """Refuse a network with weights that are no numbers."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise RunError(f"{where}: {name} holds infinite weights or NaN, so the network predicts nothing")


def _tensors(state: State) -> dict[str, Tensor]:
    out = {f"model.{name}": value for name, value in state.model.state_dict().items()}
    if state.averaged is not None:
        out |= {f"averaged.{name}": value for name, value in state.averaged.state_dict().items()}
    for name, parameter in state.model.named_parameters():
        slots = state.optimiser.state.get(parameter, {})
        out |= {f"optimiser.{slot}.{name}": slots[slot] for slot in _SLOTS if slot in slots}
    out["rng"] = state.rng
    if state.carried is not None:
        out["carried.mean"] = state.carried.mean
        if not state.carried.is_certain:
            out["carried.var"] = state.carried.var
    return {name: value.detach().contiguous() for name, value in out.items()}


def _fill(state: State, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put the tensors into a blank state of their configuration, if they are exactly those it has."""
    expected = dict(_tensors(state))
    if state.counters.updates:
        for name, parameter in state.model.named_parameters():
            expected |= {f"optimiser.{slot}.{name}": parameter for slot in _SLOTS}
    carried = {name: value for name, value in tensors.items() if name.startswith("carried.")}
    missing, extra = expected.keys() - tensors.keys(), tensors.keys() - carried.keys() - expected.keys()
    if missing or extra:
        what = f"lacks {min(missing)}" if missing else f"has {min(extra)[:80]}, which does not belong there"
        raise RunError(f"{path}: not a checkpoint of its configuration, it {what}")
    for name, value in expected.items():
        got = tensors[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise RunError(
                f"{path}: {name} must be {value.dtype} {list(value.shape)}, got {got.dtype} {list(got.shape)}"
            )
    try:
        torch.Generator().set_state(tensors["rng"])
    except RuntimeError as error:
        raise RunError(f"{path}: its random state is none of this torch ({_line(error)})") from error
    _copy(state, tensors)
    state.carried = _carried(state, carried, path)


@torch.no_grad()
def _copy(state: State, tensors: Mapping[str, Tensor]) -> None:
    for name, value in state.model.state_dict().items():
        value.copy_(tensors[f"model.{name}"])
    if state.counters.updates:
        for name, parameter in state.model.named_parameters():
            state.optimiser.state[parameter] = {
                slot: tensors[f"optimiser.{slot}.{name}"].clone() for slot in _SLOTS
            }
    if state.averaged is not None:
        for name, value in state.averaged.state_dict().items():
            value.copy_(tensors[f"averaged.{name}"])
    state.rng = tensors["rng"].clone()


def _carried(state: State, tensors: Mapping[str, Tensor], path: Path) -> Moments | None:
    if not tensors:
        return None
    mean, var = tensors.get("carried.mean"), tensors.get("carried.var")
    fits = mean is not None and len(tensors) == (1 if var is None else 2) and state.config.carry
    if fits and mean is not None:
        fits = mean.ndim == 3 and mean.shape[::2] == state.model.state_shape
        fits = fits and mean.dtype == torch.float32
        fits = fits and (var is None or (var.shape == mean.shape and var.dtype == mean.dtype))
    if not fits or mean is None:
        raise RunError(f"{path}: not a checkpoint of its configuration, its carried state does not fit")
    return unchecked_moments(mean.clone(), None if var is None else var.clone())


def _counters(content: Any) -> Counters:
    """Counters of the right types and ranges."""
    known = asdict(Counters())
    if not isinstance(content, dict) or content.keys() != known.keys():
        raise ValueError("the counters must be " + ", ".join(known))
    for name, value in content.items():
        if name == "best" and value is None:
            continue
        kind = type(known[name]) if known[name] is not None else float
        if type(value) is not kind or (kind is not bool and not 0 <= value < math.inf):
            raise ValueError(f"the counter {name} must be a {kind.__name__} of at least 0, got {value!r}")
    return Counters(**content)


def sha256(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of a text and tensors, in the order of their names."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode("utf-8", "surrogatepass"))
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _line(error: BaseException) -> str:
    return one_line(error, 200)
