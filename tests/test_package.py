"""`import fastdropout` is light, and every room is there when it is asked for."""

import subprocess
import sys

import pytest

import fastdropout as fd


def test_rooms_are_imported_when_they_are_used():
    program = """
import sys, fastdropout as fd
assert "torch" not in sys.modules
assert fd.music.training.make_config({"hidden": 100}).hidden == 100
assert "torch" not in sys.modules
assert fd.recurrent.__name__ == "fastdropout.recurrent"
assert "music" in dir(fd) and "training" in dir(fd.music)
for name in fd.__all__:
    assert getattr(fd, name)
for name in ("cli", "data", "study", "training"):
    assert getattr(fd.music, name).__name__ == f"fastdropout.music.{name}"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("package", [fd, fd.music], ids=["fastdropout", "music"])
def test_other_names_are_not_there(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
