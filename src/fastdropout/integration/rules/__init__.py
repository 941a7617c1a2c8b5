"""The rules, a file for each family. Importing this package fills the table."""

from fastdropout.integration.rules import (
    activation,
    arithmetic,
    attention,
    dropout,
    linear,
    lookup,
    losses,
    move,
    norm,
    pooling,
    query,
    recurrent,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "dropout",
    "linear",
    "lookup",
    "losses",
    "move",
    "norm",
    "pooling",
    "query",
    "recurrent",
]
