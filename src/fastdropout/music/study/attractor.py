"""Does fast dropout pull to a point, as weight decay does? The paper's claim, measured at convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fastdropout.analysis import Decomposition, decompose
from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop
from fastdropout.music.study.problems import DECAY, DROP, Problem, TwoWeights, converge, decay_of, problems

STRONG = 0.05
"""The weight decay of the trajectories."""
FIRST, EVERY = 100, 20
"""Updates that are all kept for a trajectory, then those between two of its points: paths bend early."""
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
        path, ends, left = net.descend(method, starts, updates, 1, 20 if shop.quick else 2000)
        kept = [n for n in range(updates + 1) if n <= FIRST or (n - FIRST) % EVERY == 0]
        out[f"path_{method}"], out[f"end_{method}"] = path[kept].float().numpy(), ends.numpy()
        out[f"left_{method}"] = np.array(left)
        shop.tell(0.7 + 0.3 * (number + 1) / len(TwoWeights.METHODS), "trajectories")
    return out


def draw(values: Values, theme: Theme) -> Figure:
    """Trajectories above; beneath, gradients at convergence and the pull at random points.

    A colour is a method throughout: fast dropout blue, weight decay orange.
    """
    figure = theme.figure(7.6, 6.2)
    above, beneath = figure.subfigures(2, 1, height_ratios=[1.15, 1])  # type: ignore[misc]
    for part in (above, beneath):
        part.set_facecolor(theme.paper)
    colours = {
        "plain": theme.grey,
        "weight decay": theme.orange,
        "fast dropout": theme.blue,
        "weight noise": theme.green,
    }
    all_axes = above.subplots(1, 4, sharex=True, sharey=True)
    for column, (axes, method) in enumerate(zip(all_axes, TwoWeights.METHODS, strict=True)):
        path, ends = values[f"path_{method}"], values[f"end_{method}"]
        axes.plot(path[:, :, 0], path[:, :, 1], color=colours[method], linewidth=0.8, alpha=0.8)
        axes.scatter(*path[0].T, s=6, color=colours[method], linewidths=0, label="start")
        ring = {"facecolors": "none", "edgecolors": theme.ink, "linewidths": 0.9}
        axes.scatter(*path[-1].T, s=22, zorder=3, label=f"after {_updates(path)} updates", **ring)
        axes.scatter(*ends.T, s=55, marker="*", color=theme.ink, linewidths=0, zorder=4, label="optimum")
        axes.plot([0], [0], "+", color=theme.ink, markersize=7, label="zero")
        theme.dress(axes, "w1", "w2" if column == 0 else "", method)
        axes.set_xlim(-3.5, 3.5)
        axes.set_ylim(-11.5, 11.5)
    handles, labels = all_axes[0].get_legend_handles_labels()
    below = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 7.5}
    above.legend(handles, labels, labelcolor=theme.ink, **below)
    norms, pull = beneath.subplots(1, 2, width_ratios=[2.2, 1])
    place = np.arange(len(values["problems"]))
    shown = (
        ("fast_at_fast", "fast dropout, at its own optimum", theme.blue, True),
        ("fast_at_plain", "fast dropout, at the plain optimum", theme.blue, False),
        ("decay_at_decayed", "weight decay, at its own optimum", theme.orange, True),
        ("decay_at_plain", "weight decay, at the plain optimum", theme.orange, False),
    )
    for offset, (name, label, colour, full) in enumerate(shown):
        x = np.repeat(place + (offset - 1.5) * 0.17, values[name].shape[1])
        face = colour if full else "none"
        dots = {"s": 20, "facecolors": face, "edgecolors": colour, "linewidths": 1.0}
        norms.scatter(x, values[name].ravel(), label=label, zorder=3, **dots)
    norms.set_yscale("log")
    norms.set_ylim(1e-7, 10)
    norms.set_xticks(place, [str(n) for n in values["problems"]])
    theme.dress(
        norms, "", "|gradient of the regulariser|\n/ |gradient at the start|", "at convergence, each seed"
    )
    norms.axhline(1, color=theme.ink, linewidth=0.6, alpha=0.5)
    for name, label, mark in (
        ("positive", "weights with lambda > 0", "o"),
        ("inward", "points where |w| shrinks", "s"),
    ):
        pull.plot(
            place,
            values[name],
            mark,
            color=theme.blue,
            markersize=5,
            fillstyle="none" if mark == "s" else "full",
            label=label,
        )
    pull.axhline(1, color=theme.orange, linewidth=1.5, label="weight decay: both")
    pull.set_xticks(place, ["separable", "logistic", "tanh", "recurrent"], rotation=20)
    pull.set_xlim(-0.5, len(place) - 0.5)
    pull.set_ylim(-0.03, 1.03)
    theme.dress(pull, "", "share", "at random points")
    for axes in (norms, pull):
        axes.tick_params(axis="x", labelsize=7)
    found = [axes.get_legend_handles_labels() for axes in (norms, pull)]
    handles, labels = ([*one, *other] for one, other in zip(*found, strict=True))
    beneath.legend(handles, labels, labelcolor=theme.ink, **{**below, "ncols": 3})
    return figure


def caption(values: Values) -> str:
    """What is shown, and where the claim holds, approximately, and not."""
    seeds = values["fast_at_fast"].shape[1]
    left = max(values["plain_left"].max(), values["fast_left"].max())
    sizes = ", ".join(f"{method} {_size_at_end(values, method)}" for method in TwoWeights.METHODS)
    what = (
        f"Above: w2 tanh(w1 x) from {values['path_plain'].shape[1]} starts; |w| at the optimum that L-BFGS "
        f"finds behind gradient descent: {sizes}. Beneath: drop {DROP}, weight decay {DECAY}, {seeds} "
        f"seeds; at most {left:.0e} of the gradient is left."
    )
    return f"{what}\n\n{verdict(values)}"


def _updates(path: npt.NDArray[Any]) -> int:
    return FIRST + (len(path) - 1 - FIRST) * EVERY if len(path) > FIRST else len(path) - 1


def _size_at_end(values: Values, method: str) -> str:
    size = np.linalg.norm(values[f"end_{method}"], axis=1)
    low, high = f"{size.min():.2f}", f"{size.max():.2f}"
    return low if low == high else f"{low} to {high}"


def table(values: Values) -> Table:
    """Norms of the regularisers' gradients, in units of the loss's at the start; means over the seeds."""
    rows = []
    for k, name in enumerate(_names(values)):
        v = {n: float(values[n][k].mean()) for n in PER_SEED}
        sizes = "/".join(f" {v[f'{kind}_size']:.2g} " for kind in ("plain", "fast", "decayed")).strip()
        norms = [
            f"{v[n]:.1e}" for n in ("fast_at_plain", "fast_at_fast", "decay_at_plain", "decay_at_decayed")
        ]
        rows.append([name, *norms, sizes, f"{v['fast_rewarded']:.0%}"])
    head = ["problem", "fast dropout at the plain optimum", "at its own", "weight decay at the plain optimum"]
    return [*head, "at its own", "|w| plain / fast / decay", "lambda < 0 at its own"], rows


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
        f"below {VANISHED:.1%} of the gradient at the start, and nearly so below {SMALL:.0%}: {said}. At "
        f"its own optimum fast dropout has {own.min():.0e} to {own.max():.2f}, which balances the training "
        "loss. That it pulls to no point, as weight decay pulls to zero, is supported: at random weights "
        f"{positive.min():.0%} to {positive.max():.0%} of lambda are positive, and steps down the "
        f"regulariser alone would shrink |w| at {inward.min():.0%} to {inward.max():.0%} of the points "
        f"(weight decay: all). Its own optimum has a larger |w| than the plain one in {int(further.sum())} "
        f"of {len(further)} problems; sizes beyond 1e4 are of weights that run off to infinity."
    )


def _names(values: Values) -> list[str]:
    return [str(name).replace("\n", " ") for name in values["problems"]]


EXHIBIT = Exhibit("attractor", "No global attractor", 85, measure, draw, caption, table)
