"""Both variances against sampled masks, for one network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.integrate.networks import looked_at, outputs, sampling, set_rates
from fastdropout import Moments
from fastdropout.serving import Refusal

EXAMPLES = 8
TINY = 1e-12  # a rate at which Moments flow through every rule, with next to no variance
Call = Callable[..., Any]
# The most examples that are computed at once with masks.
ROWS = 512


def correlation(a: Tensor, b: Tensor) -> float:
    """Over outputs and examples."""
    return torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1].item()


@dataclass(frozen=True)
class Truth:
    """Mean and standard deviation over masks, and the correlation that a perfect prediction would have.

    The latter is the root of the correlation between the deviations of two independent sets of `masks`,
    which is estimated from two halves (Spearman and Brown's formula).
    """

    mean: Tensor
    std: Tensor
    best_correlation: float

    @classmethod
    def of(cls, draws: Tensor) -> Truth:
        """From draws, the masks first."""
        half = correlation(draws[::2].std(0), draws[1::2].std(0))
        return cls(draws.mean(0), draws.std(0), math.sqrt(max(0.0, 2 * half / (1 + half))))


@torch.no_grad()
def sampled(model: nn.Module, inputs: dict[str, Tensor], masks: int, seed: int) -> Truth:
    """Batches of masks: every example is repeated."""
    torch.manual_seed(seed)
    sampling(model)
    examples = len(next(iter(inputs.values())))
    at_once = max(1, min(masks, ROWS // examples))
    repeated = {name: x.repeat(at_once, *[1] * (x.ndim - 1)) for name, x in inputs.items()}
    draws = [
        looked_at(outputs(model, repeated)).unflatten(0, (at_once, examples)).double()
        for _ in range(math.ceil(masks / at_once))
    ]
    model.eval()
    return Truth.of(torch.cat(draws)[:masks])


def compare(diagonal: Moments, traced: Moments, truth: Truth) -> dict[str, Any]:
    """Ratios of mean standard deviations; errors of the mean in true standard deviations."""
    size = truth.std.mean()
    known = not isinstance(diagonal._var, Refusal)
    return {
        "true_std": size.item(),
        "diagonal": (diagonal.std.mean() / size).item() if known else None,
        "diagonal_correlation": correlation(diagonal.std, truth.std) if known else None,
        "traced": (traced.std.mean() / size).item(),
        "correlation": correlation(traced.std, truth.std),
        "best_correlation": truth.best_correlation,
        "mean_error": ((traced.mean - truth.mean).abs().mean() / size).item(),
    }


def both(call: Call, inputs: dict[str, Any]) -> tuple[Moments, Moments]:
    """The outputs that are looked at: with the diagonal and with the traced variance."""
    with torch.no_grad(), fd.integrate(trace=False):
        diagonal = looked_at(call(**inputs))
    traced = fd.integrate(lambda **x: looked_at(call(**x)))(**inputs)
    return diagonal, traced


def against_masks(model: nn.Module, inputs: dict[str, Tensor], truth: Truth) -> dict[str, Any]:
    """One row: the model as it is, with the rates that it has.

    In training mode, because attention in `transformers` hands a rate of zero on in evaluation mode.
    """
    sampling(model)
    row = compare(*both(lambda **x: outputs(model, x), inputs), truth)
    model.eval()
    with torch.no_grad():
        plain = looked_at(outputs(model, inputs))
    return {**row, "plain_mean_error": ((plain - truth.mean).abs().mean() / truth.std.mean()).item()}


def without_dropout(model: nn.Module, inputs: dict[str, Tensor]) -> float:
    """The largest difference to the plain model over its largest output, without dropout and at 1e-12."""
    model.eval()
    with torch.no_grad():
        plain = outputs(model, inputs)
    worst = 0.0
    for drop in (TINY, 0.0):
        set_rates(model, drop)
        model = sampling(model) if drop else model.eval()
        given = inputs if drop else {k: _certain(x) for k, x in inputs.items()}
        with torch.no_grad(), fd.integrate(trace=False):
            y = outputs(model, given)
        mean = y.mean if isinstance(y, Moments) else y
        worst = max(worst, ((mean - plain).abs().max() / plain.abs().max()).item())
    return worst


def _certain(x: Tensor) -> Any:
    return Moments.certain(x) if x.is_floating_point() else x


def settle(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Give batch norm the statistics of data: with 0 and 1 the features of random weights die out."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        model.train()(**inputs)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
