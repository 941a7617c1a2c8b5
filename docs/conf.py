"""The site: `python -m sphinx -W -b html docs build/site`. Nothing is fetched from elsewhere."""

import os
import re
import sys
from importlib import import_module
from inspect import isclass, isfunction, ismodule, isroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("MPLBACKEND", "agg")

import fastdropout  # noqa: E402

project = "fastdropout"
author = "The fastdropout developers"
copyright = author
release = version = fastdropout.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py", "gallery/*.zip"]
nitpicky = False  # signatures name private types of torch

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

# Docstrings are plain text that reads in a terminal: `name` is code, and formulas stand as they are.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_preserve_defaults = True
autosummary_generate = False  # the pages are written below, from `__all__`
napoleon_google_docstring = True
napoleon_numpy_docstring = False

sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__\.py",
    "plot_gallery": os.environ.get("FASTDROPOUT_GALLERY") != "0",  # 0: show the examples, do not run them
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 0,
    "write_computation_times": False,
    "image_scrapers": ("matplotlib",),
    "remove_config_comments": True,
    "within_subsection_order": "ExampleTitleSortKey",
}

html_theme = "furo"
html_title = "fastdropout"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

ROOMS = (
    "fastdropout",
    "fastdropout.nn",
    "fastdropout.nn.init",
    "fastdropout.functional",
    "fastdropout.functional.losses",
    "fastdropout.functional.quadrature",
    "fastdropout.integration",
    "fastdropout.recurrent",
    "fastdropout.optim",
    "fastdropout.analysis",
    "fastdropout.sklearn",
)


def public(room: str) -> list[str]:
    """The public names of a module, without the modules among them, which have pages of their own."""
    module = import_module(room)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isfunction(value) and value.__module__ == room
    ]
    return sorted((name for name in names if not ismodule(getattr(module, name))), key=str.lower)


def reference_page(room: str) -> str:
    """A page in reStructuredText: the docstring of the module, a list of its names, then each of them."""
    lines = [room, "=" * len(room), "", f".. automodule:: {room}", "   :no-members:", ""]
    lines += [f".. currentmodule:: {room}", ""]
    names = public(room)
    if names:
        described = [name for name in names if _kind(getattr(import_module(room), name)) != "data"]
        lines += [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in described), ""]
    for name in names:
        value = getattr(import_module(room), name)
        lines += [f"``{name}``", "-" * (len(name) + 4), ""]
        if _kind(value) == "data":  # autodoc would describe its type
            lines += [f".. py:data:: {name}", f"   :value: {value!r}", ""]
        else:
            lines += [f".. auto{_kind(value)}:: {name}", ""]
    return "\n".join(lines)


def _kind(value: object) -> str:
    return "class" if isclass(value) else "function" if isroutine(value) else "data"


def write_reference(app: object) -> None:
    """Write `docs/api`, touching only what has changed, so that a second build is quick."""
    folder = Path(__file__).parent / "api"
    folder.mkdir(exist_ok=True)
    for room in ROOMS:
        path, text = folder / f"{room}.rst", reference_page(room)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Note|Example)s?:$")
KEPT = re.compile(
    r"(`[^`]*`|(?<![\w*])\*\*?\w[^*|]*\w\*\*?(?![\w*]))"
)  # code, and what is meant to be stressed


def plain_text(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: indented formulas stay as they are, `|x|` is text."""
    out: list[str] = []
    section = formula = doctest = False
    for line in lines:
        indented = line.startswith("    ")
        if line.strip() and not indented:
            section, formula = bool(SECTION.match(line)), False
        doctest = line.lstrip().startswith((">>>", "...")) or (doctest and bool(line.strip()))
        if indented and not (section or formula) and not (out and out[-1].strip()):
            out += ["::", ""]
            formula = True
        if not (formula or doctest):
            parts = KEPT.split(line)
            line = "".join(t if i % 2 else re.sub(r"([*|])", r"\\\1", t) for i, t in enumerate(parts))
        if section and re.match(r" {4}\S", line) and out and re.match(r" {4}\S[^:]*,$", out[-1]):
            out[-1] += " " + line.strip()  # a list of arguments that goes on
        else:
            out.append(line)
    lines[:] = out


def skip(app: object, what: str, name: str, obj: object, skipped: bool, options: object) -> bool | None:
    """Leave out what scikit-learn adds to every estimator for its metadata routing."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def setup(app: Any) -> None:
    """Sphinx calls this first."""
    app.connect("builder-inited", write_reference, priority=1)
    app.connect("autodoc-process-docstring", plain_text, priority=1)  # before napoleon
    app.connect("autodoc-skip-member", skip)
