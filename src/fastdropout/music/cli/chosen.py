"""What several commands are about: the network of a run or a published one, and its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastdropout.errors import RunError

if TYPE_CHECKING:
    from fastdropout.music.data.rolls import Corpus
    from fastdropout.music.training.config import Config
    from fastdropout.music.training.network import Network

Split = Literal["train", "valid", "test"]
Which = Literal["best", "last"]


def chosen_network(
    run: Path | None, model: str | None, which: Which, data: Path | None
) -> tuple[Config, Network, dict[str, Any]]:
    """The network of a run or the published one, with what is published about it."""
    from fastdropout.music.training.options import make_config
    from fastdropout.music.training.published import load_model
    from fastdropout.music.training.run import Run

    if (run is None) == (model is None):
        raise RunError("give a run folder or --model NAME, one of them")
    about: dict[str, Any] = {}
    if model is not None:
        found = load_model(model)
        config, network, about = found.config, found.model, found.about
    else:
        folder = Run(run or "")
        config, network = folder.config, folder.model(which)
    if data is not None:
        config = make_config({**config.model_dump(exclude_none=True), "data": str(data)}, what="options")
    return config, network, about


def read_corpus(config: Config) -> Corpus:
    """The corpus of a configuration, under a progress bar."""
    from fastdropout.music.cli.screen import counting
    from fastdropout.music.training.state import load_corpus

    with counting(f"reading {config.corpus}") as count:
        return load_corpus(config, count)
