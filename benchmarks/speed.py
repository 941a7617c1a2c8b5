"""A training step of the recurrent layer, and a prediction with uncertainty, against what else there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fastdropout as fd
from benchmarks.timing import medians

INPUTS, STEPS = 88, 100
DROPS = {"drop_input": 0.1, "drop_hidden": 0.2}


def products(batch: int, units: int) -> Callable[[], None]:
    """The matrix products of a moment RNN and nothing else: two a step each way, and those over all steps."""
    rows = STEPS * batch
    weights, w_in = torch.randn(2, units, units), torch.randn(2, INPUTS, units)
    state, x = torch.randn(2, rows, units), torch.randn(2, rows, INPUTS)
    pre, out = torch.empty(2, rows, units), torch.empty(2, batch, units)
    blocks = state.split(batch, 1)

    def run() -> None:
        torch.bmm(x, w_in, out=pre)
        for _ in range(2):  # forward and backward
            for block in blocks:
                torch.bmm(block, weights, out=out)
        torch.bmm(pre.transpose(1, 2), state)
        torch.bmm(pre.transpose(1, 2), x)

    return run


def contestants(batch: int, units: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward of everything that trains; `predict` ones forward only, without gradients."""
    torch.manual_seed(0)
    x = (torch.rand(STEPS, batch, INPUTS) < 0.05).float()
    gradient = torch.randn(STEPS, batch, units)
    fused = fd.nn.RNN(INPUTS, units, **DROPS)
    mask, gaussian = (fd.nn.RNN(INPUTS, units, method=method, **DROPS) for method in ("mask", "gaussian"))
    reference = fd.nn.RNN(INPUTS, units, fused=False, **DROPS)
    plain, lstm = torch.nn.RNN(INPUTS, units), torch.nn.LSTM(INPUTS, units)
    recompute = fd.nn.RNN(INPUTS, units, recompute=True, **DROPS)

    def train_moments(rnn: fd.nn.RNN) -> None:
        y, _ = rnn(x)
        torch.autograd.backward([y.mean, y.var], [gradient, gradient])

    def train_plain(rnn: torch.nn.Module) -> None:
        rnn(x)[0].backward(gradient)

    @torch.no_grad()
    def monte_carlo(masks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance from `masks` passes at the speed of `torch.nn.RNN`; only the input is masked."""
        mean, square = torch.zeros(()), torch.zeros(())
        for _ in range(masks):
            y = plain(fd.functional.mask(x, 0.1))[0]
            mean, square = mean + y, square + y**2
        return mean / masks, square / masks - (mean / masks) ** 2

    @torch.no_grad()
    def predict() -> None:
        fused(x)

    return {
        "fused": lambda: train_moments(fused),
        "torch.nn.RNN": lambda: train_plain(plain),
        "torch.nn.LSTM": lambda: train_plain(lstm),
        "products": products(batch, units),
        "naive": lambda: train_moments(reference),
        "recompute": lambda: train_moments(recompute),
        "mask": lambda: mask(x)[0].mean.backward(gradient),
        "gaussian": lambda: gaussian(x)[0].mean.backward(gradient),
        "draws": lambda: torch.rand(STEPS * batch, units),
        "predict: moments": predict,
        "predict: 10 masks": lambda: monte_carlo(10),
        "predict: 50 masks": lambda: monte_carlo(50),
    }


RATIOS = (
    ("fused", "torch.nn.RNN"),
    ("fused", "torch.nn.LSTM"),
    ("fused", "products"),
    ("naive", "fused"),
    ("predict: moments", "predict: 10 masks"),
    ("predict: moments", "predict: 50 masks"),
)


def measure(batch: int, units: int, rounds: int, patience: float) -> dict[str, Any]:
    """One row of the table; what took longer than `patience` seconds is left out."""
    seconds = medians(contestants(batch, units), rounds, patience)
    ratios = {f"{a} / {b}": seconds[a] / seconds[b] for a, b in RATIOS if a in seconds and b in seconds}
    ms = {name: 1000 * value for name, value in seconds.items()}
    return {"batch": batch, "units": units, "steps": STEPS, "milliseconds": ms, "ratios": ratios}
