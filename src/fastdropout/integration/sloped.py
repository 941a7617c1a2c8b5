"""Element-wise functions where the variance needs no gradient: a backward pass only multiplies by a slope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional import slopes
from fastdropout.functional.smooth import gelu_tanh_gap
from fastdropout.integration import compiled
from fastdropout.integration.registry import Function, method
from fastdropout.moments import Moments, unchecked_moments

Sloped = Callable[..., slopes.Sloped]


def with_slope(of: Sloped, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Moments by a function that knows its slope; the gradient is that of the mean by the mean of x."""
    kwargs.pop("inplace", None)
    m, v = x._mean, x._var
    assert v is not None
    with torch.no_grad():
        mean, var, slope = of(m, v, *args, **kwargs)
    if m.requires_grad and torch.is_grad_enabled():
        mean = _line(m, mean, slope)
    return unchecked_moments(mean, var)


def linearised(rule: Callable[..., Moments], x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """An element-wise rule with its slope computed once, so that backward passes only multiply by it.

    The values are those of the rule; the gradient is that of its mean with respect to the mean of x.
    """
    if not x._mean.requires_grad or not torch.is_grad_enabled():
        with torch.no_grad():
            return rule(x, *args, **kwargs)
    with torch.enable_grad():
        leaf = unchecked_moments(x._mean.detach().requires_grad_(), x._var)
        y = rule(leaf, *args, **kwargs)
        (slope,) = torch.autograd.grad(y._mean.sum(), leaf._mean)
    return unchecked_moments(_line(x._mean, y._mean.detach(), slope), y._var)


class _Line(torch.autograd.Function):
    """The value `mean`, with the gradient `slope` by x; keeps nothing but the slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
        """`mean`, which is not x."""
        ctx.save_for_backward(slope)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """slope * grad."""
        return grad * ctx.saved_tensors[0], None, None


def _line(x: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    if torch._C._are_functorch_transforms_active():  # these take no function of autograd in the old style
        return torch.addcmul(mean, slope, x - x.detach())
    return _Line.apply(x, mean, slope)


def _quadrature(f: Callable[..., Tensor]) -> Sloped:
    def of(m: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> slopes.Sloped:
        return slopes.smooth(lambda a: f(a, *args, **kwargs), m, v)

    return of


def _compiled(name: str, reference: Sloped) -> Sloped:
    """The compiled function where it serves, else the reference; with arguments, always the reference."""

    def of(m: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> slopes.Sloped:
        found = None if args or kwargs else compiled.sloped(name, m, v)
        return reference(m, v, *args, **kwargs) if found is None else found

    return of


def _gelu(m: Tensor, v: Tensor, approximate: str = "none") -> slopes.Sloped:
    found = compiled.sloped("gelu", m, v)
    if found is None:
        return slopes.gelu(m, v, approximate)
    return found if approximate == "none" else (found[0] + gelu_tanh_gap(m, v), *found[1:])


SLOPED: dict[Function, Sloped] = {}

for _name, _of in {
    "relu": _compiled("relu", slopes.relu),
    "gelu": _gelu,
    "tanh": _compiled("tanh", slopes.tanh),
    "sigmoid": _compiled("sigmoid", slopes.sigmoid),
    "silu": _compiled("silu", _quadrature(F.silu)),
    "mish": _quadrature(F.mish),
    "softplus": _quadrature(F.softplus),
}.items():
    for _f in (getattr(torch, _name, None), getattr(F, _name, None), method(_name)):
        if _f is not None:
            SLOPED[_f] = _of
SLOPED[torch.special.expit] = SLOPED[torch.sigmoid]
