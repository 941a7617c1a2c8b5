"""Fast dropout against fast adaptive weight noise: can one be the other for all inputs?

The paper sets both means and both variances equal and concludes that the variance of the weights would have
to depend on the input. It does not, once the mean is scaled by the probability of being *kept*: with
E[w'] = keep w and V[w'] = keep drop w^2 the two agree for every input,

    V[x] keep^2 w^2 + (V[x] + E[x]^2) keep drop w^2 = keep V[x] w^2 + keep drop E[x]^2 w^2,

since a dropped unit is a dropped weight. Scaled by the drop probability, as the paper's words have it, they
agree for no choice of V[w'] unless drop = 1/2, where the two readings are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure

from fastdropout.functional import dropout, linear, noisy_linear
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.study.gallery import Exhibit, Table, Theme, Values, Workshop

DROPS = (0.2, 0.5, 0.8)
INPUTS = 12


def needed_variance(x: Moments, drop: float, scale: float) -> torch.Tensor:
    """V[w'] / w^2 with which weight noise of mean scale w has fast dropout's variance, for each input."""
    wanted = dropout(x, drop).var
    return (wanted - scale**2 * x.var) / (x.var + x.mean**2)


def fit(x: Moments, w: torch.Tensor, drop: float, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """V[a] of fast dropout, and of the weight noise that fits it best in least squares over all inputs."""
    wanted = linear(dropout(x, drop), w[None]).var[:, 0]
    base = noisy_linear(x, unchecked_moments(scale * w[None], torch.zeros_like(w[None]))).var[:, 0]
    design = x.var + x.mean**2
    var = torch.linalg.lstsq(design, (wanted - base)[:, None]).solution[:, 0]
    found = noisy_linear(x, unchecked_moments(scale * w[None], var[None])).var[:, 0]
    return wanted, found


def measure(shop: Workshop) -> dict[str, npt.NDArray[Any]]:
    """The variance that is needed, by input; and the residual of the best fit over many inputs."""
    generator = torch.Generator().manual_seed(0)
    n = 100 if shop.quick else 1000
    ratio = torch.logspace(-2, 2, 81, dtype=torch.float64)
    mean = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
    var = torch.rand(n, INPUTS, generator=generator, dtype=torch.float64) * 2
    w = torch.randn(INPUTS, generator=generator, dtype=torch.float64)
    out: dict[str, npt.NDArray[Any]] = {"ratio": ratio.numpy(), "drops": np.array(DROPS)}
    for drop in DROPS:
        for name, scale in (("kept", 1 - drop), ("printed", drop)):
            x = unchecked_moments(torch.ones_like(ratio), ratio)
            out[f"needed_{name}_{drop}"] = needed_variance(x, drop, scale).numpy()
            wanted, found = fit(unchecked_moments(mean, var), w, drop, scale)
            out[f"wanted_{name}_{drop}"], out[f"found_{name}_{drop}"] = wanted.numpy(), found.numpy()
    return out


def residual(values: Values, name: str, drop: float) -> float:
    """The root mean square of the misfit over the mean variance."""
    wanted, found = values[f"wanted_{name}_{drop}"], values[f"found_{name}_{drop}"]
    return float(np.sqrt(np.mean((wanted - found) ** 2)) / wanted.mean())


def draw(values: Values, theme: Theme) -> Figure:
    """Left: the variance that is needed for an input. Right: the best fit over all inputs."""
    figure = theme.figure(7.4, 3.2)
    left, right = figure.subplots(1, 2)
    for drop, colour in zip(DROPS, theme.series, strict=False):
        for name, style in (("kept", "-"), ("printed", "--")):
            label = f"drop {drop}, mean scaled by {1 - drop if name == 'kept' else drop:.1f}"
            y = values[f"needed_{name}_{drop}"]
            if name == "kept" or drop != 0.5:  # there both are the same
                wide = 4.0 if name == "kept" and drop == DROPS[0] else 1.6  # else hidden by that of 1 - drop
                left.plot(values["ratio"], y, style, color=colour, linewidth=wide, label=label)
    left.set_xscale("log")
    theme.dress(left, "V[x] / E[x]^2 of an input", "needed V[w'] / w^2", legend=True)
    left.axhline(0, color=theme.ink, linewidth=0.8, alpha=0.5)
    left.set_ylim(-0.55, 1.25)
    drop = DROPS[0]
    for name, colour, words in (
        ("printed", theme.orange, f"scaled by drop = {drop}"),
        ("kept", theme.blue, f"scaled by keep = {1 - drop:.1f}"),
    ):
        right.scatter(
            values[f"wanted_{name}_{drop}"],
            values[f"found_{name}_{drop}"],
            s=5,
            color=colour,
            alpha=0.6,
            linewidths=0,
            rasterized=True,
            label=f"{words}: residual {residual(values, name, drop):.1%}",
        )
    top = float(values[f"wanted_kept_{drop}"].max())
    right.plot([0, top], [0, top], color=theme.ink, linewidth=0.8, alpha=0.6)
    theme.dress(right, "V[a] of fast dropout", "V[a] of the best weight noise", legend=True)
    left.legend(frameon=False, labelcolor=theme.ink, fontsize=7, loc="upper left")
    return figure


def caption(values: Values) -> str:
    """What is seen."""
    return (
        "Can weight noise have the mean and the variance of fast dropout for all inputs? Left: the "
        f"variance of a weight that an input asks for. Right: the best variances of {INPUTS} weights over "
        "all inputs. With the mean scaled by keep, the needed variance is keep drop w^2 for every input; "
        "with the printed scale it depends on the input, and is negative for some. At drop 0.5 both scales "
        "are one. Weight noise learns a variance for each weight, under a prior; fast dropout ties it to "
        "the weight."
    )


def table(values: Values) -> Table:
    """The range of needed variances and the residual of the best fit, by drop and scale."""
    rows = []
    for drop in DROPS:
        for name, scale in (("kept", 1 - drop), ("printed", drop)):
            needed = values[f"needed_{name}_{drop}"]
            misfit = residual(values, name, drop)
            rows.append(
                [
                    f"{drop}",
                    f"{scale:.1f} ({'keep' if name == 'kept' else 'as printed'})",
                    f"{needed.min():.2f} to {needed.max():.2f}",
                    f"{misfit:.0%}" if misfit > 1e-3 else f"{misfit:.0e}",
                ]
            )
    return ["drop", "scale of the mean", "needed V[w'] / w^2", "residual / mean variance"], rows


EXHIBIT = Exhibit("weight-noise", "Fast dropout and weight noise", 2, measure, draw, caption, table)
