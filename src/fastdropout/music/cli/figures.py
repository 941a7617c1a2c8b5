"""`figures`: the paper's analysis in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.music.cli import OK


def figures(
    *names: str,
    output: Annotated[Path, Parameter(alias="-o")] = Path("figures"),
    quick: bool = False,
) -> int:
    """Measure and draw the figures of the paper's analysis.

    Each is drawn from numbers that are saved beside it, as SVG and PNG, for light and dark pages; captions.md
    says what is seen. Takes some minutes: small networks are trained.

    Parameters
    ----------
    names
        fields, spectral-radius, weight-decay, attractor, weight-noise, truth, truth-over-time [all]
    output
        the folder to write to
    quick
        small and rough figures in seconds, to see whether everything works
    """
    from fastdropout.music.cli.screen import console, share
    from fastdropout.music.study.gallery import make_all

    with share() as tell:
        written = make_all(output, tell, quick, names or None)
    console.print("\n".join(str(path) for path in written if path.suffix in (".png", ".md")))
    return OK
