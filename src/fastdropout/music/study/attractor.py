"""Does fast dropout pull to a point, as weight decay does? The paper's claim, measured at convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fastdropout.analysis import Decomposition, decompose
from fastdropout.music.study.gallery import Exhibit, Theme, Values, Workshop
from fastdropout.music.study.problems import DECAY, DROP, Problem, TwoWeights, converge, decay_of, problems

STRONG = 0.05
"""The weight decay of the trajectories."""
EVERY = 10
"""Updates between two points of a trajectory."""
VANISHED, SMALL = 0.005, 0.05
"""Of the gradient at the start: what is called vanished, and nearly vanished."""
PER_SEED = (
    "fast_at_plain",
    "fast_at_fast",
    "decay_at_plain",
    "decay_at_decayed",
    "plain_size",
    "fast_size",
    "decayed_size",
    "fast_rewarded",
)


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Gradients of the regularisers at convergence, at random points, and trajectories of two weights."""
    return _at_convergence(shop) | _trajectories(shop)


def _flat(parts: Decomposition, name: str) -> Tensor:
    return torch.cat([getattr(p, name).flatten() for p in parts.weights.values()])


def _at_convergence(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    seeds, most, points = (1, 20, 4) if shop.quick else (3, 500, 40)
    out: dict[str, list[Any]] = {}
    every = problems()
    for number, problem in enumerate(every):
        rows = []
        for seed in range(seeds):
            rows.append(_one(problem, seed, most))
            shop.tell(0.7 * (number + (seed + 1) / seeds) / len(every), "to convergence")
        for name in rows[0]:
            out.setdefault(name, []).append([row[name] for row in rows])
        found = [_pull(problem, 100 + k) for k in range(points)]
        out.setdefault("positive", []).append(np.mean([positive for positive, _ in found]))
        out.setdefault("inward", []).append(np.mean([inward for _, inward in found]))
    return {name: np.array(values) for name, values in out.items()} | {
        "problems": np.array([p.name for p in every])
    }


def _one(problem: Problem, seed: int, most: int) -> dict[str, float]:
    """Train plain, with weight decay and with fast dropout; norms in units of the gradient at the start."""
    plain = problem.network(0.0, seed)
    start = float(_flat(decompose(plain, problem.loss), "loss").norm())
    plain_left = converge(plain, problem.loss, most)
    decayed = problem.network(0.0, seed)
    converge(decayed, lambda m: problem.loss(m) + decay_of(m), most)
    fast = problem.network(DROP, seed)
    fast_left = converge(fast, problem.loss, most)
    parts = decompose(fast, problem.loss)
    return {
        "plain_left": plain_left / start,
        "fast_left": fast_left / start,
        "fast_at_plain": float(_flat(_as_fast(problem, plain), "regulariser").norm()) / start,
        "decay_at_plain": 2 * DECAY * _size(plain) / start,
        "fast_at_fast": float(_flat(parts, "regulariser").norm()) / start,
        "decay_at_decayed": 2 * DECAY * _size(decayed) / start,
        "fast_rewarded": parts.regimes.rewards,
        "fast_size": _size(fast),
        "plain_size": _size(plain),
        "decayed_size": _size(decayed),
    }


def _as_fast(problem: Problem, plain: nn.Module) -> Decomposition:
    """Fast dropout at the weights of a plain network, scaled so that the means into units are the same."""
    fast = problem.build(DROP).double()
    fast.load_state_dict({n: w / (1 - DROP) if w.ndim == 2 else w for n, w in plain.state_dict().items()})
    return decompose(fast, problem.loss)


def _size(model: nn.Module) -> float:
    return float(torch.cat([p.detach().flatten() for p in model.parameters() if p.ndim == 2]).norm())


def _pull(problem: Problem, seed: int) -> tuple[float, bool]:
    """At a random point: the share of weights with positive lambda, and whether descent shrinks the norm."""
    parts = decompose(problem.network(DROP, seed, scale=2.0), problem.loss)
    inward = bool(_flat(parts, "regulariser") @ _flat(parts, "weight") > 0)
    return parts.regimes.penalises, inward


def _trajectories(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    net = TwoWeights(STRONG, DROP)
    axis = torch.linspace(-3, 3, 3 if shop.quick else 6, dtype=torch.float64)
    starts = torch.cartesian_prod(axis, axis)
    updates = 40 if shop.quick else 3000
    out = {}
    for number, method in enumerate(TwoWeights.METHODS):
        path, ends, left = net.descend(method, starts, updates, EVERY, 20 if shop.quick else 2000)
        out[f"path_{method}"], out[f"end_{method}"] = path.numpy(), ends.numpy()
        out[f"left_{method}"] = np.array(left)
        shop.tell(0.7 + 0.3 * (number + 1) / len(TwoWeights.METHODS), "trajectories")
    return out


def draw(values: Values, theme: Theme) -> Figure:
    """Trajectories above; beneath, gradients at convergence and the pull at random points."""
    figure = theme.figure(7.6, 5.6)
    above, beneath = figure.subfigures(2, 1, height_ratios=[1, 1.2])  # type: ignore[misc]
    for part in (above, beneath):
        part.set_facecolor(theme.paper)
    all_axes = above.subplots(1, 4, sharex=True, sharey=True)
    for column, (axes, method) in enumerate(zip(all_axes, TwoWeights.METHODS, strict=True)):
        path = values[f"path_{method}"]
        axes.plot(path[:, :, 0], path[:, :, 1], color=theme.grey, linewidth=0.7, alpha=0.8)
        axes.scatter(path[0, :, 0], path[0, :, 1], s=5, color=theme.grey, linewidths=0)
        axes.scatter(path[-1, :, 0], path[-1, :, 1], s=14, color=theme.orange, linewidths=0, zorder=3)
        ends = values[f"end_{method}"]
        axes.scatter(ends[:, 0], ends[:, 1], s=60, marker="*", color=theme.blue, linewidths=0, zorder=4)
        axes.plot([0], [0], marker="+", color=theme.ink, markersize=7)
        theme.dress(axes, "w1", "w2" if column == 0 else "", method)
        axes.set_xlim(-3.5, 3.5)
        axes.set_ylim(-11.5, 11.5)
    bars, pull = beneath.subplots(1, 2, width_ratios=[2.6, 1])
    names = [str(n) for n in values["problems"]]
    place = np.arange(len(names))
    shown = (
        ("fast_at_fast", "fast dropout, at its own optimum", theme.blue),
        ("fast_at_plain", "fast dropout, where the plain one ends", theme.green),
        ("decay_at_decayed", "weight decay, at its own optimum", theme.orange),
        ("decay_at_plain", "weight decay, where the plain one ends", theme.purple),
    )
    for offset, (name, label, colour) in enumerate(shown):
        x = place + (offset - 1.5) * 0.19
        bars.bar(x, values[name].mean(1), 0.17, color=colour, label=label, bottom=0)
        bars.scatter(
            np.repeat(x, values[name].shape[1]), values[name].ravel(), s=4, color=theme.ink, zorder=3
        )
    bars.set_yscale("log")
    bars.set_ylim(1e-7, 1e3)
    bars.set_xticks(place, names)
    theme.dress(bars, "", "|gradient of the regulariser|\n/ |gradient at the start|")
    bars.legend(frameon=False, labelcolor=theme.ink, fontsize=6.5, ncols=2, loc="upper left")
    bars.tick_params(axis="x", labelsize=7.5)
    bars.axhline(1, color=theme.ink, linewidth=0.6, alpha=0.5)
    pull.bar(place - 0.2, values["positive"], 0.36, color=theme.blue, label="weights with lambda > 0")
    pull.bar(place + 0.2, values["inward"], 0.36, color=theme.green, label="points where |w| shrinks")
    pull.axhline(1, color=theme.orange, linewidth=1.5, label="weight decay, both")
    pull.set_xticks(place, ["separable", "logistic", "tanh", "recurrent"], rotation=20)
    pull.set_ylim(0, 1.55)
    pull.set_yticks([0, 0.5, 1])
    theme.dress(pull, "", "share", "at random points")
    pull.tick_params(axis="x", labelsize=6.5)
    pull.legend(frameon=False, labelcolor=theme.ink, fontsize=6.5, loc="upper left")
    return figure


def caption(values: Values) -> str:
    """Where the claim holds, approximately, and not."""
    plain = values["path_plain"]
    text = [
        f"Above: w2 tanh(w1 x) from {plain.shape[1]} starts, orange where gradient descent is after "
        f"{(len(plain) - 1) * EVERY} updates, starred the optima that L-BFGS finds from there."
    ]
    for method in TwoWeights.METHODS:
        size, left = np.linalg.norm(values[f"end_{method}"], axis=1), float(values[f"left_{method}"])
        low, high = f"{size.min():.2f}", f"{size.max():.2f}"
        found = low if low == high else f"{low} to {high}"
        text.append(f"{method.capitalize()}: |w| = {found} there (gradient left {left:.0e}).")
    left = max(values["plain_left"].max(), values["fast_left"].max())
    text.append(
        f"Beneath: the norm of the regulariser's gradient, in units of the loss's at the start (drop {DROP}, "
        f"weight decay {DECAY}; means of {values['fast_at_fast'].shape[1]} seeds; at most {left:.0e} of the "
        f"gradient is left)."
    )
    for k, name in enumerate(_names(values)):
        v = {n: float(values[n][k].mean()) for n in PER_SEED}
        text.append(
            f"{name.capitalize()}: fast dropout {v['fast_at_plain']:.1e} at the minimum of the plain loss "
            f"(|w| = {v['plain_size']:.2g}) and {v['fast_at_fast']:.1e} at its own (|w| = "
            f"{v['fast_size']:.2g}, {v['fast_rewarded']:.0%} of weights rewarded); weight decay "
            f"{v['decay_at_plain']:.1e} and {v['decay_at_decayed']:.1e} (|w| = {v['decayed_size']:.2g})."
        )
    text.append(verdict(values))
    return " ".join(text)


def verdict(values: Values) -> str:
    """Whether the regulariser vanishes at minima of the plain loss, and whether it pulls to a point."""
    found: dict[str, list[str]] = {"holds": [], "holds approximately": [], "does not hold": []}
    for name, share in zip(_names(values), values["fast_at_plain"].mean(1), strict=True):
        kind = "holds" if share < VANISHED else "holds approximately" if share < SMALL else "does not hold"
        found[kind].append(f"{name} ({share:.1%})")
    said = "; ".join(f"it {kind} for {' and '.join(names)}" for kind, names in found.items() if names)
    own, positive, inward = values["fast_at_fast"].mean(1), values["positive"], values["inward"]
    further = values["fast_size"].mean(1) > values["plain_size"].mean(1)
    return (
        "The paper claims that the regulariser vanishes at minima of the unregularised loss. With vanished "
        f"below {VANISHED:.1%} of the gradient at the start, and nearly so below {SMALL:.0%}: {said}. "
        "Examples that pull against each other leave delta at values whose sum over a batch need not be "
        f"zero. At its own optimum fast dropout has {own.min():.0e} to {own.max():.2f}: what is there "
        "balances the training loss, as weight decay does. That it pulls to no point, as weight decay pulls "
        f"to zero, is supported: at random weights {positive.min():.0%} to {positive.max():.0%} of lambda "
        f"are positive, and steps down the regulariser alone would shrink |w| at {inward.min():.0%} to "
        f"{inward.max():.0%} of the points (weight decay: all). Its own optimum has a larger |w| than the "
        f"plain one in {int(further.sum())} of {len(further)} problems; sizes beyond 1e4 are of weights that "
        "run off to infinity, where hidden units saturate."
    )


def _names(values: Values) -> list[str]:
    return [str(name).replace("\n", " ") for name in values["problems"]]


EXHIBIT = Exhibit("attractor", "No global attractor", 85, measure, draw, caption)
