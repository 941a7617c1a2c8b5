"""Does fast dropout pull to a point, as weight decay does? The paper's claim, measured at convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fastdropout.analysis import Decomposition, decompose
from fastdropout.study.gallery import Exhibit, Theme, Values, Workshop
from fastdropout.study.problems import DECAY, DROP, Problem, TwoWeights, converge, decay_of, problems

STRONG = 0.05
"""The weight decay of the trajectories."""


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """Gradients of the regularisers at convergence, at random points, and trajectories of two weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Everything is tiny.
    try:
        return _at_convergence(shop) | _trajectories(shop)
    finally:
        torch.set_num_threads(threads)


def _flat(parts: Decomposition, name: str) -> Tensor:
    return torch.cat([getattr(p, name).flatten() for p in parts.weights.values()])


def _at_convergence(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    seeds, most, points = (1, 20, 4) if shop.quick else (3, 300, 40)
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
    updates, every = (40, 10) if shop.quick else (3000, 10)
    out = {}
    for number, method in enumerate(TwoWeights.METHODS):
        path, left = net.descend(method, starts, updates, every)
        out[f"path_{method}"], out[f"left_{method}"] = path.numpy(), left.numpy()
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
        axes.scatter(path[-1, :, 0], path[-1, :, 1], s=22, color=theme.orange, linewidths=0, zorder=3)
        axes.plot([0], [0], marker="+", color=theme.ink, markersize=7)
        theme.dress(axes, "w1", "w2" if column == 0 else "", method)
        axes.set_xlim(-3.5, 3.5)
        axes.set_ylim(-7, 7)
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
        y = np.exp(np.log(np.maximum(values[name], 1e-12)).mean(1))
        bars.bar(x, y, 0.17, color=colour, label=label, bottom=0)
        bars.scatter(
            np.repeat(x, values[name].shape[1]), values[name].ravel(), s=4, color=theme.ink, zorder=3
        )
    bars.set_yscale("log")
    bars.set_ylim(1e-7, 1e6)
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
    text = [
        f"Above: w2 tanh(w1 x) from {values['path_plain'].shape[1]} starts, orange where gradient descent "
        f"ends after "
        f"{(len(values['path_plain']) - 1) * 10} updates."
    ]
    for method in TwoWeights.METHODS:
        end = values[f"path_{method}"][-1]
        size = np.linalg.norm(end, axis=1)
        text.append(
            f"{method.capitalize()}: |w| between {size.min():.2f} and {size.max():.2f} (gradient left at "
            f"most "
            f"{values[f'left_{method}'].max():.0e})."
        )
    text.append(
        f"Beneath: the norm of the regulariser's gradient, in units of the loss's at the start (drop "
        f"{DROP}, weight "
        f"decay {DECAY}; means of {values['fast_at_fast'].shape[1]} seeds)."
    )
    for k, name in enumerate(values["problems"]):
        v = {
            n: float(np.mean(values[n][k]))
            for n in values
            if values[n].ndim == 2 and not n.startswith("left")
        }
        text.append(
            f"{str(name).replace(chr(10), ' ')}: fast dropout {v['fast_at_fast']:.1e} at its own optimum "
            f"(|w| = "
            f"{v['fast_size']:.2g}, {v['fast_rewarded']:.0%} of weights rewarded), "
            f"{v['fast_at_plain']:.1e} where the "
            f"plain network ends (|w| = {v['plain_size']:.2g}); weight decay {v['decay_at_decayed']:.1e} and "
            f"{v['decay_at_plain']:.1e}."
        )
    text.append(_verdict(values))
    return " ".join(text)


def _verdict(values: Values) -> str:
    own, plain = values["fast_at_fast"].mean(1), values["fast_at_plain"].mean(1)
    positive = values["positive"]
    return (
        "The paper claims that the regulariser vanishes at any optimum of the training loss, so that no "
        "global "
        f"attractor is formed. Separable: it holds in the limit, where weights run to infinity "
        f"({own[0]:.0e}). Not "
        f"separable: it does not vanish ({own[1:].min():.2f} to {own[1:].max():.2f} at its own optimum, "
        f"{plain[1:].min():.2f} to {plain[1:].max():.2f} at the plain one), since examples that pull "
        f"against each "
        "other leave delta at nonzero values whose sum over a batch need not cancel: at an optimum of J the "
        "regulariser balances the training loss, as weight decay does. What holds is that it pulls to no "
        "point: at "
        f"random points {positive.min():.0%} to {positive.max():.0%} of the weights have a positive lambda "
        f"(all of "
        "them under weight decay), and networks with hidden layers escape it by growing until their units "
        "saturate."
    )


EXHIBIT = Exhibit("attractor", "No global attractor", 90, measure, draw, caption)
