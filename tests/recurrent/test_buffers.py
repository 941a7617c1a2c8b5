import gc

import pytest
import torch

from fastdropout.recurrent import buffers

LIKE = torch.zeros(0)
ROWS = buffers.SMALLEST // 4 // 1024


@pytest.fixture(autouse=True)
def _nothing_waits():
    gc.collect()
    buffers.release()
    yield
    buffers.release()


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


def test_a_much_larger_buffer_does_not_serve():
    address = buffers.empty(LIKE, 4 * ROWS, 1024).data_ptr()
    gc.collect()
    assert buffers.empty(LIKE, ROWS, 1024).data_ptr() != address
