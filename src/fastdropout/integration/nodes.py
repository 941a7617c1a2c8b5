"""Moments of an element-wise function by the trapezoid rule, few points and little memory: for networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fastdropout.moments import Moments, unchecked_moments


def transform(f: Callable[[Tensor], Tensor], x: Moments, *, step: float = 0.5, count: int = 13) -> Moments:
    """Mean and variance of f(a), a Gaussian, of 2 count + 1 points `step` standard deviations apart.

    With the defaults the reach is 6.5 standard deviations, and what is smooth within half of one is exact to
    1e-6. One point after the other, which is faster than all at once: they stay in the cache.
    """
    weights = {k: math.exp(-0.5 * (k * step) ** 2) for k in range(-count, count + 1)}
    total = sum(weights.values())
    # The root's slope is infinite at zero, where all points coincide.
    positive = x.var > 0
    std = torch.where(positive, x.var, 1).sqrt() * positive
    centre = f(x.mean)
    first, second = torch.zeros_like(centre), torch.zeros_like(centre)
    for k, weight in weights.items():
        if k:
            shift = f(x.mean + (k * step) * std) - centre
            first = torch.add(first, shift, alpha=weight / total)
            second = torch.addcmul(second, shift, shift, value=weight / total)
    # Never negative in exact arithmetic.
    return unchecked_moments(centre + first, torch.clamp(second - first**2, min=0))
