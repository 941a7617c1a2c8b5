"""Music out of a trained network: what it predicts is drawn, and read again."""

from __future__ import annotations

import numpy as np
import torch

from fastdropout.functional import expected_logit
from fastdropout.moments import Moments
from fastdropout.music.data.rolls import KEYS, Roll
from fastdropout.music.training.evaluation import evaluating
from fastdropout.music.training.network import Network

MAX_FRAMES = 100_000


@torch.no_grad()
def generate(
    model: Network,
    frames: int = 64,
    *,
    prime: Roll | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Roll:
    """A piece of `frames` frames, the first ones those of `prime`, the others drawn one after the other.

    Each key is drawn for itself from its expected probability, whose logit is divided by `temperature`:
    below 1 the network is surer than it is, at 0 it takes what is more probable than not.
    """
    if not 1 <= frames <= MAX_FRAMES:
        raise ValueError(f"frames must lie in 1..{MAX_FRAMES}, got {frames}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    generator = torch.Generator().manual_seed(seed)
    roll = np.zeros((frames, KEYS), np.uint8)
    given = 0 if prime is None else min(len(prime), frames)
    if prime is not None:
        roll[:given] = prime[:given]
    state: Moments | None = None
    # A network that never saw the beginning of a piece is started by silence.
    heard = np.zeros((1, KEYS), np.uint8) if not given else roll[:given]
    with evaluating(model):
        for frame in range(given, frames):
            logits, state = model(torch.from_numpy(heard).float().unsqueeze(1), state)
            logit = expected_logit(logits[-1, 0])
            p = torch.sigmoid(logit / temperature) if temperature else (logit > 0).float()
            roll[frame] = (torch.rand(KEYS, generator=generator) < p).numpy()
            heard = roll[frame : frame + 1]
    return roll
