"""The options of a configuration as flags: made from `Config`, so that there is one list of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from cyclopts import Parameter

from fastdropout.music.training.config import Config
from fastdropout.music.training.options import from_text

# The first option of each group, in the order of `Config`.
_GROUPS = {
    "data": "Data",
    "hidden": "Network",
    "output": "Output layer",
    "init_var": "Initial weights",
    "loss": "Training",
}


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command that takes `**options` a flag for each option of `Config`.

    Other flags still reach it: `make_config` names them together with all other faults.
    """
    signature = inspect.signature(command, eval_str=True)
    *named, rest = signature.parameters.values()
    parameters = [*named, *(_flag(name, group) for name, group in _grouped()), rest]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return command


def given_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as numbers where they are."""
    options = {name.replace("-", "_"): value for name, value in flags.items() if value is not None}
    return {n: from_text(n, value) if isinstance(value, str) else value for n, value in options.items()}


def _grouped() -> list[tuple[str, str]]:
    group, names = "", []
    for name in Config.model_fields:
        group = _GROUPS.get(name, group)
        if name != "corpus":  # An argument without a flag.
            names.append((name, group))
    return names


def _flag(name: str, group: str) -> inspect.Parameter:
    option = Config.model_fields[name]
    # All but switches come as text: validation then finds all faults at once, not the first.
    taken: Any = bool if option.annotation is bool else str
    kinds = (option.annotation, *get_args(option.annotation))
    choices = [choice for kind in kinds for choice in get_args(kind) if isinstance(choice, str)]
    said = f" ({' | '.join(choices)})" if choices and name != "output_bias" else ""
    default = "" if option.default is None else f" [{_plain(option.default)}]"
    parameter = Parameter(help=f"{option.description}{said}{default}", group=group, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[taken | None, parameter]
    )


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
