"""Predicted against true variance of the recurrent layers, random and trained: `python -m benchmarks.cells`.

Random: 128 units, 40 inputs, 60 steps, torch initial weights times a scale, a forget bias of 1 or as said;
inputs are Gaussian, or sparse: 1 with probability .05, as notes are. Trained: 64 units with a linear output,
on two tasks of 40 steps, by the expected squared error. The truth is in passes with drawn masks. Writes
`results/cells.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.record import save
from fastdropout import Moments

LAYERS = ("RNN", "LSTM", "GRU")
DROPS = ((0.1, 0.2), (0.2, 0.5))


def random_layer(
    layer: str, drops: tuple[float, float], scale: float, forget: float, seed: int, **options: Any
) -> nn.Module:
    torch.manual_seed(seed)
    rnn = getattr(fd.nn, layer)(40, 128, drop_input=drops[0], drop_hidden=drops[1], **options)
    with torch.no_grad():
        for name, parameter in rnn.named_parameters():
            if name.startswith("weight"):
                parameter.mul_(scale)
        if layer == "LSTM":
            rnn.bias_ih_l0[128:256] += forget
    return rnn


def compare(predicted: Moments, drawn: Tensor) -> dict[str, float]:
    """`drawn` has the passes in dimension 1, which is of length 1 in `predicted`."""
    mean, var = drawn.mean(1), drawn.var(1)
    spreads = torch.stack([predicted.std[:, 0].flatten(), var.sqrt().flatten()])
    return {
        "variance_ratio": (predicted.var.mean() / var.mean()).item(),
        "mean_error_in_std": ((predicted.mean[:, 0] - mean).abs().mean() / var.sqrt().mean()).item(),
        "correlation_of_std": torch.corrcoef(spreads)[0, 1].item(),
    }


def random_cases() -> Iterator[tuple[str, tuple[float, float], float, float, str]]:
    """Layer, drops, scale of the weights, forget bias, inputs."""
    for layer in LAYERS:
        for drops in DROPS:
            for scale in (1.0, 2.0):
                for inputs in ("gaussian", "sparse"):
                    yield layer, drops, scale, 1.0, inputs
    for drops in DROPS:
        for forget in (0.0, 2.0, 3.0):
            yield "LSTM", drops, 2.0, forget, "sparse"


@torch.no_grad()
def random_rows(masks: int, seeds: int) -> Iterator[dict[str, Any]]:
    for layer, drops, scale, forget, inputs in random_cases():
        found = []
        for seed in range(seeds):
            torch.manual_seed(seed + 10)
            x = torch.randn(60, 1, 40) if inputs == "gaussian" else (torch.rand(60, 1, 40) < 0.05).float()
            case = (layer, drops, scale, forget, seed)
            predicted = random_layer(*case)(x)[0]
            drawn = random_layer(*case, method="mask")(x.expand(60, masks, 40))[0]
            found.append(compare(predicted, drawn.mean))
        row = {key: sum(f[key] for f in found) / seeds for key in found[0]}
        row["lowest_ratio"] = min(f["variance_ratio"] for f in found)
        row["highest_ratio"] = max(f["variance_ratio"] for f in found)
        given = {"layer": layer, "drop_input": drops[0], "drop_hidden": drops[1], "scale": scale}
        yield {**given, "forget": forget if layer == "LSTM" else None, "inputs": inputs, **row}


def task(name: str, pieces: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (steps, pieces, 1): the next value of a sine, or the input of three steps ago."""
    torch.manual_seed(seed)
    if name == "sine":
        t = torch.arange(41)[:, None] * (0.15 + 0.35 * torch.rand(pieces)) + 6.3 * torch.rand(pieces)
        wave = torch.sin(t)[..., None]
        return wave[:-1], wave[1:]
    x = torch.randn(40, pieces, 1)
    return x, torch.cat([torch.zeros(3, pieces, 1), x[:-3]])


class Forecaster(nn.Module):
    """A recurrent layer and a linear output, both with dropout."""

    def __init__(self, layer: str, drop: float, method: str = "moments") -> None:
        super().__init__()
        self.rnn = getattr(fd.nn, layer)(1, 64, drop_hidden=drop, method=method)
        self.out = fd.nn.Linear(64, 1, drop=0.1, method=method)

    def forward(self, x: Tensor) -> Moments:
        """Moments of the forecast at every step."""
        return self.out(self.rnn(x)[0])


def trained(layer: str, name: str, drop: float, updates: int) -> Forecaster:
    torch.manual_seed(0)
    model = Forecaster(layer, drop)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, target = task(name, 256, 1)
    for update in range(updates):
        rows = torch.arange(32) + 32 * (update % 8)
        y = model(x[:, rows])
        loss = ((y.mean - target[:, rows]) ** 2 + y.var).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def trained_rows(masks: int, updates: int) -> Iterator[dict[str, Any]]:
    for layer in LAYERS:
        for name in ("sine", "memory"):
            for drop in (0.1, 0.3):
                model = trained(layer, name, drop, updates)
                sampler = Forecaster(layer, drop, "mask")
                sampler.load_state_dict(model.state_dict())
                x, target = task(name, 4, 2)
                diagonal = model(x).detach()
                with fd.integrate() as noise:
                    y = model(x)
                traced = noise.std(y).detach()
                with torch.no_grad():
                    drawn = torch.stack([sampler(x[:, [i]].expand(-1, masks, 1)).mean for i in range(4)], 2)
                truth = drawn.std(1)
                spreads = torch.stack([traced.flatten(), truth.flatten()])
                yield {
                    "layer": layer,
                    "task": name,
                    "drop_hidden": drop,
                    "rmse": ((diagonal.mean - target) ** 2).mean().sqrt().item(),
                    "diagonal_std_ratio": (diagonal.std.mean() / truth.mean()).item(),
                    "traced_std_ratio": (traced.mean() / truth.mean()).item(),
                    "traced_correlation": torch.corrcoef(spreads)[0, 1].item(),
                }


def show(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{v:.3f}" if isinstance(v, float) else f"{v}" for v in row.values()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=600)
    args = parser.parse_args()
    found = {
        "random": [show(row) for row in random_rows(args.masks, args.seeds)],
        "trained": [show(row) for row in trained_rows(args.masks, args.updates)],
    }
    print("wrote", save("cells", vars(args), found))


if __name__ == "__main__":
    main()
