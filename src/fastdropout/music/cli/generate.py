"""`generate`: files of music, or of other sequences, drawn from a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fastdropout.errors import RunError
from fastdropout.music.cli import OK
from fastdropout.music.cli.chosen import (
    DataFolder,
    ModelName,
    RunFolder,
    Seed,
    Split,
    Tempo,
    Which,
    check_tempo,
    chosen_network,
    read_corpus,
)


def generate(
    run: RunFolder = None,
    /,
    *,
    model: ModelName = None,
    data: DataFolder = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    frames: int = 64,
    prime: int | None = None,
    prime_frames: int = 16,
    split: Split = "test",
    temperature: float | None = None,
    seed: Seed = 0,
    tempo: Tempo = 80.0,
    which: Which = "best",
) -> int:
    """Sample a piece of music from a run's or a published network: .mid, .wav and a picture.

    From a network trained on other sequences than music: .csv and a picture.

    Parameters
    ----------
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
    check_tempo(tempo)
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
