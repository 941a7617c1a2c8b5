"""Piano rolls made audible: a few partials a note, each dying away, and nothing else."""

from __future__ import annotations

import io
import wave

import numpy as np
import numpy.typing as npt

from fastdropout.music.data.rolls import LOWEST, Roll

RATE = 22_050
MAX_SECONDS = 3600.0
_PARTIALS = ((1, 1.0), (2, 0.5), (3, 0.25), (4, 0.12), (5, 0.06), (6, 0.03))
_ATTACK, _RELEASE = 0.012, 0.09


def render(
    roll: Roll,
    frame_seconds: float,
    *,
    strength: npt.NDArray[np.float32] | None = None,
    rate: int = RATE,
) -> npt.NDArray[np.float32]:
    """Samples in [-0.9, 0.9]; a key that sounds in successive frames is one held note.

    `strength`, as large as the roll, says how loud each key is in each frame.
    """
    check_length(len(roll), frame_seconds)
    sound = np.zeros(int((len(roll) * frame_seconds + 0.5) * rate) + 1, np.float32)
    for key, start, end in held(roll):
        note = _note(key + LOWEST, (end - start) * frame_seconds, rate)
        if strength is not None:
            middles = (np.arange(end - start) + 0.5) * frame_seconds * rate
            note *= np.interp(np.arange(len(note)), middles, strength[start:end, key]).astype(np.float32)
        at = int(start * frame_seconds * rate)
        sound[at : at + len(note)] += note[: len(sound) - at]
    peak = float(np.abs(sound).max())
    return sound * (0.9 / peak) if peak > 0 else sound


def held(roll: Roll) -> list[tuple[int, int, int]]:
    """The notes of a roll: key, first frame, frame after the last."""
    edges = np.diff(np.pad((roll != 0).astype(np.int8), ((1, 1), (0, 0))), axis=0)
    # Transposed, so that the starts and ends of a key come in pairs.
    keys, starts = np.nonzero(edges.T == 1)
    _, ends = np.nonzero(edges.T == -1)
    return list(zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True))


def check_length(frames: int, frame_seconds: float) -> None:
    """Raise ValueError for a piece that is too long to be made audible."""
    if not 0 < frame_seconds <= 60:
        raise ValueError(f"frame_seconds must lie in (0, 60], got {frame_seconds}")
    if frames * frame_seconds > MAX_SECONDS:
        raise ValueError(
            f"the sound must last at most {MAX_SECONDS:.0f} s, got {frames * frame_seconds:.0f} s: "
            f"at this tempo frames must be at most {int(MAX_SECONDS / frame_seconds)}, got {frames}"
        )


def to_wav(samples: npt.NDArray[np.float32], rate: int = RATE) -> bytes:
    """Samples in [-1, 1] as a 16-bit mono WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def _note(midi: int, seconds: float, rate: int) -> npt.NDArray[np.float32]:
    """One note with a short attack, a decay that is slower for low notes, and a release after its end."""
    pitch = 440.0 * 2 ** ((midi - 69) / 12)
    t = np.arange(int((seconds + _RELEASE) * rate)) / rate
    tone = np.zeros_like(t)
    for partial, strength in _PARTIALS:
        if partial * pitch < rate / 2:  # Higher ones would come back as wrong pitches.
            decay = (0.6 + midi / 60) * (0.5 + 0.5 * partial)
            tone += strength * np.exp(-decay * t) * np.sin(2 * np.pi * partial * pitch * t)
    attack = np.minimum(t / _ATTACK, 1)
    release = np.clip((seconds + _RELEASE - t) / _RELEASE, 0, 1)
    # Equal strength would make low notes rumble and high ones vanish.
    return (tone * attack * release * (440.0 / pitch) ** 0.15).astype(np.float32)
