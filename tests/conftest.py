import gc
import os

# Two workers on two cores: second threads would fight for them, also in the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fastdropout.music.data.midi import write_midi

# Hypothesis's own limits are of the clock (200 ms for an example), which a busy machine exceeds.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n`, files stay whole as long as both workers are busy: what a module trains is trained once."""
    if config.getoption("dist") == "load":
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)
    return None


# Files with long set-ups or tests. Begun first, they leave short tests for the end, when one worker takes
# over what the other has not begun; in the middle, both might set the same up.
LONG = ("test_site", "test_gallery", "test_documents", "test_operator", "test_command", "test_executors")


def pytest_collection_modifyitems(items):
    """The long ones first, otherwise in order."""
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture
def process_group(tmp_path):
    """torch.distributed with this process alone.

    It ends after the test's own objects. A wrapped network that outlives its group takes it along, and waits
    with Python's lock for threads that want the lock: on a busy machine for ever.
    """
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def midis(tmp_path_factory):
    """A folder of a few short MIDI files."""
    folder = tmp_path_factory.mktemp("midi")
    for number in range(12):
        roll = (np.random.default_rng(number).random((50 + number, 88)) < 0.04).astype(np.uint8)
        write_midi(roll, folder / f"{number}.mid")
    return folder
