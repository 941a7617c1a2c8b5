import io
import zipfile

import numpy as np
import pytest

from fastdropout.errors import DataError
from fastdropout.music.data.musicxml import expand_repeats, part_names, read_bars, read_score, sample


def note(step, duration, extra="", octave=4, alter=None):
    alter = f"<alter>{alter}</alter>" if alter is not None else ""
    pitch = f"<pitch><step>{step}</step>{alter}<octave>{octave}</octave></pitch>" if step else "<rest/>"
    return f"<note>{extra}{pitch}<duration>{duration}</duration></note>"


def score(*measures, divisions=2):
    body = "".join(f"<measure>{measure}</measure>" for measure in measures)
    attributes = f"<attributes><divisions>{divisions}</divisions></attributes>"
    body = body.replace("<measure>", f"<measure>{attributes}", 1)
    return (
        "<score-partwise><part-list><score-part id='P1'><part-name>Soprano\nOboe</part-name></score-part>"
        f"</part-list><part id='P1'>{body}</part></score-partwise>"
    ).encode()


START = "<barline><repeat direction='forward'/></barline>"
END = "<barline><repeat direction='backward'/></barline>"


def ending(number, kind):
    return f"<barline><ending number='{number}' type='{kind}'/></barline>"


def keys(data):
    tree = read_score(data, "x")
    roll, _ = sample(expand_repeats(read_bars(tree, part_names(tree))))
    return [(np.flatnonzero(frame) + 21).tolist() for frame in roll]


def test_what_sounds_at_each_quarter():
    # C for a quarter and a half, D for an eighth, a rest, then E flat.
    assert keys(score(note("C", 3) + note("D", 1) + note(None, 2) + note("E", 2, alter=-1))) == [
        [60],
        [60],
        [],
        [63],
    ]


def test_chords_backups_and_grace_notes():
    chord = note("C", 4) + note("E", 4, "<chord/>")
    grace = note("F", 0, "<grace/>").replace("<duration>0</duration>", "")
    backup = "<backup><duration>4</duration></backup>"
    forward = "<forward><duration>2</duration></forward>"
    assert keys(score(chord + grace + backup + forward + note("G", 2))) == [[60, 64], [60, 64, 67]]


def test_forward_at_the_end_does_not_lengthen_a_bar():
    assert len(keys(score(note("C", 4) + "<forward><duration>2</duration></forward>"))) == 2


def test_a_bar_is_as_long_as_its_longest_part():
    assert len(keys(score(note("C", 2), note("D", 6)))) == 4


@pytest.mark.parametrize(
    ("signs", "played"),
    [
        (("", "", "", ""), "CDEF"),
        (("", END, "", ""), "CDCDEF"),
        (("", END, "", END), "CDCDEFEF"),
        (("", START, END, ""), "CDEDEF"),
        ((START, END, START, END), "CDCDEFEF"),
        (("", START, "", END), "CDEFDEF"),
        ((END, "", "", ""), "CCDEF"),
        (
            (
                "",
                ending("1", "start") + END + ending("1", "stop"),
                ending("2", "start") + ending("2", "stop"),
                "",
            ),
            "CDCEF",
        ),
        (
            ("", ending("1", "start"), ending("1", "stop") + END, ending("2", "start") + ending("2", "stop")),
            "CDECF",
        ),
        (("", ending("1, 2", "start") + END + ending("1", "stop"), "", ""), "CDCDEF"),
    ],
)
def test_repeats(signs, played):
    data = score(*(note(step, 2) + sign for step, sign in zip("CDEF", signs, strict=True)))
    numbers = {"C": 60, "D": 62, "E": 64, "F": 65}
    assert keys(data) == [[numbers[step]] for step in played]


def test_zipped_scores_are_read():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mimetype", "application/vnd.recordare.musicxml")
        archive.writestr("META-INF/container.xml", "<container/>")
        archive.writestr("song.musicxml", score(note("C", 2)))
    assert keys(buffer.getvalue()) == [[60]]


def test_part_names_lose_their_line_breaks():
    assert part_names(read_score(score(), "x")) == {"P1": "Soprano Oboe"}


@pytest.mark.parametrize("data", [b"", b"<a>", b"PK\x03\x04", b"\xff\xfe"])
def test_other_files_are_refused(data):
    with pytest.raises(DataError, match="not a readable MusicXML"):
        read_score(data, "x")
