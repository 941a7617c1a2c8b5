"""What comes after training: `evaluate`, `generate`, `report`, `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fastdropout.errors import RunError
from fastdropout.music.cli import OK

if TYPE_CHECKING:
    from fastdropout.music.data.rolls import Corpus
    from fastdropout.music.training.config import Config
    from fastdropout.music.training.network import Network

Split = Literal["train", "valid", "test"]
Which = Literal["best", "last"]


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

    config, network, about = _network(run, model, which, data)
    corpus = _corpus(config)
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


def generate(
    run: Path | None = None,
    /,
    *,
    model: str | None = None,
    data: Path | None = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    frames: int = 64,
    prime: int | None = None,
    prime_frames: int = 16,
    split: Split = "test",
    temperature: float = 0.8,
    seed: int = 0,
    tempo: float = 80.0,
    which: Which = "best",
) -> int:
    """Draw a piece of music from a run's or a published network: .mid, .wav and a picture.

    Of a network that was trained on other sequences than music: .csv and a picture.

    Parameters
    ----------
    run
        the run folder
    model
        instead of a run, the name of a published model, such as jsb-chorales
    data
        folder of the canonical data sets, for an opening [$FASTDROPOUT_DATA, or as the run has it]
    output
        the MIDI file, or a .csv file; the others get the same name [song.mid, series.csv]
    frames
        length of the piece, the opening included
    prime
        begin with the opening of this piece of the split, counted from 1; without it, with nothing
    prime_frames
        frames of the opening
    split
        where the opening is from
    temperature
        1 draws from the network's probabilities, less from surer ones, 0 takes the most probable
    seed
        of the draws
    tempo
        quarters a minute
    which
        the checkpoint
    """
    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.data.midi import write_midi
    from fastdropout.music.study import figures, sound
    from fastdropout.music.training.generation import generate as draw
    from fastdropout.music.training.generation import is_music

    config, network, _ = _network(run, model, which, data)
    music = is_music(network, config.corpus)
    kinds = (".mid", ".midi") if music else (".csv",)
    output = Path("song.mid" if music else "series.csv") if output is None else output
    if output.suffix.lower() not in kinds:
        raise RunError(f"output must end in {kinds[0]}, got {output}")
    if not 1 <= tempo <= 1000:
        raise RunError(f"tempo must lie in 1..1000 quarters a minute, got {tempo:g}")
    opening = None
    if prime is not None:
        known = _corpus(config).splits[split]
        if not 1 <= prime <= len(known):
            raise RunError(f"prime must lie in 1..{len(known)}, the pieces of {split}, got {prime}")
        if prime_frames < 1:
            raise RunError(f"prime_frames must be at least 1, got {prime_frames}")
        opening = known[prime - 1][:prime_frames]
    grid = _steps_per_quarter(config)
    given = 0 if opening is None else len(opening)
    try:
        if music:
            sound.check_length(frames, 60 / tempo / grid)  # Before minutes of drawing.
        roll = draw(network, frames, prime=opening, temperature=temperature, seed=seed)
        samples = sound.render(roll, 60 / tempo / grid) if music else None
    except ValueError as error:
        raise RunError(str(error)) from error
    wav, png = output.with_suffix(".wav"), output.with_suffix(".png")
    if samples is None:
        write_output(output, "".join(",".join(f"{x:.7g}" for x in row) + "\n" for row in roll).encode())
        write_output(png, figures.to_png(figures.sequence(roll, given)))
        console.print(f"{output}\n{png}")
        return OK
    write_midi(roll, output, steps_per_quarter=grid, tempo=tempo)
    write_output(wav, sound.to_wav(samples))
    write_output(png, figures.to_png(figures.piano_roll(roll, given)))
    console.print(f"{output}\n{wav}\n{png}")
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
    from fastdropout.music.study.report import compare as compare_runs
    from fastdropout.music.study.report import comparison_html
    from fastdropout.music.training.run import Run

    folders = [Run(path) for path in (run, *more)]
    lines = compare_runs(folders)
    table = Table("", "run", "corpus", "test", "valid", "best epoch", "minutes")
    for number, line in enumerate(lines, 1):
        scores = ("diverged" if s is None else f"{s:.3f}" for s in (line.test, line.valid))
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


def _network(
    run: Path | None, model: str | None, which: Which, data: Path | None
) -> tuple[Config, Network, dict[str, Any]]:
    """The network of a run or the published one, with what is published about it."""
    from fastdropout.music.training.options import make_config
    from fastdropout.music.training.published import load_model
    from fastdropout.music.training.run import Run

    if (run is None) == (model is None):
        raise RunError("give a run folder or --model NAME, one of them")
    about: dict[str, Any] = {}
    if model is not None:
        found = load_model(model)
        config, network, about = found.config, found.model, found.about
    else:
        folder = Run(run or "")
        config, network = folder.config, folder.model(which)
    if data is not None:
        config = make_config({**config.model_dump(exclude_none=True), "data": str(data)}, what="options")
    return config, network, about


def _corpus(config: Config) -> Corpus:
    from fastdropout.music.cli.screen import counting
    from fastdropout.music.training.state import load_corpus

    with counting(f"reading {config.corpus}") as count:
        return load_corpus(config, count)


def _steps_per_quarter(config: Config) -> int:
    """The chorales have a frame a quarter, the other data sets two; folders what they were read with."""
    if config.corpus in ("bach", "jsb-chorales"):
        return 1
    return config.steps_per_quarter or 2
