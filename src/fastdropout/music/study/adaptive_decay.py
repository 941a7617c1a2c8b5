"""Fast dropout as a weight decay with a coefficient for each weight: lambda over training."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure

from fastdropout.analysis import decompose
from fastdropout.music.data.batches import Batch, batches
from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop
from fastdropout.music.training.build import build_model
from fastdropout.music.training.network import Network

WEIGHTS = {"rnn.weight_ih_l0": "input", "rnn.weight_hh_l0": "recurrent", "out.weight": "output"}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EDGES = np.concatenate([-np.logspace(-1, -9, 41), np.logspace(-9, -1, 41)])


def objective(model: Network, batch: Batch) -> torch.Tensor:
    """Nats per frame of a batch."""
    return model(batch.inputs)[0].nll(batch.targets, mask=batch.mask).mean()


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Of the first network with fast dropout: quantiles and histograms of lambda, and shares, by epoch."""
    training = next(t for t in shop.trainings if t.kind == "fast dropout" and t.seed == 0)
    batch = next(iter(batches(training.data.train, 4 if shop.quick else 16)))
    model = build_model(training.config, training.data.corpus.features)
    out: dict[str, list[Any]] = {"epoch": [], "share": []}
    for number, (epoch, weights) in enumerate(training.snapshots.items()):
        shop.tell(number / len(training.snapshots), f"epoch {epoch}")
        model.load_state_dict(weights)
        parts = decompose(model, lambda m: objective(m, batch))
        out["epoch"].append(epoch)
        out["share"].append(parts.share())
        for name, short in WEIGHTS.items():
            part = parts.weights[name]
            decay = part.decay.double().numpy().ravel()
            regimes = part.weight_regimes
            for key, value in (
                ("quantiles", np.quantile(decay, QUANTILES)),
                ("histogram", np.histogram(decay, EDGES)[0]),
                ("rewarded", regimes.rewards),
                ("penalised", regimes.penalises),
                ("units_rewarded", part.regimes.rewards),
                ("ratio", float(part.regulariser.norm() / part.loss.norm())),
            ):
                out.setdefault(f"{short}_{key}", []).append(value)
    return {name: np.array(values) for name, values in out.items()} | {"edges": EDGES}


def draw(values: Values, theme: Theme) -> Figure:
    """Histograms of lambda at four epochs for each matrix; shares of either sign and |dR| over training."""
    figure = theme.figure(7.4, 6.0)
    all_axes = figure.subplots(3, 3, sharex="row", sharey="row", height_ratios=[1.3, 1, 0.8])
    epochs = values["epoch"]
    chosen = sorted({0, len(epochs) // 3, 2 * len(epochs) // 3, len(epochs) - 1})
    centres = np.arange(len(values["edges"]) - 1)
    middle = len(centres) // 2
    for column, short in enumerate(WEIGHTS.values()):
        top, shares, ratios = all_axes[:, column]
        top.axvline(middle, color=theme.ink, linewidth=0.8, alpha=0.6)
        for place, colour in zip(chosen, theme.series, strict=False):
            counts = values[f"{short}_histogram"][place]
            top.plot(
                centres, counts / counts.sum(), color=colour, linewidth=1.3, label=f"epoch {epochs[place]}"
            )
        theme.dress(top, "lambda", "share of weights" if column == 0 else "", f"{short} weights")
        marks = [-1e-2, -1e-5, 0, 1e-5, 1e-2]
        top.set_xticks([np.interp(m, values["edges"], np.arange(len(values["edges"])) - 0.5) for m in marks])
        names = [
            "0" if m == 0 else f"{'−' if m < 0 else ''}$10^{{{round(np.log10(abs(m)))}}}$" for m in marks
        ]
        top.set_xticklabels(names)
        for key, colour in (("penalised", theme.blue), ("rewarded", theme.orange)):
            sign = ">" if key == "penalised" else "<"
            shares.plot(
                epochs,
                values[f"{short}_{key}"],
                color=colour,
                marker="o",
                markersize=3,
                label=f"{key}, lambda {sign} 0",
            )
        ratios.plot(epochs, values[f"{short}_ratio"], color=theme.green, marker="o", markersize=3)
        theme.dress(shares, "", "share of weights" if column == 0 else "")
        theme.dress(ratios, "epoch", "|dR| / |dL|" if column == 0 else "")
    all_axes[0, 0].legend(frameon=False, labelcolor=theme.ink, fontsize=7, loc="upper left")
    all_axes[1, 2].legend(frameon=False, labelcolor=theme.ink, fontsize=7, loc="center right")
    all_axes[1, 0].set_ylim(0, 1)
    all_axes[2, 0].set_ylim(bottom=0)
    return figure


def caption(values: Values) -> str:
    """What is seen."""
    return (
        "The coefficient lambda of the weight decay that fast dropout amounts to, weight by weight, on one "
        "batch of training chorales: its distribution at four epochs, the shares of either sign, and the "
        "gradient of the regulariser over that of the training loss. A weight decay has one lambda > 0 for "
        "all weights."
    )


def table(values: Values) -> Table:
    """Signs, sizes and the ratio of the gradients."""
    first, last = values["epoch"][0], values["epoch"][-1]
    rows = []
    for short in WEIGHTS.values():
        rewarded, q = values[f"{short}_rewarded"], values[f"{short}_quantiles"][-1]
        between = f"{q[0]:.1e} to {q[-1]:.1e}"
        ratio = f"{values[f'{short}_ratio'][-1]:.2f}"
        rows.append([short, f"{rewarded[0]:.0%}", f"{rewarded[-1]:.0%}", between, ratio])
    shares = [f"lambda < 0 at epoch {epoch}" for epoch in (first, last)]
    return ["weights", *shares, "90 % of lambda in", "|dR| / |dL|"], rows


EXHIBIT = Exhibit(
    "weight-decay", "The weight decay that fast dropout amounts to", 5, measure, draw, caption, table
)
