"""A weight that is two leaves: one for the products of the mean, one, its square, for those of the variance.

The pre-synaptic moments of every layer are E[a] = W E[z] + b and V[a] = (W o W) V[z]: two products, of which
`functional.propagate.linear` makes one with `weight` and one with `weight**2`. A `SplitWeight` in the place
of the weight hands out a leaf of its own to each, so that one backward pass of an unchanged network gives
dJ/dW along the mean and dJ/d(W o W) along the variance, summed over examples and over all steps at which a
weight is used. No layer knows of it; the fused recurrence sees a subclass and leaves the work to the
reference, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

_SQUARES = frozenset({"__pow__", "pow", "square"})


@dataclass(frozen=True)
class Product:
    """One product of a weight that took place: what came in and what came out, kept in the graph."""

    incoming: Tensor
    outgoing: Tensor


@dataclass
class Leaves:
    """The two leaves of a weight, and the products they took part in."""

    weight: Tensor
    square: Tensor
    of_mean: list[Product] = field(default_factory=list)
    of_variance: list[Product] = field(default_factory=list)

    @classmethod
    def of(cls, weight: Tensor) -> Leaves:
        """New leaves with the values of `weight` and of its square."""
        value = weight.detach().clone()
        return cls(value.requires_grad_(), (value.detach() ** 2).requires_grad_())


class _Marked(Tensor):
    """A tensor that hands out `leaf` in its place and notes the linear layers it takes part in."""

    leaf: Tensor
    products: list[Product]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, SplitWeight) and func.__name__ in _SQUARES and args[1:] in ((), (2,)):
            return first.squared()
        plain_args, plain_kwargs = pytree.tree_map_only(
            _Marked, lambda t: t.leaf, (tuple(args), dict(kwargs))
        )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*plain_args, **plain_kwargs)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if func is F.linear and isinstance(weight, _Marked):
            weight.products.append(Product(plain_args[0], result))
        return result


class SplitWeight(_Marked):
    """Stands for a weight; its square is a leaf of its own."""

    leaves: Leaves

    @staticmethod
    def over(leaves: Leaves) -> SplitWeight:
        """A stand-in for the weight of `leaves`."""
        marked = torch.Tensor._make_subclass(SplitWeight, leaves.weight.detach())
        marked.leaf, marked.products, marked.leaves = leaves.weight, leaves.of_mean, leaves
        return marked

    def squared(self) -> Tensor:
        """The stand-in for the squared weight."""
        marked = torch.Tensor._make_subclass(_Marked, self.leaves.square.detach())
        marked.leaf, marked.products = self.leaves.square, self.leaves.of_variance
        return marked
