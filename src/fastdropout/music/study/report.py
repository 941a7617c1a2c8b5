"""One self-contained page about a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastdropout.errors import DataError, RunError
from fastdropout.files import write_atomic, write_output
from fastdropout.music.data.baselines import frequencies_nll
from fastdropout.music.data.canonical import CANONICAL
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.study import figures, listen
from fastdropout.music.study.listen import Track, frame_seconds
from fastdropout.music.study.page import page
from fastdropout.music.study.paper import MODELS, SOURCE, TABLE_1, described
from fastdropout.music.training.config import Config
from fastdropout.music.training.evaluation import Calibration, expected_frames
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.generation import is_music
from fastdropout.music.training.records import CalibrationTable, Scores
from fastdropout.music.training.run import Run
from fastdropout.music.training.state import load_corpus

EXCERPT = 64
"""Frames of the test piece that is shown, and of the piece that the network makes."""
MAX_BESIDE = 200
"""Folders beside a run that are looked into."""
NETWORK = (
    *("hidden", "layers", "cell", "members", "skip", "memory", "similar", "output", "nade_hidden"),
    "score_first",
)
"""Options in which a network and its twin without noise agree."""
MAX_SECONDS, TEMPO = 24.0, 100.0
"""Of each piece that is played, which makes a megabyte of the page; quarters a minute."""


def write_report(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    corpus: Corpus | None = None,
) -> Path:
    """Write the report of a run that has a best checkpoint, by default as its report.html."""
    run = run if isinstance(run, Run) else Run(run)
    html = report_html(run, corpus=corpus).encode()
    if out is not None:
        write_output(out, html)
        return Path(out)
    write_atomic(run.path / "report.html", html)
    return run.path / "report.html"


def report_html(run: Run, *, corpus: Corpus | None = None) -> str:
    """The report of a run as a page of HTML."""
    config, result, metrics = run.config, run.result, run.metrics
    if result.test is None:
        raise RunError(f"{run.path}: diverged before it had a network to report on; train with a lower lr")
    test = result.test
    shown = _excerpt(run, corpus)
    piece = shown.corpus
    name = run.about.corpus.name or config.corpus
    return page(
        "report.html",
        title=f"{name}: {test.nll_per_step:.3f} nats per frame",
        run=run,
        corpus=name,
        config=list(config),
        result=result,
        about=run.about,
        plain=not _is_noisy(config),
        kind=described(config),
        features="all" if piece is None else piece.features,
        real=config.output == "gaussian",
        curves=figures.to_svg(figures.learning_curves(metrics, result.best_epoch), "curves"),
        radii=figures.to_svg(figures.radii(metrics), "radii"),
        regulariser=_regulariser(metrics),
        no_regulariser=_no_regulariser(config),
        calibration=figures.to_svg(
            figures.calibration(_table(test.calibration), config.output == "gaussian"), "calibration"
        ),
        shown=shown,
        published=_published(name, run),
        baseline=None if piece is None else _baseline(piece, config),
        twin=_twin(run),
        source=SOURCE,
        hardest=_hardest(test, piece),
    )


@dataclass(frozen=True)
class _Excerpt:
    """What a report shows and plays of a test piece, as far as there is something."""

    note: str
    corpus: Corpus | None = None
    roll: str = ""
    made: Track | None = None
    tracks: Sequence[Track] = ()


def _excerpt(run: Run, corpus: Corpus | None) -> _Excerpt:
    """The beginning of a test piece, and a piece that the network makes."""
    config, expected = run.config, run.about.corpus.sha256
    try:
        model = run.model("best")
    except RunError as error:
        return _Excerpt(f"The network cannot be read, so no piece is shown: {error}", corpus)
    seconds = frame_seconds(config, TEMPO)
    frames = min(EXCERPT, int(MAX_SECONDS / seconds))
    made = listen.made(model, frames, seconds) if is_music(model, config.corpus) else None
    try:
        corpus = load_corpus(config) if corpus is None else corpus
    except DataError as error:
        return _Excerpt(f"The corpus cannot be read here, so no piece is shown: {error}", made=made)
    if expected not in ("", corpus.sha256):
        return _Excerpt("The corpus has changed since the training, so no piece is shown.", made=made)
    piece = corpus.test[0][: (frames if made else EXCERPT) + 1]
    if len(piece) < 2:
        return _Excerpt("The first test piece has one frame only, so it is not shown.", corpus, made=made)
    p = expected_frames(model, piece)
    std = None if p.is_certain else p.std.numpy()
    if corpus.series:
        figure = figures.sequence(piece[1:], 0, p.mean.numpy(), std)
    else:
        figure = figures.predictions(piece[1:], p.mean.numpy(), std)
    names = corpus.names.get("test")
    which = f"the test piece {names[0]}" if names else "the first test piece"
    note = f"The beginning of {which}: each frame is predicted from those before it"
    note += ", each note also from those below it in its frame." if model.output.sequential else "."
    if std is None:
        note += " Nothing is dropped in this network, so its probabilities have no uncertainty."
    tracks = listen.predicted(piece, p.mean.numpy(), seconds) if made else ()
    return _Excerpt(note, corpus, figures.to_svg(figure, "roll"), made, tracks)


def _baseline(corpus: Corpus, config: Config) -> float:
    """What note frequencies, or a Gaussian for each feature, score where the network was scored."""
    return frequencies_nll(corpus.train, corpus.test, score_first=config.score_first)


def _twin(run: Run) -> Run | None:
    """The same network without noise, of the runs in the same folder the one with the lowest valid."""
    if not _is_noisy(run.config):
        return None
    found = []
    try:
        beside = sorted(path for path in run.path.resolve().parent.iterdir() if path != run.path.resolve())
    except OSError:
        return None
    for path in beside[:MAX_BESIDE]:
        try:
            other = Run(path)
            same = all(getattr(other.config, name) == getattr(run.config, name) for name in NETWORK)
            same = same and other.about.corpus.sha256 == run.about.corpus.sha256 != ""
            if same and not _is_noisy(other.config) and other.result.valid is not None:
                found.append((other.result.valid.nll_per_step, other))
        except RunError:  # Not a run, or not a finished one.
            continue
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _published(name: str, run: Run) -> list[tuple[str, float]]:
    """The paper's figures for the run's corpus, if it is really that one."""
    whole = not run.config.pieces and not run.config.score_first
    same = name in CANONICAL and run.about.corpus.sha256 == CANONICAL[name].content_sha256
    if not (whole and same):
        return []
    pairs = zip(MODELS, TABLE_1[name], strict=True)
    return [(model, value) for model, value in pairs if value is not None]


def _hardest(test: Scores, corpus: Corpus | None) -> list[tuple[str, float, int]]:
    """The test pieces with the highest and the lowest `nll_per_step`."""
    names = list(corpus.names.get("test", ())) if corpus is not None else []
    rows = []
    for number, (nll, frames) in enumerate(zip(test.by_piece, test.piece_frames, strict=True)):
        if nll is not None:
            rows.append((names[number] if number < len(names) else f"piece {number + 1}", nll, frames))
    rows.sort(key=lambda row: row[1])
    return rows if len(rows) <= 6 else rows[:3] + rows[-3:]


def _table(table: CalibrationTable) -> Calibration:
    """The calibration table out of a result.json."""
    p, frequency = (
        np.array([np.nan if value is None else value for value in values], np.float64)
        for values in (table.mean_probability, table.frequency)
    )
    return Calibration(np.array(table.edges), np.array(table.count, np.int64), p, frequency)


def _regulariser(metrics: Sequence[Record]) -> str:
    """The picture of the regulariser, empty for a run without noise or from before it was written down."""
    if not any(m.lambda_quantiles for m in metrics):
        return ""
    return figures.to_svg(figures.regulariser(metrics), "regulariser")


def _no_regulariser(config: Any) -> str:
    """Why a run has no picture of the regulariser."""
    if not _is_noisy(config):
        return "There is none: nothing is dropped and no noise is added, so that no variance enters the loss."
    if config.method == "mask":
        return "There is none to split off: masks are drawn, so that no variance enters the loss."
    return "Not written down: the run is from before it was, or ended in its first epoch."


def _is_noisy(config: Any) -> bool:
    drops = [value for name, value in config if name.startswith("drop_")]
    return bool(any(drops) or config.noise_hidden or config.weight_noise)
