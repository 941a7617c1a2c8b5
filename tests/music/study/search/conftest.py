import pytest

from fastdropout.music.training import make_config


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
