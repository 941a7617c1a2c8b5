"""Our own recurrent layers on Bach's chorales: what sounds next? Random and trained, against masks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.integrate.cache import cached
from benchmarks.integrate.data import chorales
from benchmarks.integrate.measure import EXAMPLES, Truth, compare
from fastdropout import Moments

LAYERS = ("RNN", "LSTM", "GRU")
UNITS, UPDATES = 100, 1500
DROPS = {"default": (0.1, 0.1), "0.3": (0.3, 0.3)}


class Forecaster(nn.Module):
    """A recurrent layer and a linear output, both with dropout."""

    def __init__(self, layer: str, drops: tuple[float, float], method: str = "moments") -> None:
        super().__init__()
        self.rnn = getattr(fd.nn, layer)(88, UNITS, drop_input=drops[0], drop_hidden=drops[1], method=method)
        self.out = fd.nn.Linear(UNITS, 88, drop=drops[1], method=method)

    def forward(self, x: Tensor) -> Moments:
        """Moments of the logits of each frame."""
        return self.out(self.rnn(x)[0])


def train(model: Forecaster, x: Tensor, updates: int, seed: int) -> None:
    """Adam on the loss of the mean prediction: no masks."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(updates):
        piece = x[:, torch.randint(x.shape[1], (32,))]
        loss = nll(model, piece)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def nll(model: Forecaster, x: Tensor) -> Tensor:
    """Nats per frame."""
    return fd.losses.bernoulli_nll(model(x[:-1]), x[1:]).sum(-1).mean()


def without_dropout(layer: str) -> float:
    """The largest difference to torch's layer with the same weights, over its largest output."""
    torch.manual_seed(0)
    ours = Forecaster(layer, (0.0, 0.0))
    theirs = getattr(nn, layer)(88, UNITS)
    theirs.load_state_dict(ours.rnn.state_dict())
    x = chorales()[1][:, :EXAMPLES]
    with torch.no_grad():
        y = nn.functional.linear(theirs(x)[0], ours.out.weight, ours.out.bias)
        return ((ours(x).mean - y).abs().max() / y.abs().max()).item()


KEYS = torch.linspace(30, 58, 10).long()  # within the range of a choir


def sampled(model: Forecaster, layer: str, drops: tuple[float, float], masks: int, seed: int) -> Truth:
    """The logits of ten keys, of the last frame."""
    torch.manual_seed(seed)
    x = chorales()[1][:-1, :EXAMPLES]
    sampler = Forecaster(layer, drops, "mask")
    sampler.load_state_dict(model.state_dict())
    with torch.no_grad():
        draws = [
            sampler(x.repeat(1, 50, 1)).mean[-1][:, KEYS].unflatten(0, (50, EXAMPLES)).double()
            for _ in range(masks // 50)
        ]
    return Truth.of(torch.cat(draws))


def against_masks(model: Forecaster, truth: Truth) -> dict[str, Any]:
    """One row."""
    x = chorales()[1][:-1, :EXAMPLES]
    with torch.no_grad():
        diagonal = model(x)[-1][:, KEYS]
    traced = fd.integrate(lambda x: model(x)[-1][:, KEYS])(x)
    return compare(diagonal, traced, truth)


def rows(layer: str, masks: int, seed: int, folder: Path | None) -> dict[str, Any]:
    """All figures of a layer; for .3 the layer trained at .1 learns on."""
    found = []
    learned: dict[str, Tensor] | None = None
    for name, drops in DROPS.items():
        torch.manual_seed(seed)
        model = Forecaster(layer, drops)
        for weights in ("random", "trained"):
            config = {"masks": masks, "seed": seed, "updates": UPDATES, "examples": EXAMPLES, "units": UNITS}
            if weights == "trained" and learned is not None:
                model.load_state_dict(learned)
            updates = 0 if weights == "random" else UPDATES if learned is None else UPDATES // 2
            compute = partial(_prepare, model, layer, drops, updates, masks, seed)
            state, *truth = cached(f"fd.nn.{layer}-{name}-{weights}", config, compute, folder)
            model.load_state_dict(state)
            row = {"weights": weights, "drop": name, **against_masks(model, Truth(*truth))}
            if weights == "trained":
                learned = state
                with torch.no_grad():
                    row["test_loss"] = nll(model, chorales()[1]).item()
            found.append(row)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "no_dropout": without_dropout(layer),
        "updates": UPDATES,
        "rows": found,
    }


def _prepare(
    model: Forecaster, layer: str, drops: tuple[float, float], updates: int, masks: int, seed: int
) -> tuple[Any, ...]:
    train(model, chorales()[0], updates, seed)
    truth = sampled(model, layer, drops, masks, seed)
    return model.state_dict(), truth.mean, truth.std, truth.best_correlation
