"""How good a network is: nats per frame, by piece and by frame, and whether its probabilities are true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastdropout.moments import Moments
from fastdropout.music.data.batches import Batch, whole_pieces
from fastdropout.music.data.rolls import Piece
from fastdropout.music.training.network import Network
from fastdropout.music.training.outputs import Loss, Prediction
from fastdropout.music.training.outputs.base import BINS

WINDOW = 256
"""Steps run at a time, the state carried on: memory does not depend on the length of a piece."""


@dataclass(frozen=True)
class Calibration:
    """Of the notes given a probability within a bin, how many sounded.

    Of real values: below the quantile of each bin's middle, how many of them lie.
    """

    edges: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]
    mean_probability: npt.NDArray[np.float64]
    """Of the predictions in each bin; NaN where there are none."""
    frequency: npt.NDArray[np.float64]
    """Share of them that sounded; NaN where there are none."""

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of probability and frequency over all notes."""
        used = self.count > 0
        gap = np.abs(self.mean_probability[used] - self.frequency[used])
        return float((gap * self.count[used]).sum() / self.count.sum())


@dataclass(frozen=True)
class Evaluation:
    """Results on the whole pieces of a split."""

    nll_per_step: float
    """Nats per frame, summed over keys, averaged over all scored frames (not over pieces)."""
    frames: int
    by_piece: npt.NDArray[np.float64]
    """`nll_per_step` of each piece, in their order; NaN where nothing is scored."""
    piece_frames: npt.NDArray[np.int64]
    by_frame: tuple[npt.NDArray[np.float32], ...]
    """Nats of each scored frame, an array for each piece."""
    calibration: Calibration

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; NaN becomes None."""
        table = self.calibration
        return {
            "nll_per_step": self.nll_per_step,
            "frames": self.frames,
            "calibration_error": table.error,
            "by_piece": _plain(self.by_piece),
            "piece_frames": self.piece_frames.tolist(),
            "calibration": {
                "edges": table.edges.tolist(),
                "count": table.count.tolist(),
                "mean_probability": _plain(table.mean_probability),
                "frequency": _plain(table.frequency),
            },
        }


@torch.no_grad()
def evaluate(
    model: Network, pieces: Sequence[Piece], *, score_first: bool = False, loss: Loss = "mean"
) -> Evaluation:
    """Run whole pieces through `model` in evaluation mode."""
    by_frame = [np.zeros(0, np.float32) for _ in pieces]
    tally = np.zeros((3, BINS))  # count, sum of probabilities, number that sounded
    with evaluating(model):
        memories = {"memory": model.memory, "similar": model.similar}
        for batch in whole_pieces(pieces, score_first=score_first, **memories):
            parts: list[Tensor] = []
            for prediction, window in windows(model, batch):
                output, parameters = prediction.output, prediction.parameters(window.targets)
                parts.append(output.nll(parameters, window.targets, loss))
                tally += output.tally(parameters, window.targets, window.mask).numpy()
            nll = torch.cat(parts)
            for row, piece in enumerate(batch.pieces):
                by_frame[piece] = nll[:, row][batch.mask[:, row]].numpy().astype(np.float32)
    sums = np.array([frames.sum(dtype=np.float64) for frames in by_frame])
    counts = np.array([len(frames) for frames in by_frame], np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        table = Calibration(
            np.linspace(0, 1, BINS + 1), tally[0].astype(np.int64), tally[1] / tally[0], tally[2] / tally[0]
        )
        by_piece = sums / counts
    total = int(counts.sum())
    nll_per_step = float(sums.sum() / total) if total else float("nan")
    return Evaluation(nll_per_step, total, by_piece, counts, tuple(by_frame), table)


@torch.no_grad()
def mean_nll(model: Network, batches: Iterable[Batch], loss: Loss = "mean") -> float:
    """`nll_per_step` over batches, each row going on from the batch before unless it is fresh."""
    total, frames = 0.0, 0
    last: Moments | None = None
    with evaluating(model):
        for batch in batches:
            first = carried(last, batch.fresh)
            nll, last = model.score(batch.inputs, batch.targets, batch.mask, first, loss)
            total += float(nll.double().sum())
            frames += int(batch.mask.sum())
    return total / frames if frames else float("nan")


def carried(last: Moments | None, fresh: Tensor) -> Moments | None:
    """The state that a batch starts with: that of the batch before, zero in the rows that are fresh."""
    if last is None or bool(fresh.all()):
        return None
    return last.detach() * (~fresh).to(last.dtype)[None, :, None]


def windows(model: Network, batch: Batch, steps: int = WINDOW) -> Iterator[tuple[Prediction, Batch]]:
    """Run a batch of whole pieces a window at a time."""
    state: Moments | None = None
    for start in range(0, len(batch.inputs), steps):
        part = slice(start, start + steps)
        window = Batch(batch.inputs[part], batch.targets[part], batch.mask[part], batch.fresh, batch.pieces)
        prediction, state = model(window.inputs, state)
        yield prediction, window


@torch.no_grad()
def expected_frames(model: Network, piece: Piece) -> Moments:
    """What was expected of each frame of a piece but the first: `[steps - 1, features]`.

    Moments of the probability, or of the value, of each feature; where a frame's features depend on one
    another, given those before it in the frame.
    """
    with evaluating(model):
        batch = next(whole_pieces([piece], memory=model.memory, similar=model.similar))
        return Moments.cat([found.expected(window.targets)[:, 0] for found, window in windows(model, batch)])


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and afterwards back into the mode it was in."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def _plain(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
