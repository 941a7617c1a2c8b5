"""A page that plays: what a network makes, and a piece beside what was predicted of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from fastdropout.music.data.rolls import KEYS, LOWEST, Piece, Roll
from fastdropout.music.study import sound
from fastdropout.music.study.page import page
from fastdropout.music.study.paper import described
from fastdropout.music.training.config import Config
from fastdropout.music.training.evaluation import expected_frames
from fastdropout.music.training.generation import compose
from fastdropout.music.training.network import Network

RATE = 16_000
"""Samples a second on a page: all notes of a piano and most of their partials lie below half of it."""
MAX_SECONDS = 300.0
"""Of a piece on a page, about 13 MB."""
AUDIBLE = 0.1
"""Probability from which on a note is drawn and played as predicted."""


@dataclass(frozen=True)
class Track:
    """A piece that is played and shown."""

    title: str
    note: str
    audio: Markup
    """A data URI."""
    roll: Markup
    """A picture whose width is the time that the notes take."""
    labels: list[tuple[str, float]]
    """Names of keys, each with its place from the top of the picture in percent."""
    frames: int
    seconds: float
    """Of the notes; the sound goes on a little to let the last ones die away."""


def listen_html(
    name: str,
    network: Network,
    config: Config,
    *,
    test: tuple[str, Piece] | None,
    missing: str,
    frames: int,
    seconds: float,
    temperature: float | None,
    seed: int,
) -> str:
    """The page of a network: `test` is a test piece with its name, or `missing` says why there is none."""
    if not frames >= 1 or frames * seconds > MAX_SECONDS:
        most = int(MAX_SECONDS / seconds)
        raise ValueError(f"frames must lie in 1..{most} at this tempo ({MAX_SECONDS:.0f} s), got {frames}")
    tracks = [made(network, frames, seconds, temperature, seed)]
    if test is not None and len(test[1]) > 1:
        piece = test[1][: frames + 1]
        tracks += predicted(piece, expected_frames(network, piece).mean.numpy(), seconds)
    return page(
        "listen.html",
        title=f"{name}: listen",
        name=name,
        kind=described(config),
        tracks=tracks,
        test="" if test is None else test[0],
        sequential=network.output.sequential,
        missing=missing,
    )


def made(
    network: Network, frames: int, seconds: float, temperature: float | None = None, seed: int = 0
) -> Track:
    """A piece that a network makes."""
    roll = compose(network, frames, temperature=temperature, seed=seed)
    note = (
        f"Drawn frame by frame after a cadence in C major, which is left out: {roll.sum(1).mean():.1f} notes "
        f"per frame, seed {seed}."
    )
    return track("What the network makes", note, roll, seconds)


def predicted(piece: Piece, p: npt.NDArray[np.float32], seconds: float) -> list[Track]:
    """A piece from its second frame on, and what was predicted of it, as loud as it is probable."""
    return [
        track("As written", "From the second frame on.", piece[1:], seconds),
        track(
            "As predicted",
            "Every note as loud as it was probable.",
            (p >= AUDIBLE).astype(np.uint8),
            seconds,
            p,
        ),
    ]


def track(
    title: str, note: str, roll: Roll, seconds: float, strength: npt.NDArray[np.float32] | None = None
) -> Track:
    """A piano roll as a sound and a picture."""
    samples = sound.render(roll, seconds, strength=strength, rate=RATE)
    audio = base64.b64encode(sound.to_wav(samples, RATE)).decode()
    picture, labels = _picture(roll, strength)
    return Track(
        title, note, Markup(f"data:audio/wav;base64,{audio}"), picture, labels, len(roll), len(roll) * seconds
    )


def steps_per_quarter(config: Config) -> int:
    """The chorales have a frame a quarter, the other data sets two; folders what they were read with."""
    if config.corpus in ("bach", "jsb-chorales"):
        return 1
    return config.steps_per_quarter or 2


def frame_seconds(config: Config, tempo: float) -> float:
    """How long a frame sounds at a tempo in quarters a minute."""
    return 60 / tempo / steps_per_quarter(config)


def _picture(roll: Roll, strength: npt.NDArray[np.float32] | None) -> tuple[Markup, list[tuple[str, float]]]:
    """A roll as SVG, a unit a frame and a key, to be stretched; and the names of its octaves."""
    used = np.flatnonzero(roll.any(axis=0))
    low, high = (int(used[0]), int(used[-1])) if len(used) else (27, 51)
    low, high = max(0, low - 2), min(KEYS - 1, high + 2)
    rows = high - low + 1
    parts = [
        f'<svg viewBox="0 0 {len(roll)} {rows}" preserveAspectRatio="none" role="img" '
        f'aria-label="piano roll of {len(roll)} frames">'
    ]
    octaves = [key for key in range(low, high + 1) if (key + LOWEST) % 12 == 0]
    parts += [
        f'<rect x="0" y="{high - key}" width="{len(roll)}" height="1" fill="currentColor" opacity=".08"/>'
        for key in octaves
    ]
    for key, start, end, level in _bars(roll, strength):
        parts.append(
            f'<rect x="{start}" y="{high - key + 0.08:.2f}" width="{end - start}" height=".84" '
            f'class="note" opacity="{level:.2f}"/>'
        )
    parts.append("</svg>")
    labels = [(f"C{(key + LOWEST) // 12 - 1}", 100 * (high - key + 0.5) / rows) for key in octaves]
    return Markup("".join(parts)), labels


def _bars(roll: Roll, strength: npt.NDArray[np.float32] | None) -> Iterator[tuple[int, int, int, float]]:
    """Key, first frame, frame after the last, and strength of what is drawn in one piece."""
    if strength is None:
        for key, start, end in sound.held(roll):
            yield key, start, end, 1.0
    else:
        for frame, key in np.argwhere(roll != 0).tolist():
            yield key, frame, frame + 1, float(strength[frame, key])
