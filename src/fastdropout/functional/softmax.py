"""Softmax of independent Gaussians: no closed form, so by a few chosen points or by many drawn ones."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from fastdropout.moments import Moments, as_moments, unchecked_moments

Points = Literal["unscented", "sampling"]


def softmax(
    x: Moments | Tensor,
    dim: int = -1,
    *,
    by: Points = "unscented",
    samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Moments:
    """Moments of softmax(a) along `dim`, by an unscented transform or by sampling (the paper, sec. 2.2.1)."""
    log_p, log_weight = log_softmax_points(x, dim, by=by, samples=samples, generator=generator)
    p = log_p.exp()
    weight = log_weight.exp()
    mean = (p * weight).sum(0)
    return unchecked_moments(mean, ((p - mean) ** 2 * weight).sum(0))


def log_softmax_points(
    x: Moments | Tensor,
    dim: int = -1,
    *,
    by: Points = "unscented",
    samples: int = 1000,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax at points that stand for the distribution, and the points' log weights.

    Shapes: (points, *x.shape) and (points, 1, ..., 1).

    The unscented transform (Julier & Uhlmann, 1997) of n variables takes the mean and, along each variable
    alone, the mean +- sqrt(n + 1) standard deviations, with weights 1 / (n + 1) and 1 / (2 (n + 1)): the two
    moments of the input are exact and no weight is negative, so no variance is. It costs 2 n + 1 evaluations.
    """
    x = as_moments(x)
    if by not in get_args(Points):
        raise ValueError(f"by must be one of {', '.join(get_args(Points))}, got {by!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if x.is_certain:
        points, log_weight = x.mean[None], x.mean.new_zeros(1)
    elif by == "sampling":
        points = x.sample((samples,), generator)
        log_weight = x.mean.new_full((samples,), -math.log(samples))
    else:
        points, log_weight = _sigma_points(x, dim)
    dim = dim % x.ndim + 1
    return torch.log_softmax(points, dim), log_weight.view(-1, *[1] * x.ndim)


def _sigma_points(x: Moments, dim: int) -> tuple[Tensor, Tensor]:
    n = x.shape[dim]
    # The root's slope is infinite at zero, where the two points of a variable coincide.
    spread = torch.where(x.var > 0, x.var, 1).sqrt() * (x.var > 0) * math.sqrt(n + 1)
    one_at_a_time = torch.eye(n, dtype=x.dtype, device=x.device).view(
        n, *[n if i == dim % x.ndim else 1 for i in range(x.ndim)]
    )
    offset = one_at_a_time * spread
    points = torch.cat([x.mean[None], x.mean + offset, x.mean - offset])
    log_weight = x.mean.new_full((2 * n + 1,), -math.log(2 * (n + 1)))
    log_weight[0] = -math.log(n + 1)
    return points, log_weight
