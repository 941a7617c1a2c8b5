import numpy as np
import pytest

from fastdropout.data.midi import write_midi
from fastdropout.training import make_config


@pytest.fixture(scope="session")
def midis(tmp_path_factory):
    """A folder of a few short MIDI files."""
    folder = tmp_path_factory.mktemp("midi")
    for number in range(12):
        roll = (np.random.default_rng(number).random((50 + number, 88)) < 0.04).astype(np.uint8)
        write_midi(roll, folder / f"{number}.mid")
    return folder


@pytest.fixture(scope="session")
def config(midis):
    """A network that trains in a moment; keyword arguments change it."""

    def make(**options):
        small = {
            "corpus": str(midis),
            "hidden": 20,
            "nu": 4,
            "chunk": 20,
            "batch": 4,
            "epochs": 3,
            "threads": 1,
        }
        return make_config(small | options)

    return make
