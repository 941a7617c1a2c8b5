import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastdropout.music.data.batches import batches, chunks, transposed, whole_pieces
from fastdropout.music.data.memory import LEVELS, Memory, recall, width

F = 3


def piece_of(steps, seed=0, features=F, share=0.3):
    return (np.random.default_rng(seed).random((steps, features)) < share).astype(np.uint8)


def by_definition(piece):
    """What followed the last earlier time that the last n frames occurred, and whether there was one."""
    out = np.zeros((len(piece), len(LEVELS), piece.shape[1] + 1), np.uint8)
    for t in range(len(piece)):
        for level, n in enumerate(LEVELS):
            for s in range(t - 1, n - 2, -1):
                if t + 1 >= n and (piece[s - n + 1 : s + 1] == piece[t - n + 1 : t + 1]).all():
                    out[t, level, :-1], out[t, level, -1] = piece[s + 1], 1
                    break
    return out.reshape(len(piece), -1)


def remembered(piece):
    """As a batch has it, for all steps but the last."""
    batch = next(whole_pieces([piece], memory=True))
    assert (batch.inputs[:, 0, : piece.shape[1]].numpy() == piece[:-1]).all()
    return batch.inputs[:, 0, piece.shape[1] :].numpy()


@given(st.integers(2, 70), st.integers(1, 4), st.integers(0, 10_000))
def test_hashing_finds_what_searching_finds(steps, features, seed):
    piece = piece_of(steps, seed, features)
    assert (remembered(piece) == by_definition(piece)[:-1]).all()


def test_a_repeated_page_is_remembered_at_every_level():
    page = piece_of(30, 1, 8, 0.5)
    piece = np.concatenate([page, page])
    memory = by_definition(piece).reshape(60, len(LEVELS), -1)
    assert memory[30 + 16 :, :, -1].all()
    assert (memory[30 + 16 : -1, -1, :-1] == piece[30 + 17 :]).all()
    assert (remembered(piece) == memory.reshape(60, -1)[:-1]).all()


def test_what_comes_later_changes_nothing_before():
    piece = piece_of(60, 2)
    before = remembered(piece)
    for t in (1, 17, 40, 58):
        other = piece.copy()
        other[t:] = piece_of(60 - t, 3)
        assert (remembered(other)[:t] == before[:t]).all()
        assert (recall(other)[:t] <= np.arange(t)[:, None]).all()


def test_frame_by_frame_is_the_same():
    for seed in range(5):
        piece = piece_of(50, seed)
        memory = Memory(F)
        assert (np.stack([memory.hear(frame) for frame in piece]) == by_definition(piece)).all()


@pytest.mark.parametrize("pad", ["front", "end"])
@pytest.mark.parametrize("score_first", [False, True])
@pytest.mark.parametrize("carry", [False, True])
def test_chunks_look_back_over_the_whole_piece(carry, score_first, pad):
    pieces = [piece_of(n, n) for n in (37, 3, 20, 21)]
    options = {"carry": carry, "score_first": score_first, "pad": pad}
    cut = chunks(pieces, 10, memory=True, **options)
    # Pieces of the same lengths that are cut alike, in which every frame spells its number, counted from 1.
    bits = 2 ** np.arange(6)
    numbered = [(np.arange(1, len(p) + 1)[:, None] & bits > 0).astype(np.uint8) for p in pieces]
    known, met = [by_definition(piece) for piece in pieces], set()
    order = [np.random.default_rng(0) for _ in range(2)]
    for batch, tags in zip(
        batches(cut, 3, order[0]), batches(chunks(numbered, 10, **options), 3, order[1]), strict=True
    ):
        assert batch.inputs.shape[-1] == F + width(F)
        assert not batch.inputs[~batch.mask][:, F:].any()
        which = tags.inputs.numpy() @ bits - 1
        for row, number in enumerate(batch.pieces):
            for step in np.flatnonzero(batch.mask[:, row]):
                t = int(which[step, row])
                met.add((int(number), t))
                expected = known[number][t] if t >= 0 else np.zeros(width(F))
                assert (batch.inputs[step, row, F:].numpy() == expected).all()
    if carry:
        assert {(n, t) for n, p in enumerate(pieces) for t in range(len(p) - 1)} <= met


def test_the_frame_of_zeros_before_a_piece_is_not_heard():
    piece = np.zeros((4, F), np.uint8)
    batch = next(whole_pieces([piece], score_first=True, memory=True))
    found = batch.inputs[:, 0, F:].reshape(4, len(LEVELS), F + 1)[:, :, -1]
    # Read are: silence, then frames 0, 1, 2, of which 1 is the first that was heard before.
    assert found[:, 0].tolist() == [0, 0, 1, 1]


def test_transposed_pieces_have_transposed_memories():
    piece = np.zeros((40, 20), np.uint8)
    piece[:, 5:15] = piece_of(40, 4, 10, 0.1)
    batch = next(whole_pieces([piece], memory=True))
    for by in (-5, 0, 3, 5):
        moved = transposed(batch, [by])
        expected = next(whole_pieces([np.roll(piece, by, 1)], memory=True))
        assert torch.equal(moved.inputs, expected.inputs)
        assert torch.equal(moved.targets, expected.targets)
    # Notes that leave the range are lost, in the memory too; that it was found stays.
    far = transposed(batch, [18])
    assert not far.inputs[:, 0, :18].any()
    found = [x.inputs[:, 0, 20:].reshape(39, len(LEVELS), 21)[..., -1] for x in (far, batch)]
    assert torch.equal(*found)


def test_rows_of_padding_remember_nothing():
    pieces = [piece_of(31, 1), piece_of(11, 2)]
    cut = chunks(pieces, 10, carry=True, memory=True)
    last = list(batches(cut, 2))[-1]
    assert (last.pieces == -1).any()
    assert not last.inputs[:, last.pieces == -1].any()
