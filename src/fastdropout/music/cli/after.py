"""What comes after training: `evaluate`, `report`, `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.music.cli import OK
from fastdropout.music.cli.chosen import Split, Which, chosen_network, read_corpus


def evaluate(
    run: Path | None = None,
    /,
    *,
    model: str | None = None,
    data: Path | None = None,
    split: Split = "test",
    which: Which = "best",
    score_first: bool | None = None,
    pieces: bool = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
) -> int:
    """Score a run's or a published network on a split: nats per frame, by piece, and calibration.

    Parameters
    ----------
    run
        the run folder
    model
        instead of a run, the name of a published model, such as jsb-chorales
    data
        folder of the canonical data sets [$FASTDROPOUT_DATA, or as the run has it]
    split
        the pieces to score, whole
    which
        the checkpoint
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
    from fastdropout.music.training.driver import evaluate_model

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


def report(run: Path, /, *, output: Annotated[Path | None, Parameter(alias="-o")] = None) -> int:
    """Write the report of a run, one page of HTML.

    Parameters
    ----------
    run
        the run folder
    output
        the page [report.html in the run folder]
    """
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.report import write_report

    console.print(f"report {write_report(run, output)}")
    return OK


def compare(run: Path, /, *more: Path, output: Annotated[Path | None, Parameter(alias="-o")] = None) -> int:
    """Set several runs side by side.

    Parameters
    ----------
    run
        a run folder
    more
        other run folders
    output
        also write a page of HTML
    """
    from rich.table import Table

    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.comparison import compare as compare_runs
    from fastdropout.music.study.comparison import comparison_html
    from fastdropout.music.training.run import Run

    folders = [Run(path) for path in (run, *more)]
    lines = compare_runs(folders)
    table = Table("", "run", "corpus", "valid", "test", "best epoch", "minutes")
    for number, line in enumerate(lines, 1):
        scores = ("diverged" if s is None else f"{s:.3f}" for s in (line.valid, line.test))
        epoch = f"{line.best_epoch}/{line.epochs}"
        table.add_row(str(number), line.name, line.corpus, *scores, epoch, f"{line.seconds / 60:.1f}")
    console.print(table)
    if lines[0].options:
        table = Table("option", *(str(number) for number in range(1, len(lines) + 1)))
        for name in lines[0].options:
            table.add_row(name, *("" if x.options[name] is None else str(x.options[name]) for x in lines))
        console.print(table)
    if len({line.corpus_sha256 for line in lines}) > 1:
        console.print("the runs are on different corpora: their figures do not compare")
    if output is not None:
        write_output(output, comparison_html(folders).encode())
        console.print(f"page {output}")
    return OK
