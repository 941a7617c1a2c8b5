"""Moments of common activations together with the slope of the mean, dE[f(a)] / dE[a], without autograd.

Where the variance needs no gradient, as in prediction, the slope is all that a backward pass multiplies by.
E[f'(a)] is that slope (Stein's lemma), so most formulas have it at hand. The values are those of `transfer`,
`smooth` and `elementwise`, of the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastdropout.functional.elementwise import NODES
from fastdropout.functional.normal import density, upper
from fastdropout.functional.smooth import gelu_tanh_gap, gelu_with_slope
from fastdropout.functional.transfer import fast_tanh_with_slope

# Mean, variance, slope of f(a) for a of mean m and variance v.
Sloped = tuple[Tensor, Tensor, Tensor]


def relu(m: Tensor, v: Tensor) -> Sloped:
    """`transfer.relu`, and E[f'] = Phi(m / s)."""
    # Beyond 12 standard deviations the unit is plainly on or off; further out float32 has denormal numbers.
    s = v.clamp(min=torch.finfo(v.dtype).tiny ** 0.6).sqrt_()
    b = (m / s).abs_().clamp_(max=12)
    phi, q = density(b), upper(b)
    g = torch.addcmul(phi, b, q, value=-1)
    tail = torch.addcmul(q, b, g, value=-1).addcmul_(g, g, value=-1).clamp_(min=0)
    on = (m > 0).to(m.dtype)
    # Phi(r) = q for r < 0, 1 - q for r > 0.
    sign = 1 - 2 * q
    return torch.relu(m).add_(s.mul_(g)), tail.addcmul_(on, sign).mul_(v), q.addcmul_(on, sign)


def gelu(m: Tensor, v: Tensor, approximate: str = "none") -> Sloped:
    """`smooth.gelu`, and E[f'] = Phi(h) + m r^3 phi(h)."""
    mean, var, slope = gelu_with_slope(m, v)
    if approximate == "tanh":
        mean = mean + gelu_tanh_gap(m, v)
    return mean, var, slope


def tanh(m: Tensor, v: Tensor) -> Sloped:
    """`transfer.tanh` by the rule `fast`."""
    return fast_tanh_with_slope(m, v)


def sigmoid(m: Tensor, v: Tensor) -> Sloped:
    """`transfer.sigmoid` by the rule `fast`: (1 + tanh(a / 2)) / 2."""
    mean, var, slope = fast_tanh_with_slope(m / 2, v / 4)
    return (1 + mean) / 2, var / 4, slope / 4


def smooth(f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor) -> Sloped:
    """A smooth f by the nodes of `elementwise`; the slope is E[f(a) (a - m)] / v."""
    s = v.sqrt()
    middle = f(m)
    first, second, slope = torch.zeros_like(m), torch.zeros_like(m), torch.zeros_like(m)
    for z, w in NODES:
        above = f(torch.add(m, s, alpha=z)).sub_(middle)
        below = f(torch.add(m, s, alpha=-z)).sub_(middle)
        slope.add_(above, alpha=w * z).sub_(below, alpha=w * z)
        first.add_(above, alpha=w).add_(below, alpha=w)
        second.addcmul_(above, above, value=w).addcmul_(below, below, value=w)
    # Of a small variance the quotient loses its digits, and f' itself is as good.
    small = v < 1e-5
    slope = slope / torch.where(small, 1, s)
    if small.any():
        with torch.enable_grad():
            at = m.detach().requires_grad_()
            (plain,) = torch.autograd.grad(f(at).sum(), at)
        slope = torch.where(small, plain, slope)
    return middle + first, torch.clamp(second - first**2, min=0), slope
