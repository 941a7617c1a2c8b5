"""Imports point one way: a room may use itself and the rooms above it, never one below."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fastdropout"
FLOORS = [
    {"errors", "files", "serving", "checks", "rearranging", "registration", "renaming", "moments"},
    {"functional"},
    {"recurrent"},
    {"integration"},
    {"nn", "optim"},
    {"analysis"},
    {"sklearn"},
    {"data"},
    {"training"},
    {"study"},
    {"cli"},
]
# The experiment is a wing of its own, `music/`: the library imports none of its rooms.
WING = {"data", "training", "study", "cli"}
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# data knows nothing of networks, though it stands below them.
FORBIDDEN = {
    ("data", "nn"),
    ("data", "functional"),
    ("data", "optim"),
    ("data", "moments"),
    ("optim", "nn"),
    ("nn", "optim"),
}


def room_of(path):
    return room_in(path.relative_to(SOURCE).parts).removesuffix(".py")


def room_in(parts):
    return parts[1] if parts[0] == "music" and len(parts) > 1 else parts[0]


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "fastdropout":
                names = [f"fastdropout.{alias.name}" for alias in node.names]
            elif node.module == "fastdropout.music":
                names = [f"fastdropout.music.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "fastdropout" and len(parts) > 1:
                yield room_in(parts[1:]), node.lineno


FILES = sorted(
    p
    for p in SOURCE.rglob("*.py")
    if p.parent not in {SOURCE, SOURCE / "music"} or p.name not in {"__init__.py", "__main__.py"}
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    assert room in HEIGHT, f"give the new room {room} its floor"
    for other, line in imported_rooms(path):
        other = {"Moments": "moments", "losses": "functional", "__version__": "errors"}.get(other, other)
        where = f"{path}:{line}: {room} imports {other}"
        assert HEIGHT[other] <= HEIGHT[room], where
        assert (room, other) not in FORBIDDEN, where
        assert other not in WING or room in WING, where


def test_the_law_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from fastdropout.music.cli import main\nfrom fastdropout.music import study\n"
        "import fastdropout.nn.init\n"
    )
    assert [room for room, _ in imported_rooms(bad)] == ["cli", "study", "nn"]


def test_files_stay_small():
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
