"""Published test figures to stand beside: nats per frame, whole pieces, averaged over frames."""

from __future__ import annotations

from typing import Any

SOURCE = 'Table 1 of "On Fast Dropout and its Applicability to Recurrent Networks" (Bayer et al., 2013)'

MODELS = ("FD-RNN (the paper)", "plain RNN", "RNN-NADE", "Deep RNN")

# The last two have more structure than one recurrent layer with independent notes.
TABLE_1: dict[str, tuple[float | None, ...]] = {
    "piano-midi": (7.39, 7.58, 7.05, None),
    "nottingham": (3.09, 3.43, 2.31, 2.95),
    "musedata": (6.75, 6.99, 5.60, 6.59),
    "jsb-chorales": (8.01, 8.58, 5.19, 7.92),
}


def figure_for(model: str, corpus: str) -> float | None:
    """What the paper has for the class of a model: Deep RNN, RNN-NADE, or else its fast dropout.

    >>> figure_for("nade-memory", "jsb-chorales"), figure_for("gru", "jsb-chorales")
    (5.19, 8.01)
    """
    name = {"deep": "Deep RNN", "nade": "RNN-NADE"}.get(model.split("-")[0], MODELS[0])
    return TABLE_1[corpus][MODELS.index(name)] if corpus in TABLE_1 else None


def class_of(config: Any) -> str:
    """The class of a configuration, a name for `figure_for`."""
    kind = "nade" if config.output == "nade" else "deep" if config.layers > 1 else "rnn"
    return f"{kind}-memory" if config.memory or config.similar else kind


def described(config: Any) -> str:
    """A network in a few words.

    >>> from fastdropout.music.training.config import Config
    >>> described(Config(cell="gru", layers=2, memory=True))
    '2 layers of GRU with independent notes, and a memory of the piece'
    """
    layers = "one layer" if config.layers == 1 else f"{config.layers} layers"
    cells = "" if config.cell == "tanh" else f" of {config.cell.upper()}"
    notes = {"nade": "notes that depend on those below them (NADE)", "gaussian": "real values"}
    kinds = [("a memory of the piece", config.memory), ("a memory of similar moments", config.similar)]
    memories = " and ".join(name for name, there in kinds if there)
    memory = f", and {memories}" if memories else ""
    return f"{layers}{cells} with {notes.get(config.output, 'independent notes')}{memory}"
