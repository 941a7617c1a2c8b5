import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from fastdropout.music.data.rolls import Corpus
from fastdropout.music.training import make_config

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def mutations():
    spec = importlib.util.spec_from_file_location("_mutations", HERE.parent / "data" / "mutations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def torch_as_it_was():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def tune(length, seed):
    """A melody that walks up and down with its third: something to learn."""
    rng = np.random.default_rng(seed)
    key = int(rng.integers(20, 50))
    roll = np.zeros((length, 88), np.uint8)
    for t in range(length):
        roll[t, [key + t % 8, key + 4 + t % 8]] = 1
    return roll


@pytest.fixture(scope="session")
def corpus():
    lengths = {"train": (40, 7, 25, 33, 12, 60), "valid": (30, 9), "test": (41, 2, 17)}
    number = iter(range(100))
    return Corpus("tunes", {s: [tune(n, next(number)) for n in sizes] for s, sizes in lengths.items()})


@pytest.fixture
def config():
    """A network that trains in a moment; keyword arguments change it."""

    def make(**options):
        small = {"hidden": 12, "nu": 4, "chunk": 10, "batch": 4, "epochs": 3, "threads": 1, "lr": 0.01}
        small["transpose"] = 0
        return make_config(small | options)

    return make
