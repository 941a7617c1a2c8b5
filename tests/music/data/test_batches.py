from collections import Counter

import numpy as np
import pytest
import torch

from fastdropout.errors import DataError
from fastdropout.music.data.batches import batches, chunks, count_batches, whole_pieces
from fastdropout.music.data.canonical import load_canonical

LENGTHS = (7, 1, 2, 30, 10, 11, 20, 21, 45)


def piece(number, steps):
    """Every frame tells which piece and which frame it is: ten bits each, the first key always on."""
    roll = np.zeros((steps, 88), np.uint8)
    roll[:, 0] = 1
    for bit in range(10):
        roll[:, 1 + bit] = number >> bit & 1
        roll[:, 21 + bit] = np.arange(steps) >> bit & 1
    return roll


def identify(frame):
    """(piece, frame), or None for a frame of zeros."""
    bits = frame.to(torch.int64)
    if not bits.any():
        return None
    powers = 2 ** torch.arange(10)
    return int((bits[1:11] * powers).sum()), int((bits[21:31] * powers).sum())


PIECES = [piece(number, steps) for number, steps in enumerate(LENGTHS)]
ALL = {(number, step) for number, steps in enumerate(LENGTHS) for step in range(steps)}


def scored(epoch):
    """How often each frame is a target under the mask; checks what every batch must fulfil."""
    counts = Counter()
    for batch in epoch:
        steps, rows, _ = batch.inputs.shape
        assert batch.inputs.dtype == batch.targets.dtype == torch.float32
        assert batch.mask.dtype == batch.fresh.dtype == torch.bool
        assert batch.targets.shape == batch.inputs.shape
        assert batch.mask.shape == (steps, rows)
        assert batch.fresh.shape == batch.pieces.shape == (rows,)
        torch.testing.assert_close(batch.inputs[1:], batch.targets[:-1])
        for step, row in batch.mask.nonzero().tolist():
            number, at = identify(batch.targets[step, row])
            assert number == batch.pieces[row]
            # The input of a frame is the one before it, and zeros for the first.
            assert identify(batch.inputs[step, row]) == ((number, at - 1) if at else None)
            counts[number, at] += 1
        for row in (batch.pieces < 0).nonzero()[0]:
            assert not batch.mask[:, row].any()
            assert not batch.inputs[:, row].any()
    return counts


FIRST = {(number, 0) for number in range(len(LENGTHS))}


pads = pytest.mark.parametrize("pad", ["front", "end"])


@pads
@pytest.mark.parametrize("score_first", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_chunks_lose_the_frame_at_each_border(batch_size, score_first, pad):
    cut = chunks(PIECES, 10, score_first=score_first, pad=pad)
    counts = scored(batches(cut, batch_size, np.random.default_rng(0)))
    # The zeros before a piece move its borders by one.
    borders = {(n, s) for n, s in ALL if (s + score_first) % 10 == 0}
    assert set(counts) == ALL - borders
    assert set(counts.values()) == {1}
    assert cut.scored.sum() == len(ALL - borders)
    assert cut.steps == 9


@pytest.mark.parametrize("score_first", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 100])
@pytest.mark.parametrize("pad", [None, "front", "end"])
def test_carry_and_whole_pieces_score_every_frame_once(batch_size, score_first, pad):
    if pad is None:
        epoch = whole_pieces(PIECES, batch_size, score_first=score_first)
    else:
        cut = chunks(PIECES, 10, carry=True, score_first=score_first, pad=pad)
        epoch = batches(cut, batch_size, np.random.default_rng(0))
    counts = scored(epoch)
    assert set(counts) == (ALL if score_first else ALL - FIRST)
    assert set(counts.values()) == {1}


def test_zeros_stand_in_front_or_at_the_end():
    (batch,) = batches(chunks([PIECES[0]], 10), 1)
    assert [identify(frame) for frame in batch.inputs[:, 0]] == [None] * 3 + [(0, s) for s in range(6)]
    assert batch.mask[:, 0].tolist() == [False] * 3 + [True] * 6
    (batch,) = batches(chunks([PIECES[0]], 10, pad="end"), 1)
    assert [identify(frame) for frame in batch.inputs[:, 0]] == [(0, s) for s in range(7)] + [None] * 2
    assert batch.mask[:, 0].tolist() == [True] * 6 + [False] * 3


def test_a_piece_as_long_as_a_chunk_has_no_padding():
    (batch,) = batches(chunks([PIECES[4]], 10), 1)
    assert batch.mask.all()
    (batch,) = batches(chunks([PIECES[5]], 10, carry=True), 1)
    assert batch.mask.all()


@pads
@pytest.mark.parametrize("score_first", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_carried_rows_go_on_where_they_stopped(score_first, shuffled, pad):
    cut = chunks(PIECES, 10, carry=True, score_first=score_first, pad=pad)
    rng = np.random.default_rng(1) if shuffled else None
    last = {}
    started = Counter()
    for batch in batches(cut, 3, rng):
        for row, number in enumerate(batch.pieces.tolist()):
            if number < 0:
                assert batch.fresh[row]
                continue
            first_input = identify(batch.inputs[0, row])
            if batch.fresh[row]:
                started[number] += 1
                # Nothing real was left out before: the chunk starts with padding or the piece itself.
                assert first_input in (None, (number, 0))
            else:
                assert batch.mask[:, row].all() if pad == "front" else batch.mask[0, row]
                assert first_input == last[row]
            last[row] = identify(batch.targets[-1, row])
    assert set(started.values()) == {1}


def test_carried_rows_are_of_nearly_equal_length():
    rng = np.random.default_rng(0)
    pieces = [np.ones((int(n), 88), np.uint8) for n in rng.integers(20, 3000, 300)]
    cut = chunks(pieces, 100, carry=True)
    assert count_batches(cut, 32) <= 1.05 * len(cut) / 32 + 1


@pytest.mark.parametrize("carry", [False, True])
def test_the_number_of_batches(carry):
    cut = chunks(PIECES, 10, carry=carry)
    for size in (1, 2, 5, 50):
        for seed in (None, 1, 2):
            rng = None if seed is None else np.random.default_rng(seed)
            assert len(list(batches(cut, size, rng))) == count_batches(cut, size)


def same(a, b):
    return all(
        torch.equal(x, y)
        for one, two in zip(a, b, strict=True)
        for x, y in zip((one.inputs, one.mask, one.fresh), (two.inputs, two.mask, two.fresh), strict=True)
    )


@pytest.mark.parametrize("carry", [False, True])
def test_the_order_is_the_generators(carry):
    cut = chunks([piece(n, 30 + n) for n in range(20)], 10, carry=carry)

    def epoch(seed):
        return list(batches(cut, 4, np.random.default_rng(seed)))

    assert same(epoch(1), epoch(1))
    assert not same(epoch(1), epoch(2))
    generator = np.random.default_rng(1)
    assert not same(list(batches(cut, 4, generator)), list(batches(cut, 4, generator)))
    state = torch.random.get_rng_state()
    epoch(3)
    assert torch.equal(torch.random.get_rng_state(), state), "only the given generator may be used"


def test_whole_pieces_are_padded_at_the_end_and_bounded():
    seen = []
    for batch in whole_pieces(PIECES, 4, max_frames=70):
        steps, rows, _ = batch.inputs.shape
        assert rows == 1 or (steps + 1) * rows <= 70
        lengths = batch.mask.sum(0)
        for row, number in enumerate(batch.pieces):
            assert lengths[row] == LENGTHS[number] - 1
            assert batch.mask[: lengths[row], row].all()
            seen.append(int(number))
    assert sorted(seen) == [n for n, steps in enumerate(LENGTHS) if steps > 1]
    assert [LENGTHS[n] for n in seen] == sorted((s for s in LENGTHS if s > 1), reverse=True)


def nll(network, batch):
    """Summed negative log-likelihood of the scored frames, from a network that has a state."""
    hidden, _ = network(batch.inputs)
    frames = torch.nn.functional.binary_cross_entropy_with_logits(
        hidden[..., :88], batch.targets, reduction="none"
    ).sum(-1)
    return float(frames[batch.mask].double().sum()), int(batch.mask.sum())


@pytest.mark.parametrize("score_first", [False, True])
def test_batched_evaluation_equals_one_piece_after_the_other(score_first):
    torch.manual_seed(0)
    network = torch.nn.RNN(88, 90)
    with torch.no_grad():
        together = [nll(network, batch) for batch in whole_pieces(PIECES, 4, score_first=score_first)]
        alone = [nll(network, b) for p in PIECES for b in whole_pieces([p], score_first=score_first)]
    assert sum(n for _, n in together) == sum(n for _, n in alone)
    assert sum(x for x, _ in together) == pytest.approx(sum(x for x, _ in alone), rel=1e-6)


@pytest.mark.parametrize(("steps", "pad"), [(41, "front"), (41, "end"), (44, "end")])
def test_carrying_the_state_equals_reading_the_piece_in_one_go(steps, pad):
    torch.manual_seed(0)
    network = torch.nn.RNN(88, 90)
    # Forty predictions have no padding, whose zeros in front would move the state.
    whole = piece(3, steps)
    with torch.no_grad():
        (batch,) = whole_pieces([whole])
        expected, _ = network(batch.inputs)
        state, parts = None, []
        for part in batches(chunks([whole], 10, carry=True, pad=pad), 1):
            state = None if part.fresh.all() else state
            out, state = network(part.inputs, state)
            parts.append(out)
    torch.testing.assert_close(torch.cat(parts)[: steps - 1], expected)


def test_bad_sizes_are_refused():
    with pytest.raises(DataError, match="length"):
        chunks(PIECES, 1)
    with pytest.raises(DataError, match="batch_size"):
        next(batches(chunks(PIECES, 10), 0))


def test_musedata_is_small(data_dir):
    corpus = load_canonical("musedata", data_dir)
    cut = chunks(corpus.train)
    assert cut.frames.dtype == np.uint8
    assert cut.frames.nbytes + cut.scored.nbytes < 30 << 20
    targets = sum(int(batch.mask.sum()) for batch in batches(cut, 64, np.random.default_rng(0)))
    frames = [len(p) for p in corpus.train]
    assert targets == sum(frames) - sum(-(-n // 100) for n in frames)
    assert max(b.inputs.numel() for b in whole_pieces(corpus.test)) <= 20_000 * 88
