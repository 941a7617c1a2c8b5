"""Epochs a second of a real training: pieces of the size of MuseData, 600 units, the paper's optimiser."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import fastdropout as fd
from fastdropout.music.data.batches import batches, chunks

FRAMES, PIECES = 245_202, 524  # MuseData's training split


def measure(updates: int, units: int = 600, batch: int = 64) -> dict[str, Any]:
    """Where the time of `updates` updates goes."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    lengths = np.full(PIECES, FRAMES // PIECES)
    pieces = [(generator.random((n, 88)) < 0.05).astype(np.uint8) for n in lengths]
    cut = chunks(pieces)
    rnn, out = fd.nn.RNN(88, units, drop_input=0.2, drop_hidden=0.3), fd.nn.Linear(units, 88)
    parameters = [*rnn.parameters(), *out.parameters()]
    optimizer = fd.optim.RMSprop(parameters, 1e-4, momentum=0.9)
    seconds = {"data": 0.0, "forward and backward": 0.0, "clip": 0.0, "update": 0.0}
    done, per_epoch, began = 0, 0, time.perf_counter()
    torch.set_flush_denormal(True)
    while done < updates:
        mark = time.perf_counter()
        for item in batches(cut, batch, np.random.default_rng(done)):
            now = time.perf_counter()
            seconds["data"] += now - mark
            spent = [0.0, 0.0]

            def closure(item: Any = item, spent: list[float] = spent) -> torch.Tensor:
                start = time.perf_counter()
                optimizer.zero_grad()
                nll = fd.losses.bernoulli_nll(out(rnn(item.inputs)[0]), item.targets).sum(-1)
                loss = (nll * item.mask).sum() / item.mask.sum()
                loss.backward()
                spent[0] = time.perf_counter() - start
                fd.optim.clip_grad_norm_(parameters, 225.0)
                spent[1] = time.perf_counter() - start - spent[0]
                return loss

            optimizer.step(closure)
            mark = time.perf_counter()
            seconds["forward and backward"] += spent[0]
            seconds["clip"] += spent[1]
            seconds["update"] += mark - now - sum(spent)
            done += 1
            if done >= updates:
                break
    per_epoch = -(-len(cut.frames) // batch)
    total = time.perf_counter() - began
    return {
        "units": units,
        "batch": batch,
        "chunks": len(cut.frames),
        "updates": done,
        "updates_an_epoch": per_epoch,
        "epochs_a_second": done / per_epoch / total,
        "share": {name: value / total for name, value in seconds.items()},
    }
