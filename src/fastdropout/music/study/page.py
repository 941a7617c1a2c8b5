"""Pages of HTML that need nothing but themselves."""

from __future__ import annotations

import datetime
from importlib import resources
from typing import Any

import jinja2

from fastdropout.errors import visible


def page(template: str, **values: Any) -> str:
    """A template of `study/templates`, filled."""
    folder = resources.files("fastdropout.music.study") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text("utf-8"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # All but pictures, which hold only what we draw.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(made=now, **values)
