"""`evaluate`: the scores of a network on a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.music.cli import OK
from fastdropout.music.cli.chosen import (
    DataFolder,
    ModelName,
    RunFolder,
    Split,
    Which,
    chosen_network,
    read_corpus,
)


def evaluate(
    run: RunFolder = None,
    /,
    *,
    model: ModelName = None,
    data: DataFolder = None,
    split: Split = "test",
    which: Which = "best",
    score_first: bool | None = None,
    pieces: bool = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
) -> int:
    """Score a run's or a published network on a split: nats per frame, by piece, and calibration.

    Parameters
    ----------
    split
        the pieces to score, whole
    score_first
        score the first frame of a piece too [as the run does]
    pieces
        also print a line for each piece
    output
        write everything, each frame too, to this JSON file
    """
    from rich.table import Table

    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.training.runner import evaluate_model

    config, network, about = chosen_network(run, model, which, data)
    corpus = read_corpus(config)
    scored = evaluate_model(network, config, split, score_first=score_first, corpus=corpus)
    names = list(corpus.names.get(split, ())) or [f"piece {n + 1}" for n in range(len(scored.by_piece))]
    if output is not None:
        content = {"split": split, "names": names, **scored.to_json()}
        content["by_frame"] = [[round(float(nll), 5) for nll in frames] for frames in scored.by_frame]
        write_output(output, (json.dumps(content) + "\n").encode())
    console.print(
        f"{split} NLL {scored.nll_per_step:.3f} nats per frame, {len(scored.by_piece)} pieces, "
        f"{scored.frames} frames, calibration error {scored.calibration.error:.4f}"
    )
    if split in about:
        console.print(f"its card says {about[split]:.3f}")
    if pieces:
        table = Table("piece", "frames", "nats per frame")
        for name, count, nll in zip(names, scored.piece_frames, scored.by_piece, strict=True):
            table.add_row(name, str(count), f"{nll:.3f}")
        console.print(table)
    words = (
        ("quantile", "values", "level", "below it")
        if network.output.real
        else ("predicted", "notes", "mean probability", "sounded")
    )
    table = Table(*words, title="calibration")
    bins = scored.calibration
    for n, count in enumerate(bins.count):
        if count:
            span = f"{bins.edges[n]:.2f} to {bins.edges[n + 1]:.2f}"
            table.add_row(span, str(count), f"{bins.mean_probability[n]:.3f}", f"{bins.frequency[n]:.3f}")
    console.print(table)
    return OK
