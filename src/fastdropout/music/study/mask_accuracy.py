"""How good the approximation is: predicted moments of a trained network against those over many masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fastdropout.analysis.sampling import RunningMoments
from fastdropout.functional import add_independent, dropout, linear, quadrature
from fastdropout.functional.affine import affine
from fastdropout.functional.transfer import RULES
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop
from fastdropout.music.training.network import NoteRNN
from fastdropout.nn.recurrent import RecurrentBase

LAYERS = ("hidden", "output")


def _plain_weights(rnn: RecurrentBase) -> list[Tensor]:
    """Input weights, recurrent weights and bias of the first layer."""
    return [w for w in rnn.layer_weights(0) if isinstance(w, Tensor)]


def masked_steps(model: NoteRNN, frames: Tensor, masks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pre- and post-synaptic hidden units and logits under fresh masks, each (masks, steps, units)."""
    rnn, out = model.rnn, model.out
    w_ih, w_hh, bias = _plain_weights(rnn)
    h = Moments.certain(frames.new_zeros(masks, rnn.hidden_size))
    pres, posts, logits = [], [], []
    for frame in frames:
        x = Moments.certain(frame.expand(masks, -1))
        a = add_independent(
            affine(x, w_ih, bias, rnn.drop_input, "mask"), affine(h, w_hh, None, rnn.drop_hidden, "mask")
        )
        h = Moments.certain(torch.tanh(a.mean))
        pres.append(a.mean)
        posts.append(h.mean)
        logits.append(affine(h, out.weight, out.bias, out.drop, "mask").mean)
    return torch.stack(pres, 1), torch.stack(posts, 1), torch.stack(logits, 1)


def predicted(model: NoteRNN, frames: Tensor, rule: str) -> tuple[Moments, Moments]:
    """Moments of hidden units and logits by a rule, (steps, units)."""
    before, model.rnn.rule = model.rnn.rule, rule
    try:
        hidden, _ = model.rnn(frames[:, None])
        return hidden[:, 0], model.out(hidden)[:, 0]
    finally:
        model.rnn.rule = before


def measure_moments(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Means and variances of hidden units and logits, over masks and by rule."""
    return {n: v for n, v in _measured(shop).items() if n == "masks" or n.split("_")[0] in LAYERS}


def measure_over_time(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Variances, also those that independent units would have, and all of the first step."""
    return {n: v for n, v in _measured(shop).items() if "_mean" not in n}


def _measured(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """What both figures show, measured once."""
    if "truth" not in shop.memo:
        shop.memo["truth"] = {name: _coarse(found) for name, found in _measure(shop).items()}
    return shop.memo["truth"]


def _coarse(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """With 12 bits of mantissa, a relative error of 1e-4: that of 10,000 masks is 100 times as large."""
    if not found.ndim:
        return found
    bits = found.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x400)) & np.uint32(0xFFFFF800)).view(np.float32)


@torch.no_grad()
def _measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Moments over masks, by each rule, and what the true moments would predict if units were independent."""
    training = next(t for t in shop.trainings if t.kind == "fast dropout" and t.seed == 0)
    model, corpus = training.model.eval().parts[0], training.data.corpus
    steps, masks, at_once = (12, 200, 100) if shop.quick else (200, 10_000, 250)
    frames = torch.from_numpy(np.concatenate(list(corpus.test))[:steps]).float()
    pre, post, logits = RunningMoments(), RunningMoments(), RunningMoments()
    while pre.count < masks:
        for seen, draws in zip((pre, post, logits), masked_steps(model, frames, at_once), strict=True):
            seen.add(draws)
        shop.tell(pre.count / masks, f"{pre.count} masks")
    true = {"pre": pre.result(), "hidden": post.result(), "output": logits.result()}
    out: dict[str, npt.NDArray[Any]] = {"masks": np.array(pre.count)}
    for name, found in true.items():
        out[f"{name}_mean"], out[f"{name}_var"] = found.mean.numpy(), found.var.numpy()
    for rule in RULES:
        for name, by_rule in zip(LAYERS, predicted(model, frames, rule), strict=True):
            out[f"{name}_mean_{rule}"] = by_rule.mean.double().numpy()
            out[f"{name}_var_{rule}"] = by_rule.var.double().numpy()
    for name, by_true in zip(("pre", "output"), independent(model, frames, true["hidden"]), strict=True):
        out[f"{name}_var_independent"] = by_true.var.numpy()
    exact = first_step(model, frames[0])
    out["first_var_masks"], out["first_var_gaussian"] = (found.var.numpy() for found in exact)
    out["first_notes"] = np.array(int(frames[0].sum()))
    return out


def first_step(model: NoteRNN, frame: Tensor) -> tuple[Moments, Moments]:
    """Hidden units of step 1: summed over every mask of the notes that sound, and if they were Gaussian."""
    rnn = model.rnn
    w_ih, _, bias = (w.double() for w in _plain_weights(rnn))
    notes = frame.nonzero().flatten()
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * len(notes))
    masks = masks.reshape(-1, len(notes))
    kept = masks.sum(1)
    weight = (1 - rnn.drop_input) ** kept * rnn.drop_input ** (len(notes) - kept)
    hidden = torch.tanh(masks @ w_ih[:, notes].t() + bias)
    mean = weight @ hidden
    pre = linear(dropout(Moments.certain(frame.double()), rnn.drop_input), w_ih, bias)
    return unchecked_moments(mean, weight @ hidden**2 - mean**2), quadrature.transform(torch.tanh, pre)


def independent(model: NoteRNN, frames: Tensor, hidden: Moments) -> tuple[Moments, Moments]:
    """One linear layer from the *true* moments of the hidden units: only their independence is assumed."""
    rnn, out = model.rnn, model.out
    w_ih, w_hh, bias = (w.double() for w in _plain_weights(rnn))
    first = Moments.certain(hidden.mean.new_zeros(1, rnn.hidden_size))
    before = Moments.cat([unchecked_moments(first.mean, first.var), hidden[:-1]])
    x = linear(dropout(Moments.certain(frames.double()), rnn.drop_input), w_ih, bias)
    pre = add_independent(x, linear(dropout(before, rnn.drop_hidden), w_hh))
    return pre, linear(dropout(hidden, out.drop), out.weight.double(), out.bias.double())


def draw_moments(values: Values, theme: Theme) -> Figure:
    """Predicted against true moments of hidden units and logits, a row for each rule."""
    figure = theme.figure(7.6, 6.0)
    all_axes = figure.subplots(len(RULES), 4, sharex="col", sharey="col")
    shown = np.random.default_rng(0)
    columns = [(layer, moment) for layer in LAYERS for moment in ("mean", "var")]
    for column, (layer, moment) in enumerate(columns):
        true = values[f"{layer}_{moment}"].ravel()
        some = shown.permutation(len(true))[:1200]
        name = "mean" if moment == "mean" else "std"
        for row, (rule, colour) in enumerate(zip(RULES, theme.series, strict=False)):
            axes = all_axes[row, column]
            found = values[f"{layer}_{moment}_{rule}"].ravel()
            x, y = (np.sqrt(v[some]) if moment == "var" else v[some] for v in (true, found))
            axes.scatter(x, y, s=3, color=colour, alpha=0.4, linewidths=0, rasterized=True)
            low, high = min(x.min(), y.min()), max(x.max(), y.max())
            axes.plot([low, high], [low, high], color=theme.ink, linewidth=0.8, alpha=0.7)
            title = f"{_name(layer)}, {name}" if row == 0 else ""
            below = f"{name} over masks" if row == len(RULES) - 1 else ""
            theme.dress(axes, below, f"{rule}: predicted" if column == 0 else "", title)
    return figure


def draw_over_time(values: Values, theme: Theme) -> Figure:
    """The ratio of predicted to true variance over the steps; beneath, what correlation does to one layer."""
    figure = theme.figure(7.4, 5.2)
    all_axes = figure.subplots(2, 2)
    for axes, layer in zip(all_axes[0], LAYERS, strict=True):
        for rule, colour in zip(RULES, theme.series, strict=False):
            y = values[f"{layer}_var_{rule}"].mean(1) / values[f"{layer}_var"].mean(1)
            axes.plot(np.arange(1, len(y) + 1), y, color=colour, linewidth=1.1, label=rule)
        axes.axhline(1, color=theme.ink, linewidth=0.8, alpha=0.6)
        theme.dress(axes, "step", "predicted / true variance", f"{_name(layer)}, by rule")
        axes.set_ylim(0.5, 1.2)
    all_axes[0, 0].legend(frameon=False, labelcolor=theme.ink, fontsize=8, ncols=3, loc="lower left")
    over_time, over_units = all_axes[1]
    for name, colour, words in (
        ("pre", theme.blue, "into hidden units"),
        ("output", theme.orange, "into logits"),
    ):
        ratio = values[f"{name}_var_independent"] / values[f"{name}_var"]
        y = values[f"{name}_var_independent"].mean(1) / values[f"{name}_var"].mean(1)
        over_time.plot(np.arange(1, len(y) + 1), y, color=colour, linewidth=1.1, label=words)
        over_units.hist(
            np.clip(ratio.ravel(), 0.3, 1.5),
            bins=60,
            range=(0.3, 1.5),
            histtype="step",
            density=True,
            color=colour,
            label=words,
        )
    over_time.axhline(1, color=theme.ink, linewidth=0.8, alpha=0.6)
    over_units.axvline(1, color=theme.ink, linewidth=0.8, alpha=0.6)
    theme.dress(over_time, "step", "if independent / true variance", "one layer from true moments")
    over_time.set_ylim(0.5, 1.2)
    over_time.legend(frameon=False, labelcolor=theme.ink, fontsize=8, ncols=2, loc="lower left")
    theme.dress(over_units, "if independent / true variance", "density", "the same, of each unit and step")
    over_units.legend(frameon=False, labelcolor=theme.ink, fontsize=8, loc="upper left")
    return figure


def _name(layer: str) -> str:
    return "hidden units" if layer == "hidden" else "logits"


def caption_moments(values: Values) -> str:
    """What is shown."""
    return (
        f"The moments of a trained network by each rule, against {int(values['masks']):,} masks over "
        f"{len(values['hidden_mean'])} steps, and root mean square errors."
    )


def table_moments(values: Values) -> Table:
    """Errors by rule."""
    rows = []
    for layer in LAYERS:
        size = np.sqrt(values[f"{layer}_var"]).mean()
        for rule in RULES:
            mean = values[f"{layer}_mean_{rule}"] - values[f"{layer}_mean"]
            std = np.sqrt(values[f"{layer}_var_{rule}"]) - np.sqrt(values[f"{layer}_var"])
            errors = (f"{np.sqrt((error**2).mean()):.3f}" for error in (mean, std))
            rows.append([_name(layer), rule, *errors, f"{size:.3f}"])
    return ["what", "rule", "error of the mean", "error of the std", "mean std over masks"], rows


def caption_over_time(values: Values) -> str:
    """What is missing at the first step, and what after it."""
    exact, gaussian = (float(values[f"first_var_{name}"].mean()) for name in ("masks", "gaussian"))
    notes = int(values["first_notes"])
    return (
        "Mean predicted over mean true variance. Above by rule; beneath one linear layer fed with the true "
        f"moments, so that only the independence of units is assumed. Step 1 has nothing but {notes} notes, "
        f"masked independently: summed over all {2**notes} masks the variance through tanh is {exact:.3f}, "
        f"were their sum Gaussian it would be {gaussian:.3f} ({gaussian / exact:.2f} of it), so there the "
        "Gaussian assumption is what is missing. Later units share masked predecessors and are correlated. "
        "The variance that the paper's rule finds in certain units is spurious, and stands in for part of "
        "that."
    )


def table_over_time(values: Values) -> Table:
    """Ratios of mean variances at the first step and in the second half."""
    kinds = [
        (_name(layer), f"{layer}_var", f"{layer}_var_{rule}", rule) for layer in LAYERS for rule in RULES
    ]
    for name, words in (("pre", "into hidden units"), ("output", "into logits")):
        kinds.append((words, f"{name}_var", f"{name}_var_independent", "independent units"))
    rows = []
    for what, true, found, how in kinds:
        y = values[found].mean(1) / values[true].mean(1)
        rows.append([what, how, f"{y[0]:.2f}", f"{np.median(y[len(y) // 2 :]):.2f}"])
    return ["what", "by", "step 1", "second half (median)"], rows


MOMENTS = Exhibit(
    "truth",
    "Predicted moments against masks",
    25,
    measure_moments,
    draw_moments,
    caption_moments,
    table_moments,
)
OVER_TIME = Exhibit(
    "truth-over-time",
    "The variance over time",
    3,
    measure_over_time,
    draw_over_time,
    caption_over_time,
    table_over_time,
)
