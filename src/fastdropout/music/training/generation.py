"""Music, or any series, out of a trained network: what it predicts is drawn, and read again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastdropout.moments import Moments
from fastdropout.music.data.batches import memory_width
from fastdropout.music.data.memory import Memory
from fastdropout.music.data.rolls import KEYS, LOWEST, Piece
from fastdropout.music.data.series import is_series
from fastdropout.music.data.similar import Similar
from fastdropout.music.training.evaluation import evaluating
from fastdropout.music.training.network import Network

MAX_FRAMES = 100_000
COLDEST = 1e-3
"""Temperature above 0: logits of 1e4 divided by less would not keep their digits in float32."""
SURER = 0.6
"""Default temperature for notes that are drawn independently: at 1 the published models lose themselves in
silence on two of four data sets. Chords of a NADE hold together at 1, and repeat themselves below."""


@torch.no_grad()
def generate(
    model: Network,
    frames: int = 64,
    *,
    prime: Piece | None = None,
    lead: Piece | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Piece:
    """A piece of `frames` frames, the first ones those of `prime`, the others drawn one after the other.

    `lead` is heard before and is no part of the piece: a network that never saw a piece begin may not find
    out of the silence before it (`cadence`). Each note is drawn from its expected probability, whose logit is
    divided by `temperature` and shifted so that the expected number of notes stays: below 1 a network is
    surer which notes, not less sure whether any; at 0 it takes what is more probable than not. Where the
    notes of a frame depend on one another, they are drawn from the lowest to the highest, each given those
    that were drawn. The standard deviation of a real value is multiplied by the temperature.
    """
    if not 1 <= frames <= MAX_FRAMES:
        raise ValueError(f"frames must lie in 1..{MAX_FRAMES}, got {frames}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if 0 < temperature < COLDEST:
        raise ValueError(f"temperature must be 0 or at least {COLDEST}, got {temperature}")
    generator = torch.Generator().manual_seed(seed)
    roll = np.zeros((frames, model.features), np.float32 if model.output.real else np.uint8)
    given = 0 if prime is None else min(len(prime), frames)
    if prime is not None:
        roll[:given] = prime[:given]
    state: Moments | None = None
    memories: list[Memory | Similar] = [Memory(model.features)] if model.memory else []
    memories += [Similar(model.features)] if model.similar else []
    before = roll[:given] if lead is None else np.concatenate([lead, roll[:given]])
    # Nothing is silence, which is not remembered.
    heard = before if len(before) else None
    with evaluating(model):
        for frame in range(given, frames):
            prediction, state = model(_inputs(model, heard, memories), state)
            roll[frame] = prediction[-1, 0].draw(generator, temperature).numpy()
            heard = roll[frame : frame + 1]
    return roll


def compose(
    model: Network,
    frames: int,
    *,
    prime: Piece | None = None,
    temperature: float | None = None,
    seed: int = 0,
    music: bool = True,
) -> Piece:
    """As `generate`, with what makes music sound: the output layer's own temperature, and a cadence first."""
    if temperature is None:
        temperature = 1.0 if model.output.real or model.output.sequential else SURER
    lead = cadence() if music and prime is None else None
    return generate(model, frames, prime=prime, lead=lead, temperature=temperature, seed=seed)


def cadence() -> Piece:
    """Four chords of C major, I-IV-V-I, of four frames each: a lead that belongs to nobody's corpus."""
    chords = ((48, 55, 64, 72), (53, 57, 65, 72), (43, 59, 62, 71), (48, 55, 64, 72))
    roll = np.zeros((len(chords), KEYS), np.uint8)
    for frame, chord in zip(roll, chords, strict=True):
        frame[[note - LOWEST for note in chord]] = 1
    return roll.repeat(4, axis=0)


def is_music(model: Network, corpus: str) -> bool:
    """Whether what a network draws is a piano roll, as far as its features and its corpus say."""
    return model.features == KEYS and not model.output.real and not is_series(corpus)


def _inputs(model: Network, heard: Piece | None, memories: Sequence[Memory | Similar]) -> torch.Tensor:
    """Frames, and what is remembered at each, as a batch of one: (steps, 1, inputs)."""
    frames = model.output.silence()[None] if heard is None else torch.from_numpy(heard)
    frames = frames.float().unsqueeze(1)
    if not memories:
        return frames
    more = np.zeros((len(frames), memory_width(model.features, model.memory, model.similar)), np.float32)
    if heard is not None:
        for row, frame in zip(more, heard, strict=True):
            row[:] = np.concatenate([memory.hear(frame) for memory in memories])
    return torch.cat([frames, torch.from_numpy(more).unsqueeze(1)], -1)
