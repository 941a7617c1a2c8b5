"""The paper's initialisation, in place as in `torch.nn.init`, and what it says about stability."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastdropout.functional.propagate import check_drop


@torch.no_grad()
def gaussian_(tensor: Tensor, var: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw from N(0, var); the paper's sigma^2.

    >>> import torch, fastdropout as fd
    >>> weight = fd.nn.init.gaussian_(torch.empty(100, 100), var=0.01)
    >>> round(weight.std().item(), 1)
    0.1
    """
    if not 0 <= var < math.inf:
        raise ValueError(f"var must be finite and at least 0, got {var}")
    return tensor.normal_(0, math.sqrt(var), generator=generator)


@torch.no_grad()
def sparse_(weight: Tensor, nu: int, generator: torch.Generator | None = None) -> Tensor:
    """Keep `nu` random incoming weights of each unit (each row), set the others to zero.

    >>> import torch, fastdropout as fd
    >>> weight = fd.nn.init.sparse_(torch.ones(4, 10), nu=3)
    >>> (weight != 0).sum(1)
    tensor([3, 3, 3, 3])
    """
    _check_matrix(weight)
    if isinstance(nu, bool) or not isinstance(nu, int) or not nu >= 1:
        raise ValueError(f"nu must be a whole number of at least 1, got {nu!r}")
    order = torch.rand(weight.shape, generator=generator, device=weight.device).argsort(1)
    return weight.masked_fill_(order.argsort(1) >= nu, 0)


@torch.no_grad()
def spectral_radius_(weight: Tensor, radius: float) -> Tensor:
    """Scale a square matrix to the spectral radius `radius`.

    >>> import torch, fastdropout as fd
    >>> weight = fd.nn.init.spectral_radius_(torch.diag(torch.tensor([3.0, -4.0])), 1.2)
    >>> weight.diagonal()
    tensor([ 0.9000, -1.2000])
    """
    if not 0 <= radius < math.inf:
        raise ValueError(f"radius must be finite and at least 0, got {radius}")
    current = spectral_radius(weight)
    if current == 0 and radius > 0:
        raise ValueError("a matrix of spectral radius 0 cannot be scaled to another")
    return weight.mul_(radius / current if radius else 0.0)


@torch.no_grad()
def spectral_radius(weight: Tensor) -> float:
    """The largest absolute value of an eigenvalue of a square matrix.

    >>> import torch, fastdropout as fd
    >>> fd.nn.init.spectral_radius(torch.diag(torch.tensor([3.0, -4.0])))
    4.0
    """
    _check_matrix(weight)
    if weight.shape[0] != weight.shape[1]:
        raise ValueError(f"the spectral radius needs a square matrix, got shape {tuple(weight.shape)}")
    if not torch.isfinite(weight).all():
        raise ValueError("the spectral radius needs finite weights, got NaN or infinity")
    if weight.numel() == 0:
        raise ValueError("the spectral radius needs a matrix with elements, got an empty one")
    return float(torch.linalg.eigvals(weight.double()).abs().max())


def variance_radius(weight: Tensor, drop: float) -> float:
    """Below 1, the recurrence of the variance is stable, whatever the slope of the transfer function.

        keep rho(W o W)

    A step maps a small variance v to at most keep (W o W) v. The paper bounds rho(W o W) by rho(W)^2, which
    does not hold for every matrix: W = [[1, 1], [-1, -1]] has rho(W) = 0 and rho(W o W) = 2.

    >>> variance_radius(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), drop=0.25)
    1.5
    """
    return (1 - check_drop(drop)) * spectral_radius(weight.detach() ** 2)


def _check_matrix(weight: Tensor) -> None:
    if weight.ndim != 2:
        raise ValueError(f"weight must be a matrix, got shape {tuple(weight.shape)}")
