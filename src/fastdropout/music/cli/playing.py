"""Music out of a network: `generate` writes files, `listen` a page that plays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.errors import RunError, one_line, visible
from fastdropout.music.cli import OK
from fastdropout.music.cli.chosen import Split, Which, chosen_network, read_corpus


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
    temperature: float | None = None,
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
        begin with the opening of this piece of the split, counted from 1; without it, music follows a
        cadence in C major that is no part of it
    prime_frames
        frames of the opening
    split
        where the opening is from
    temperature
        1 draws from the network's probabilities; less is surer of the notes, with as many of them; 0 takes
        what is more probable than not [0.6; 1 with a NADE and for real values]
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
    from fastdropout.music.study.listen import frame_seconds, steps_per_quarter
    from fastdropout.music.training.generation import compose, is_music

    config, network, _ = chosen_network(run, model, which, data)
    music = is_music(network, config.corpus)
    kinds = (".mid", ".midi") if music else (".csv",)
    output = Path("song.mid" if music else "series.csv") if output is None else output
    if output.suffix.lower() not in kinds:
        raise RunError(f"output must end in {kinds[0]}, got {output}")
    _check_tempo(tempo)
    opening = None
    if prime is not None:
        known = read_corpus(config).splits[split]
        if not 1 <= prime <= len(known):
            raise RunError(f"prime must lie in 1..{len(known)}, the pieces of {split}, got {prime}")
        if prime_frames < 1:
            raise RunError(f"prime_frames must be at least 1, got {prime_frames}")
        opening = known[prime - 1][:prime_frames]
    seconds = frame_seconds(config, tempo)
    given = 0 if opening is None else len(opening)
    try:
        if music:
            sound.check_length(frames, seconds)  # Before minutes of drawing.
        roll = compose(network, frames, prime=opening, temperature=temperature, seed=seed, music=music)
        samples = sound.render(roll, seconds) if music else None
    except ValueError as error:
        raise RunError(str(error)) from error
    wav, png = output.with_suffix(".wav"), output.with_suffix(".png")
    if samples is None:
        write_output(output, "".join(",".join(f"{x:.7g}" for x in row) + "\n" for row in roll).encode())
        write_output(png, figures.to_png(figures.sequence(roll, given)))
        console.print(f"{output}\n{png}")
        return OK
    write_midi(roll, output, steps_per_quarter=steps_per_quarter(config), tempo=tempo)
    write_output(wav, sound.to_wav(samples))
    write_output(png, figures.to_png(figures.piano_roll(roll, given)))
    console.print(f"{output}\n{wav}\n{png}")
    return OK


def listen(
    run: Path | None = None,
    /,
    *,
    model: str | None = None,
    data: Path | None = None,
    output: Annotated[Path, Parameter(alias="-o")] = Path("listen.html"),
    frames: int = 64,
    piece: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    tempo: float = 80.0,
    which: Which = "best",
) -> int:
    """Write a page that plays what a run's or a published network makes, and a test piece as it predicts it.

    Without its data set, a published model plays what it makes only.

    Parameters
    ----------
    run
        the run folder
    model
        instead of a run, the name of a published model, such as jsb-chorales
    data
        folder of the canonical data sets, for the test piece [$FASTDROPOUT_DATA, or as the run has it]
    output
        the page
    frames
        length of each piece
    piece
        the test piece, counted from 1
    temperature
        as of generate [0.6; 1 with a NADE]
    seed
        of the draws
    tempo
        quarters a minute
    which
        the checkpoint
    """
    from fastdropout.errors import DataError
    from fastdropout.files import write_output
    from fastdropout.music.cli.screen import console
    from fastdropout.music.study.listen import frame_seconds, listen_html
    from fastdropout.music.training.generation import is_music

    config, network, _ = chosen_network(run, model, which, data)
    if not is_music(network, config.corpus):
        raise RunError(f"{config.corpus} is no music: listen is for piano rolls, use fastdropout generate")
    _check_tempo(tempo)
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


def _check_tempo(tempo: float) -> None:
    if not 1 <= tempo <= 1000:
        raise RunError(f"tempo must lie in 1..1000 quarters a minute, got {tempo:g}")
