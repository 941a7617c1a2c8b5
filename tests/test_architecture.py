"""Imports point one way: a room may use itself and the rooms above it, never one below."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fastdropout"
FLOORS = [
    {"errors", "files", "moments"},
    {"functional"},
    {"nn", "optim"},
    {"data"},
    {"analysis", "training"},
    {"study"},
    {"cli"},
]
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
    part = path.relative_to(SOURCE).parts[0]
    return part.removesuffix(".py")


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
        for name in names:
            parts = name.split(".")
            if parts[0] == "fastdropout" and len(parts) > 1:
                yield parts[1], node.lineno


FILES = sorted(
    p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name not in {"__init__.py", "__main__.py"}
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


def test_the_law_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from fastdropout.cli import main\nimport fastdropout.nn.init\n")
    assert [room for room, _ in imported_rooms(bad)] == ["cli", "nn"]


def test_files_stay_small():
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
