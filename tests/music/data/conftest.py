import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


def _load(name):
    spec = importlib.util.spec_from_file_location(f"_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def mutations():
    return _load("mutations")


@pytest.fixture(scope="session")
def data_dir():
    """The folder of the canonical data sets, which are not part of the repository."""
    root = HERE.parents[2]
    for folder in (os.environ.get("FASTDROPOUT_DATA"), root.parent / "shared" / "data"):
        if folder and (Path(folder) / "jsb-chorales.npz").is_file():
            return Path(folder)
    pytest.skip("the canonical data sets are not here: set $FASTDROPOUT_DATA to their folder")


@pytest.fixture
def splits():
    """A tiny corpus."""
    rng = np.random.default_rng(7)
    sizes = {"train": (9, 5, 30), "valid": (12, 2), "test": (8,)}
    return {
        split: [(rng.random((steps, 88)) < 0.05).astype(np.uint8) for steps in lengths]
        for split, lengths in sizes.items()
    }
