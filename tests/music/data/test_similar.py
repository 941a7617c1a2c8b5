import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastdropout.music.data import similar as module
from fastdropout.music.data.batches import batches, chunks, transposed, whole_pieces
from fastdropout.music.data.similar import DECAYS, SHARPNESSES, Similar, similar, width

F = 3
BLOCKS = len(DECAYS) * len(SHARPNESSES)


def piece_of(steps, seed=0, features=F, share=0.3):
    return (np.random.default_rng(seed).random((steps, features)) < share).astype(np.uint8)


def by_definition(piece, reach=10**9):
    """The sums of the module's docstring, term by term, in float64."""
    out = np.zeros((len(piece), BLOCKS, piece.shape[1] + 1))

    def jaccard(a, b):
        either = (a | b).sum()
        return (a & b).sum() / either if either else 1.0

    for t in range(len(piece)):
        moments = range(max(0, t - reach), t)
        if not moments:
            continue
        for i, decay in enumerate(DECAYS):
            scores = [
                (1 - decay) * sum(decay**k * jaccard(piece[t - k], piece[s - k]) for k in range(s + 1))
                for s in moments
            ]
            for j, sharpness in enumerate(SHARPNESSES):
                w = np.exp(sharpness * (np.array(scores) - 1))
                w /= w.sum()
                block = out[t, i * len(SHARPNESSES) + j]
                block[:-1] = sum(w[n] * piece[s + 1] for n, s in enumerate(moments))
                block[-1] = w @ scores
    return out.reshape(len(piece), -1)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10_000))
def test_blocks_of_rows_give_the_sums(steps, features, seed):
    piece = piece_of(steps, seed, features)
    assert similar(piece) == pytest.approx(by_definition(piece), abs=1e-3)


@pytest.mark.parametrize("rows", [1, 7, 256])
@pytest.mark.parametrize("reach", [1, 5, 12, 40])
def test_moments_beyond_the_reach_are_forgotten(monkeypatch, rows, reach):
    monkeypatch.setattr(module, "REACH", reach)
    monkeypatch.setattr(module, "_ROWS", rows)
    piece = piece_of(40, 3)
    expected = by_definition(piece, reach)
    assert similar(piece) == pytest.approx(expected, abs=1e-3)
    memory = Similar(F)
    assert np.stack([memory.hear(frame) for frame in piece]) == pytest.approx(expected, abs=1e-3)


def test_a_page_with_a_wrong_note_is_still_recognised():
    page = piece_of(40, 1, 20, 0.3)
    again = page.copy()
    again[10, 0] ^= 1
    memory = similar(np.concatenate([page, again])).reshape(80, BLOCKS, 21)
    sharpest = memory[40 + 20 : -1, -1]
    assert (sharpest[:, :-1] > 0.5).mean(0) == pytest.approx(page[21:].mean(0), abs=0.1)
    assert ((sharpest[:, :-1] > 0.5) == page[21:]).mean() > 0.95
    assert sharpest[:, -1].min() > 0.8


def test_what_comes_later_changes_nothing_before():
    piece = piece_of(60, 2)
    before = similar(piece)
    for t in (1, 17, 40, 58):
        other = piece.copy()
        other[t:] = piece_of(60 - t, 3)
        assert similar(other)[:t] == pytest.approx(before[:t], abs=1e-3)


def test_whole_pieces_and_chunks_hold_it_after_the_exact_memory():
    pieces = [piece_of(n, n) for n in (25, 8)]
    both = list(whole_pieces(pieces, batch_size=1, memory=True, similar=True))
    alone = list(whole_pieces(pieces, batch_size=1, similar=True))
    exact = list(whole_pieces(pieces, batch_size=1, memory=True))
    for a, b, c, piece in zip(both, alone, exact, pieces, strict=True):
        assert a.inputs[:, 0, -width(F) :].numpy() == pytest.approx(similar(piece)[:-1])
        assert torch.equal(a.inputs, torch.cat([c.inputs, b.inputs[..., F:]], -1))
    cut = chunks(pieces, 10, memory=True, similar=True, pad="end")
    batch = next(batches(cut, 10))
    assert batch.inputs[:, 1, -width(F) :].numpy() == pytest.approx(similar(pieces[0])[10:19])
    assert batch.inputs.shape[-1] == exact[0].inputs.shape[-1] + width(F)
    # Padding remembers nothing.
    assert not batch.inputs[~batch.mask][:, F:].any()


@pytest.mark.parametrize("pad", ["front", "end"])
@pytest.mark.parametrize("score_first", [False, True])
def test_a_carried_chunk_looks_back_over_the_whole_piece(pad, score_first):
    piece = piece_of(23, 5)
    cut = chunks([piece], 6, carry=True, pad=pad, score_first=score_first, similar=True)
    seen = torch.cat([batch.inputs[batch.mask] for batch in batches(cut, 1)])
    heard = seen[1:] if score_first else seen
    if score_first:
        assert not seen[0].any()
    assert heard[:, F:].numpy() == pytest.approx(similar(piece)[:-1])


def test_transposed_pieces_have_transposed_memories():
    piece = np.zeros((40, 20), np.uint8)
    piece[:, 5:15] = piece_of(40, 4, 10, 0.1)
    batch = next(whole_pieces([piece], memory=True, similar=True))
    for by in (-5, 3, 5):
        expected = next(whole_pieces([np.roll(piece, by, 1)], memory=True, similar=True))
        torch.testing.assert_close(transposed(batch, [by]).inputs, expected.inputs, atol=1e-3, rtol=0)
