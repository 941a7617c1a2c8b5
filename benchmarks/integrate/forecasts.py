"""Forecasts whose predictions are fed back: `python -m benchmarks.integrate forecasts`.

Cells of torch and of ours learn noisy sine waves, then forecast 20 steps from their own predictions. The
truth are simulations, with new masks in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.integrate.measure import Truth, correlation
from benchmarks.record import RESULTS, write
from fastdropout import Moments
from fastdropout.integration import Sampled

GIVEN, AHEAD, UNITS, DROP = 20, 20, 32, 0.1
UPDATES, EXAMPLES = 250, 8


class Forecaster(nn.Module):
    """A cell and a linear output; `drop` is of the hidden units, towards the output and the next step."""

    def __init__(self, cell: nn.Module, out: nn.Module, drop: nn.Module | None = None) -> None:
        super().__init__()
        self.cell, self.out, self.drop = cell, out, drop or nn.Identity()

    def forward(self, x: Tensor, ahead: int = 0) -> Any:
        """The prediction after each step, shape (examples, steps); the last `ahead` are fed back."""
        state: Any = None
        found: list[Any] = []
        for step in range(x.shape[1] + ahead):
            given = x[:, step : step + 1] if step < x.shape[1] else found[-1]
            state = self.cell(given, state)
            two = isinstance(state, tuple)
            hidden = self.drop(state[0] if two else state)
            state = (hidden, state[1]) if two else hidden
            found.append(self.out(hidden))
        return torch.cat(found, 1)

    def forecast(self, x: Tensor) -> Any:
        """The steps that are fed back."""
        return self(x, AHEAD)[:, -AHEAD:]


def torchs(cell: Callable[..., nn.Module]) -> Forecaster:
    return Forecaster(cell(1, UNITS), nn.Linear(UNITS, 1), nn.Dropout(DROP))


def ours(cell: Callable[..., nn.Module]) -> Forecaster:
    return Forecaster(cell(1, UNITS, drop_hidden=DROP), fd.nn.Linear(UNITS, 1, drop=DROP))


MODELS: dict[str, Callable[[], Forecaster]] = {
    "nn.RNNCell": lambda: torchs(nn.RNNCell),
    "nn.LSTMCell": lambda: torchs(nn.LSTMCell),
    "nn.GRUCell": lambda: torchs(nn.GRUCell),
    "fd.nn.RNNCell": lambda: ours(fd.nn.RNNCell),
    "fd.nn.LSTMCell": lambda: ours(fd.nn.LSTMCell),
    "fd.nn.GRUCell": lambda: ours(fd.nn.GRUCell),
}


def waves(count: int, steps: int, seed: int) -> Tensor:
    """Noisy sine waves of any phase."""
    generator = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    noise = 0.05 * torch.randn(count, steps, generator=generator)
    return torch.sin(0.3 * torch.arange(steps) + phase) + noise


def trained(name: str, updates: int, seed: int) -> tuple[Forecaster, float]:
    """The network, and its last loss: torch's learn with masks, ours without."""
    torch.manual_seed(seed)
    model, x = MODELS[name](), waves(32, 31, seed)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(updates):
        if name.startswith("fd."):
            with fd.integrate(trace=False):
                y = model(x[:, :-1])
            loss = ((y.mean - x[:, 1:]) ** 2 + y.var).mean()
        else:
            loss = ((model(x[:, :-1]) - x[:, 1:]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), loss.item()


@torch.no_grad()
def simulated(model: Forecaster, x: Tensor, masks: int, seed: int) -> Truth:
    """All simulations as one batch."""
    torch.manual_seed(seed)
    with Sampled():
        y = model.forecast(x.repeat(masks, 1))
    y = y.mean if isinstance(y, Moments) else y
    return Truth.of(y.unflatten(0, (masks, len(x))).double())


def compare(model: Forecaster, x: Tensor, truth: Truth) -> dict[str, Any]:
    """Predicted over simulated standard deviations, averaged over the examples."""
    with torch.no_grad(), fd.integrate(trace=False):
        diagonal = model.forecast(x)
    traced = fd.integrate(model.forecast)(x)
    steps = traced.std.mean(0) / truth.std.mean(0)
    return {
        "diagonal": (diagonal.std.mean() / truth.std.mean()).item(),
        "traced": (traced.std.mean() / truth.std.mean()).item(),
        "by_step": steps.tolist(),
        "correlation": correlation(traced.std, truth.std),
        "true_first": truth.std[:, 0].mean().item(),
        "true_last": truth.std[:, -1].mean().item(),
        "mean_error": ((traced.mean - truth.mean).abs().mean() / truth.std.mean()).item(),
    }


def main(masks: int, seed: int) -> None:
    """Measure and write `results/integrate/forecasts.json`."""
    x = waves(EXAMPLES, GIVEN, seed + 1)
    rows = []
    for name in MODELS:
        model, loss = trained(name, UPDATES, seed)
        row = {"network": name, "loss": loss, **compare(model, x, simulated(model, x, masks, seed))}
        rows.append(row)
        low, high = min(row["by_step"]), max(row["by_step"])
        print(f"{name:15} traced {row['traced']:.3f} (steps {low:.2f} to {high:.2f})", flush=True)
    config = {"masks": masks, "seed": seed, "updates": UPDATES, "examples": EXAMPLES, "drop": DROP}
    config |= {"given": GIVEN, "ahead": AHEAD, "units": UNITS}
    path = RESULTS / "integrate" / "forecasts.json"
    print("wrote", write(path, "python -m benchmarks.integrate forecasts", config, {"rows": rows}))
