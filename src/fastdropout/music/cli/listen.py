"""`listen`: a page that plays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.errors import RunError, one_line, visible
from fastdropout.music.cli import OK
from fastdropout.music.cli.chosen import (
    DataFolder,
    ModelName,
    RunFolder,
    Seed,
    Tempo,
    Which,
    check_tempo,
    chosen_network,
    read_corpus,
)


def listen(
    run: RunFolder = None,
    /,
    *,
    model: ModelName = None,
    data: DataFolder = None,
    output: Annotated[Path, Parameter(alias="-o")] = Path("listen.html"),
    frames: int = 64,
    piece: int = 1,
    temperature: float | None = None,
    seed: Seed = 0,
    tempo: Tempo = 80.0,
    which: Which = "best",
) -> int:
    """Write a page that plays what a run's or a published network makes, and a test piece as it predicts it.

    Without its data set, a published model plays what it makes only.

    Parameters
    ----------
    output
        the page
    frames
        length of each piece
    piece
        the test piece, counted from 1
    temperature
        as of generate [0.6; 1 with a NADE]
    """
    from fastdropout.errors import DataError
    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.listen import frame_seconds, listen_html
    from fastdropout.music.training.generation import is_music

    config, network, _ = chosen_network(run, model, which, data)
    if not is_music(network, config.corpus):
        raise RunError(f"{config.corpus} is not music: listen is for piano rolls, use fastdropout generate")
    check_tempo(tempo)
    name = model or visible(os.path.basename(os.path.realpath(run or "")))
    test, missing = None, ""
    try:
        corpus = read_corpus(config)
    except DataError as error:
        missing = one_line(error)
    else:
        if not 1 <= piece <= len(corpus.test):
            raise RunError(f"piece must lie in 1..{len(corpus.test)}, the test pieces, got {piece}")
        names = corpus.names.get("test")
        title = f"Test piece {piece}" + (f": {names[piece - 1]}" if names else "")
        test = (title, corpus.test[piece - 1])
    try:
        page = listen_html(
            name,
            network,
            config,
            test=test,
            missing=missing,
            frames=frames,
            seconds=frame_seconds(config, tempo),
            temperature=temperature,
            seed=seed,
        )
    except ValueError as error:
        raise RunError(str(error)) from error
    write_output(output, page.encode())
    console.print(f"open in a browser: {output}")
    return OK
