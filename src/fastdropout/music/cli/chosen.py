"""What several commands are about: the network of a run or a published one, and its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fastdropout.errors import RunError

if TYPE_CHECKING:
    from fastdropout.music.data.rolls import Corpus
    from fastdropout.music.training.config import Config
    from fastdropout.music.training.network import Network

Split = Literal["train", "valid", "test"]
Which = Annotated[Literal["best", "last"], Parameter(help="the checkpoint")]
RunFolder = Annotated[Path | None, Parameter(help="the run folder")]
ModelName = Annotated[
    str | None, Parameter(help="instead of a run, the name of a published model, such as jsb-chorales")
]
DataFolder = Annotated[
    Path | None,
    Parameter(help="folder of the canonical data sets [$FASTDROPOUT_DATA, or as in the run]"),
]
Seed = Annotated[int, Parameter(help="of the draws")]
Tempo = Annotated[float, Parameter(help="quarter notes per minute")]


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


def check_tempo(tempo: float) -> None:
    """Raise RunError for a tempo that no player has."""
    if not 1 <= tempo <= 1000:
        raise RunError(f"tempo must lie in 1..1000 quarters a minute, got {tempo:g}")
