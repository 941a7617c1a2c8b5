"""What sounds when in a MusicXML score, as far as Bach's chorales need it.

Reading the score's own file takes about 10 ms where a music library's object model takes 150, so that the
whole corpus converts in seconds. Understood are notes, rests, ties, several voices, repeats and first
and second endings. Grace notes take no time and are left out. Jumps (da capo, segno, coda) do not occur
in the corpus.
"""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fastdropout.errors import DataError
from fastdropout.music.data.rolls import HIGHEST, KEYS, LOWEST, Roll

_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}

MAX_BARS = 10_000
"""Bars after repeats are written out; more is taken for a broken file."""


@dataclass(frozen=True)
class Note:
    """A MIDI number that sounds from `start` to `end`, in quarters from the start of its bar."""

    start: Fraction
    end: Fraction
    pitch: int


@dataclass
class Bar:
    """One bar of all parts that were read: notes by part, length, and the signs at its edges."""

    notes: dict[str, list[Note]]
    length: Fraction = Fraction(0)
    repeat_start: bool = False
    repeat_end: bool = False
    endings: frozenset[int] = frozenset()
    """The passes in which the bar is played, empty for all."""


def read_score(data: bytes, what: str) -> ET.Element:
    """The XML tree of a `.mxl` (zipped) or `.xml` file given as bytes."""
    try:
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [n for n in archive.namelist() if n.endswith((".xml", ".musicxml"))]
                data = archive.read(next(n for n in names if not n.startswith("META-INF")))
        return ET.fromstring(data)
    except (zipfile.BadZipFile, ET.ParseError, StopIteration, KeyError, OSError, ValueError) as error:
        raise DataError(f"{what}: not a readable MusicXML score ({error})") from error


def part_names(score: ET.Element) -> dict[str, str]:
    """The name of each part by its id; the file's line breaks become spaces."""
    names = {part.get("id", ""): part.findtext("part-name") or "" for part in score.iter("score-part")}
    return {id: " ".join(name.split()) for id, name in names.items()}


def read_bars(score: ET.Element, parts: Iterable[str]) -> list[Bar]:
    """The bars as they are written, with the notes of the given parts (by id)."""
    bars: list[Bar] = []
    for part in parts:
        element = score.find(f"part[@id='{part}']")
        if element is None:
            continue
        divisions = Fraction(1)
        endings: frozenset[int] = frozenset()
        for number, measure in enumerate(element.iter("measure")):
            if number == len(bars):
                bars.append(Bar({}))
            bar = bars[number]
            divisions = _read_measure(measure, bar, part, divisions)
            endings = _read_signs(measure, bar, endings)
    return bars


def _read_measure(measure: ET.Element, bar: Bar, part: str, divisions: Fraction) -> Fraction:
    notes = bar.notes.setdefault(part, [])
    now = before = Fraction(0)
    for element in measure:
        if element.tag == "attributes":
            divisions = Fraction(element.findtext("divisions") or divisions)
        elif element.tag in ("backup", "forward"):
            step = Fraction(element.findtext("duration") or 0) / divisions
            now += step if element.tag == "forward" else -step
        elif element.tag == "note" and element.find("grace") is None:
            length = Fraction(element.findtext("duration") or 0) / divisions
            start = before if element.find("chord") is not None else now
            pitch = element.find("pitch")
            if pitch is not None:
                notes.append(Note(start, start + length, _midi_number(pitch)))
            before, now = start, max(now, start + length)
            # A `forward` alone does not lengthen a bar: last bars are filled up by it after an upbeat.
            bar.length = max(bar.length, now)
    return divisions


def _midi_number(pitch: ET.Element) -> int:
    # Half-way alterations (quarter tones) round to a key.
    alter = round(float(pitch.findtext("alter") or 0))
    return 12 * (int(pitch.findtext("octave") or 4) + 1) + _SEMITONES[pitch.findtext("step") or "C"] + alter


def _read_signs(measure: ET.Element, bar: Bar, endings: frozenset[int]) -> frozenset[int]:
    """Note the repeat signs of a bar; return the ending that is still open after it."""
    after = endings
    for barline in measure.iter("barline"):
        for repeat in barline.iter("repeat"):
            if repeat.get("direction") == "forward":
                bar.repeat_start = True
            else:
                bar.repeat_end = True
        for ending in barline.iter("ending"):
            if ending.get("type") == "start":
                endings = frozenset(int(n) for n in (ending.get("number") or "1").replace(",", " ").split())
                after = endings
            else:
                after = frozenset()
    bar.endings |= endings
    return after


def expand_repeats(bars: list[Bar]) -> list[Bar]:
    """The bars in the order in which they are played: each section twice, each ending in its turn."""
    played: list[Bar] = []
    start, at, turn = 0, 0, 1
    while at < len(bars) and len(played) < MAX_BARS:
        bar = bars[at]
        if (
            bar.repeat_start and at > start
        ):  # A new section; a section without this sign begins after the last one.
            start, turn = at, 1
        if not bar.endings or turn in bar.endings:
            played.append(bar)
            if bar.repeat_end and turn == 1:
                at, turn = start, 2
                continue
        closes = bar.repeat_end or bool(bar.endings)
        if closes and not (at + 1 < len(bars) and bars[at + 1].endings):
            start, turn = at + 1, 1
        at += 1
    return played


def sample(bars: list[Bar]) -> tuple[Roll, dict[str, list[int]]]:
    """What sounds at each quarter: the piano roll, and each part's (highest) pitch a frame, 0 for a rest."""
    starts = [Fraction(0)]
    for bar in bars:
        starts.append(starts[-1] + bar.length)
    frames = math.ceil(starts[-1])
    roll = np.zeros((frames, KEYS), np.uint8)
    lines: dict[str, list[int]] = {}
    for start, bar in zip(starts, bars, strict=False):
        for part, notes in bar.notes.items():
            line = lines.setdefault(part, [0] * frames)
            for note in notes:
                # Rounded up: a frame hears what has begun and not what ends there.
                for frame in range(math.ceil(start + note.start), math.ceil(start + note.end)):
                    if LOWEST <= note.pitch <= HIGHEST:
                        roll[frame, note.pitch - LOWEST] = 1
                        line[frame] = max(line[frame], note.pitch)
    return roll, lines
