"""Probabilities of classes from logits that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

POINTS = 128


def expected_softmax(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[softmax(a)] of Gaussian logits, by points that are the same at every call.

    Points of a Sobol sequence and their mirror images stand for the Gaussian: deterministic, and the mean of
    the logits is exact.

    Shapes: mean (rows, classes), covariance (rows, classes, classes).
    """
    return torch.cat([p.mean(1).mT for p in _softmax_at_points(mean, covariance)])


def expected_entropy(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[entropy of softmax(a)] of Gaussian logits, in nats, by the same points.

    The entropy of `expected_softmax` less this is the mutual information of the class and the logits.

    Shapes: mean (rows, classes), covariance (rows, classes, classes), result (rows,).
    """
    parts = _softmax_at_points(mean, covariance)
    return torch.cat([-torch.special.xlogy(p, p).sum(0).mean(0) for p in parts])


def _softmax_at_points(mean: Tensor, covariance: Tensor) -> Iterator[Tensor]:
    """Probabilities at all points, (classes, points, rows), for some rows at a time."""
    classes = mean.shape[-1]
    points = _points(classes, mean.dtype)
    rows = max(1, 2**18 // (classes * len(points)))  # Few enough for a processor's cache.
    for m, root in zip(mean.split(rows), _root(covariance).split(rows), strict=True):
        # Classes first: the softmax over them then runs along rows, which is five times faster.
        a = m.mT.unsqueeze(1) + torch.einsum("rij,pj->ipr", root, points)
        yield a.softmax(0)


@lru_cache
def _points(classes: int, dtype: torch.dtype) -> Tensor:
    engine = torch.quasirandom.SobolEngine(classes, scramble=True, seed=0)
    half = torch.special.ndtri(engine.draw(POINTS // 2, dtype=torch.float64).clamp(1e-6, 1 - 1e-6))
    half = half / half.square().mean(0).sqrt()  # Variance 1 along every axis.
    return torch.cat([half, -half]).to(dtype)


def _root(covariance: Tensor) -> Tensor:
    """L with L L' = covariance, which may be singular: a millionth of its mean variance is added."""
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter = torch.diag_embed((1e-6 * scale + 1e-12).unsqueeze(-1).expand(covariance.shape[:-1]))
    root, info = torch.linalg.cholesky_ex(covariance + jitter)
    if not bool(info.any()):
        return root
    values, vectors = torch.linalg.eigh(covariance)  # Slower. Negative eigenvalues are rounding.
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
