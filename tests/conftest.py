import numpy as np
import pytest

from fastdropout.music.data.midi import write_midi


@pytest.fixture(scope="session")
def midis(tmp_path_factory):
    """A folder of a few short MIDI files."""
    folder = tmp_path_factory.mktemp("midi")
    for number in range(12):
        roll = (np.random.default_rng(number).random((50 + number, 88)) < 0.04).astype(np.uint8)
        write_midi(roll, folder / f"{number}.mid")
    return folder
