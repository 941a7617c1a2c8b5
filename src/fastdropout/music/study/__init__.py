"""Looking at runs: figures, sound, reports, comparisons.

>>> from fastdropout.music import study                                               # doctest: +SKIP
>>> study.write_report("runs/bach-2026-01-31-1")                                # doctest: +SKIP

Everything is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdropout.music.study.comparison import compare as compare
    from fastdropout.music.study.comparison import comparison_html as comparison_html
    from fastdropout.music.study.report import report_html as report_html
    from fastdropout.music.study.report import write_report as write_report

_NAMES = dict.fromkeys(("report_html", "write_report"), "report")
_NAMES |= dict.fromkeys(("compare", "comparison_html"), "comparison")
__all__ = ["compare", "comparison_html", "report_html", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
