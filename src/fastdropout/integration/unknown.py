"""A function that nobody knows: mean by the plain function, trace by autograd, no diagonal variance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdropout.integration.context import note_once
from fastdropout.integration.registry import name_of
from fastdropout.integration.values import means, wrapped
from fastdropout.integration.where import module_path
from fastdropout.moments import Moments
from fastdropout.serving import Refusal


def without_rule(func: Callable[..., Any], args: Any, kwargs: Any, found: list[Moments]) -> Any:
    """The result, with a refusal in the place of its variance; nothing random stays certain."""
    name = name_of(func)
    if name.endswith("_") and not name.endswith("__"):
        raise TypeError(
            f"{name} would change Moments in place: use the function without the trailing underscore, "
            f"x = x.{name.rsplit('.')[-1].rstrip('_')}(...)"
        )
    path = module_path()
    place = f" in {path}" if path else ""
    out = func(*means(args), **means(kwargs))
    if all(x.is_certain for x in found):
        return wrapped(out, None)
    note_once(
        name,
        "no moment rule for %s%s: its mean is taken from the plain function, the traced variance from "
        "its gradient, and there is no diagonal variance after it. fastdropout.register adds a rule.",
        name,
        place,
    )
    why = (
        f"there is no diagonal variance: {name}{place} has no moment rule. Add one by "
        f"fastdropout.register({name}, rule), or take the traced variance, noise.var(y)"
    )
    return wrapped(out, Refusal(why))
