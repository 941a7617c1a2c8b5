import gc
import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch

import fastdropout as fd
from fastdropout.recurrent import buffers

LIKE = torch.zeros(0)
ROWS = buffers.SMALLEST // 4 // 1024
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Nothing waits, nothing was used lately, and the time goes on only when told to."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    gc.collect()
    buffers.release_memory()
    monkeypatch.setattr(buffers, "time", clock)
    monkeypatch.setattr(buffers, "_peak", buffers._Peak())
    yield clock
    buffers.release_memory()


def test_memory_is_used_again_only_when_nobody_looks_at_it():
    a = buffers.empty(LIKE, ROWS, 1024)
    a.fill_(1.0)
    address, part = a.data_ptr(), a[1:]
    del a
    gc.collect()
    b = buffers.empty(LIKE, ROWS, 1024)
    b.fill_(2.0)
    assert b.data_ptr() != address
    assert (part == 1).all()  # still its own
    del part
    gc.collect()
    assert buffers.waiting_bytes() == buffers.SMALLEST
    assert buffers.empty(LIKE, ROWS, 1024).data_ptr() == address


def test_shape_and_dtype_are_what_was_asked_for():
    x = buffers.empty(torch.zeros(0, dtype=torch.float64), 2, ROWS, 512)
    assert (x.shape, x.dtype, x.is_contiguous()) == ((2, ROWS, 512), torch.float64, True)
    x.copy_(torch.arange(x.numel()).view(x.shape))
    assert x.flatten()[-1] == x.numel() - 1


def test_small_and_foreign_buffers_are_torchs_own():
    for like, shape in ((LIKE, (10, 10)), (torch.zeros(0, device="meta"), (ROWS, 1024))):
        assert buffers.empty(like, *shape).shape == shape
    gc.collect()
    assert buffers.waiting_bytes() == 0


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "MOST_BYTES", 3 * buffers.SMALLEST)
    held = [buffers.empty(LIKE, ROWS, 1024) for _ in range(8)]
    assert len({x.data_ptr() for x in held}) == 8
    del held
    gc.collect()
    assert buffers.waiting_bytes() == 3 * buffers.SMALLEST


def test_no_more_waits_than_was_used_at_once():
    """Shapes of which none serves for the next, one after the other."""
    for factor in (7, 3, 1, 2.5, 6):
        x = buffers.empty(LIKE, int(factor * ROWS), 1024)
        del x
        gc.collect()
        assert buffers.waiting_bytes() <= 7 * buffers.SMALLEST


def test_what_was_used_long_ago_does_not_count(clock):
    x = buffers.empty(LIKE, 10 * ROWS, 1024)
    del x
    clock.now += 2.1 * buffers.SECONDS
    for factor in (3, 2, 1):
        x = buffers.empty(LIKE, factor * ROWS, 1024)
        del x
    gc.collect()
    assert 0 < buffers.waiting_bytes() <= 3 * buffers.SMALLEST


def test_sequences_of_different_lengths_share_memory():
    shapes = ((5 * ROWS, 1024), (3 * ROWS, 1024), (4 * ROWS, 1024))
    assert len({buffers.empty(LIKE, *shape).data_ptr() for shape in shapes * 2}) == 1


def test_the_smallest_that_fits_is_taken():
    large, small = (buffers.empty(LIKE, factor * ROWS, 1024) for factor in (3, 2))
    addresses = small.data_ptr(), large.data_ptr()
    del small, large
    gc.collect()
    again = [buffers.empty(LIKE, factor * ROWS, 1024) for factor in (2, 2)]
    assert tuple(x.data_ptr() for x in again) == addresses


@pytest.mark.parametrize("occasion", ["another call", "a collection of garbage"])
def test_it_goes_back_after_a_while(clock, occasion):
    x = buffers.empty(LIKE, ROWS, 1024)
    del x
    clock.now += buffers.SECONDS - 1
    gc.collect()
    assert buffers.waiting_bytes() == buffers.SMALLEST
    clock.now += 2
    if occasion == "another call":
        gc.disable()
        held = buffers.empty(LIKE, 3 * ROWS, 1024)
        gc.enable()
        assert len(held)
    else:
        gc.collect()
    assert buffers.waiting_bytes() == 0


def test_a_much_larger_buffer_does_not_serve():
    address = buffers.empty(LIKE, 4 * ROWS, 1024).data_ptr()
    gc.collect()
    assert buffers.empty(LIKE, ROWS, 1024).data_ptr() != address


def test_memory_goes_back_to_the_system():
    """In a process of its own: 300 shapes kept 748 MB."""
    program = """
import gc, torch, fastdropout as fd
from fastdropout.recurrent import buffers

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before = resident()
for rows in range(300, 0, -1):
    buffers.empty(torch.zeros(0), 4 * rows, 2**10, 8).fill_(1)
peak = 4 * 300 * 2**15
assert buffers.waiting_bytes() <= peak, buffers.waiting_bytes()
fd.release_memory()
assert resident() - before < peak / 4, resident() - before
"""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc")
    subprocess.run([sys.executable, "-c", program], check=True)


@forks
def test_a_child_does_not_write_into_its_parents_tensors():
    x = buffers.empty(LIKE, ROWS, 1024).fill_(1.0)
    waits = buffers.empty(LIKE, ROWS, 1024)
    del waits
    gc.collect()
    child = os.fork()
    if child == 0:
        dropped = buffers.waiting_bytes() == 0
        x.fill_(2.0)
        buffers.empty(LIKE, ROWS, 1024).fill_(3.0)
        os._exit(0 if dropped else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (x == 1).all()
    assert buffers.waiting_bytes() == buffers.SMALLEST


MODEL = None


def passes(seed):
    """Several forward and backward passes in a worker, each as large as the buffers that are kept."""
    torch.set_num_threads(1)
    out = []
    for _ in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(60, 64, 20, generator=generator).requires_grad_()
        hidden, _ = MODEL(x)
        time.sleep(0.01)  # the others go on meanwhile
        (hidden.mean.sum() + hidden.var.sum()).backward()
        out.append((hidden.mean.double().sum().item(), hidden.var.double().sum().item(), x.grad.sum().item()))
    return out


@forks
def test_workers_of_a_forked_pool_compute_what_their_parent_does(monkeypatch):
    """The memory that waited in the parent was shared by all of them: 51 of 60 passes were wrong."""
    global MODEL
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    monkeypatch.setattr(buffers, "SMALLEST", 2**18)
    try:
        MODEL = fd.nn.RNN(20, 64, drop_input=0.1, drop_hidden=0.3)
        expected = [passes(seed) for seed in range(8)]
        assert buffers.waiting_bytes() > 0
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert pool.map(passes, range(8), chunksize=1) == expected
    finally:
        MODEL = None
        torch.set_num_threads(threads)
