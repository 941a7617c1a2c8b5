"""The list of torch functions that `integrate()` serves, from its table of rules."""

from __future__ import annotations

import sys

from fastdropout.integration import rules
from fastdropout.integration.registry import TABLE, Entry, Function, name_of

OPERATORS = {
    "__add__": "+", "__radd__": "+", "__sub__": "-", "__rsub__": "-", "__mul__": "*", "__rmul__": "*",
    "__truediv__": "/", "__rtruediv__": "/", "__rdiv__": "/", "__neg__": "-x", "__pow__": "**",
    "__rpow__": "**", "__matmul__": "@", "__rmatmul__": "@", "__getitem__": "x[...]",
    "__setitem__": "x[...] =", "__abs__": "abs",
}  # fmt: skip
TITLES = {
    "dropout": "Where noise begins",
    "linear": "Linear maps, convolutions, products",
    "activation": "Activations",
    "norm": "Softmax and normalisation",
    "pooling": "Pooling, maxima, products of elements",
    "attention": "Attention",
    "recurrent": "Recurrent layers and cells",
    "arithmetic": "Arithmetic",
    "lookup": "Embeddings, interpolation, distances",
    "move": "Functions that move elements",
    "losses": "Losses",
    "query": "Asked of the mean only",
}


def table() -> str:
    """A heading and a table for each family, in Markdown."""
    families: dict[str, dict[int, tuple[Entry, list[str]]]] = {name: {} for name in TITLES}
    for function, entry in TABLE.items():
        family = _family(entry)
        found = families[family].setdefault(id(entry.call), (entry, []))[1]
        short = _short(function)
        if short and short not in found:
            found.append(short)
    parts = []
    for name, rows in families.items():
        lines = [f"## {TITLES[name]}", "", "| functions | what the rule does | how |", "| --- | --- | --- |"]
        for entry, names in rows.values():
            if not names:
                continue
            listed = ", ".join(f"`{n}`" for n in sorted(names, key=str.lower))
            lines.append(f"| {listed} | {_says(entry)} | {'–' if entry.kind == 'plain' else entry.how} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _family(entry: Entry) -> str:
    module = entry.call.__module__.rsplit(".", 1)[-1]
    # Those by quadrature without a file of their own are activations.
    return module if module in rules.__all__ else "activation"


def _short(function: Function) -> str:
    """The name as one would type it, without its module; empty for what nobody types."""
    name = name_of(function).rsplit(".", 1)[-1]
    name = OPERATORS.get(name, name).removeprefix("special_")
    return "" if name.startswith("_") else name


def _says(entry: Entry) -> str:
    """The first line of the rule's docstring."""
    text = (entry.call.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
