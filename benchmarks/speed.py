"""A training step of the recurrent layers, and a prediction with uncertainty, against what else there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import fastdropout as fd
from benchmarks.timing import medians

INPUTS, STEPS = 88, 100
DROPS = {"drop_input": 0.1, "drop_hidden": 0.2}
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def products(batch: int, units: int, gates: int = 1, layers: int = 1) -> Callable[[], None]:
    """The matrix products of a moment layer, nothing else: two a step each way, and those over all steps."""
    rows, wide = STEPS * batch, gates * units
    weights, back = torch.randn(2, units, wide), torch.randn(2, wide, units)
    state, pre = torch.randn(2, rows, units), torch.empty(2, rows, wide)
    out, out_back = torch.empty(2, batch, wide), torch.empty(2, batch, units)
    blocks, gradients = state.split(batch, 1), torch.randn(2, rows, wide).split(batch, 1)

    def run_layer(inputs: int, first: bool) -> Callable[[], None]:
        w_in, x = torch.randn(2, inputs, wide), torch.randn(2, rows, inputs)

        def run() -> None:
            torch.bmm(x, w_in, out=pre)
            for block in blocks:
                torch.bmm(block, weights, out=out)
            for gradient in gradients:
                torch.bmm(gradient, back, out=out_back)
            torch.bmm(pre.transpose(1, 2), state)
            torch.bmm(pre.transpose(1, 2), x)
            if not first:  # the gradient goes on to the layer below
                torch.bmm(pre, w_in.transpose(1, 2))

        return run

    runs = [run_layer(INPUTS if layer == 0 else units, layer == 0) for layer in range(layers)]
    return lambda: [run() for run in runs]  # type: ignore[return-value]


def contestants(batch: int, units: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward of everything that trains; `predict` ones forward only, without gradients."""
    torch.manual_seed(0)
    x = (torch.rand(STEPS, batch, INPUTS) < 0.05).float()
    gradient = torch.randn(STEPS, batch, units)
    make = fd.nn.RNN
    fused, recompute = make(INPUTS, units, **DROPS), make(INPUTS, units, recompute=True, **DROPS)
    mask, gaussian = (make(INPUTS, units, method=method, **DROPS) for method in ("mask", "gaussian"))
    reference = make(INPUTS, units, fused=False, **DROPS)
    noisy = make(INPUTS, units, weight_noise=True, **DROPS)
    ours = {name: getattr(fd.nn, name)(INPUTS, units, **DROPS) for name in ("LSTM", "GRU")}
    plain = {name: getattr(torch.nn, name)(INPUTS, units) for name in GATES}
    deep = fd.nn.RNN(INPUTS, units, 2, drop_between=0.1, **DROPS)
    deep_lstm = fd.nn.LSTM(INPUTS, units, 2, drop_between=0.1, **DROPS)

    def train_moments(rnn: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            y, _ = rnn(x)
            torch.autograd.backward([y.mean, y.var], [gradient, gradient])

        return run

    def train_plain(rnn: torch.nn.Module) -> Callable[[], None]:
        return lambda: rnn(x)[0].backward(gradient)

    def monte_carlo(rnn: torch.nn.Module, masks: int) -> Callable[[], Any]:
        """Mean and variance from `masks` passes at the speed of `torch.nn`; only the input is masked."""

        @torch.no_grad()
        def run() -> tuple[torch.Tensor, torch.Tensor]:
            mean, square = torch.zeros(()), torch.zeros(())
            for _ in range(masks):
                y = rnn(fd.functional.sampled_dropout(x, 0.1))[0]
                mean, square = mean + y, square + y**2
            return mean / masks, square / masks - (mean / masks) ** 2

        return run

    def predict(rnn: torch.nn.Module) -> Callable[[], None]:
        @torch.no_grad()
        def run() -> None:
            rnn(x)

        return run

    return {
        "fused": train_moments(fused),
        "torch.nn.RNN": train_plain(plain["RNN"]),
        "products": products(batch, units),
        "LSTM": train_moments(ours["LSTM"]),
        "torch.nn.LSTM": train_plain(plain["LSTM"]),
        "LSTM products": products(batch, units, GATES["LSTM"]),
        "GRU": train_moments(ours["GRU"]),
        "torch.nn.GRU": train_plain(plain["GRU"]),
        "GRU products": products(batch, units, GATES["GRU"]),
        "two layers": train_moments(deep),
        "two layers: products": products(batch, units, layers=2),
        "two LSTM layers": train_moments(deep_lstm),
        "two LSTM layers: products": products(batch, units, GATES["LSTM"], 2),
        "weight noise": train_moments(noisy),
        "naive": train_moments(reference),
        "recompute": train_moments(recompute),
        "mask": lambda: mask(x)[0].mean.backward(gradient),
        "gaussian": lambda: gaussian(x)[0].mean.backward(gradient),
        "draws": lambda: torch.rand(STEPS * batch, units),
        "predict: moments": predict(fused),
        "predict: 10 masks": monte_carlo(plain["RNN"], 10),
        "predict: 50 masks": monte_carlo(plain["RNN"], 50),
        "predict: LSTM": predict(ours["LSTM"]),
        "predict: 50 LSTM masks": monte_carlo(plain["LSTM"], 50),
    }


RATIOS = (
    ("fused", "torch.nn.RNN"),
    ("fused", "torch.nn.LSTM"),
    ("fused", "products"),
    ("naive", "fused"),
    ("predict: moments", "predict: 10 masks"),
    ("predict: moments", "predict: 50 masks"),
)
ALSO = ("recompute", "mask", "gaussian", "draws")
"""Measured beside the ratios of the simple layer."""
GATED = (
    ("fused", "torch.nn.RNN"),
    ("fused", "products"),
    ("LSTM", "LSTM products"),
    ("LSTM", "torch.nn.LSTM"),
    ("GRU", "GRU products"),
    ("GRU", "torch.nn.GRU"),
    ("two layers", "two layers: products"),
    ("two LSTM layers", "two LSTM layers: products"),
    ("weight noise", "fused"),
    ("predict: LSTM", "predict: 50 LSTM masks"),
)


def measure(
    batch: int,
    units: int,
    rounds: int,
    patience: float,
    pairs: Sequence[tuple[str, str]] = RATIOS,
    also: Sequence[str] = ALSO,
) -> dict[str, Any]:
    """One row of the table; what took longer than `patience` seconds is left out."""
    wanted = {name for pair in pairs for name in pair} | set(also)
    entrants = {name: run for name, run in contestants(batch, units).items() if name in wanted}
    # Apart, as nobody predicts between two training steps: each finds the memory of the one before it.
    seconds = {}
    for predicts in (False, True):
        group = {name: run for name, run in entrants.items() if name.startswith("predict") == predicts}
        seconds |= medians(group, rounds, patience)
    ratios = {f"{a} / {b}": seconds[a] / seconds[b] for a, b in pairs if a in seconds and b in seconds}
    ms = {name: 1000 * value for name, value in seconds.items()}
    return {"batch": batch, "units": units, "steps": STEPS, "milliseconds": ms, "ratios": ratios}
