"""The sampled twin of `integrate()`: the same dropout, drawn. What the integrals are checked against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.functional.propagate import sampled_dropout
from fastdropout.integration.context import Context, quiet
from fastdropout.integration.registry import TABLE
from fastdropout.integration.values import mapped
from fastdropout.moments import Moments, as_moments

_DRAWS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.dropout: F.dropout,
    torch.alpha_dropout: F.alpha_dropout,
    torch.feature_dropout: F.dropout2d,
    torch.feature_alpha_dropout: F.feature_alpha_dropout,
}


class Sampled(Context):
    """Draws what `integrate()` integrates out: masks in `train()` and `eval()` alike, noisy inputs, weights.

    >>> with Sampled():
    ...     y = F.dropout(torch.ones(1000), 0.5, training=False)
    >>> sorted(y.unique().tolist())
    [0.0, 2.0]
    """

    def serve(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The plain function of drawn values; dropout draws its mask."""
        args, kwargs = mapped(args, self._drawn), mapped(kwargs, self._drawn)
        entry = TABLE.get(func)
        if entry is not None and entry.begins:
            if entry.kind == "composite":
                if entry.noisy is not None and not entry.noisy(*args, **kwargs):
                    with quiet():
                        return func(*args, **kwargs)
                with self.active():
                    return entry.call(func, *args, **kwargs) if entry.generic else entry.call(*args, **kwargs)
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            with quiet():
                return _DRAWS.get(func, func)(args[0], p, True)
        with quiet():
            return func(*args, **kwargs)

    def mask(
        self, x: Tensor | Moments, drop: float, *, scale: bool = True, shared: tuple[int, ...] = ()
    ) -> Moments:
        """A drawn mask, as a certain value."""
        drawn = sampled_dropout(self._drawn(as_moments(x)), drop)
        return Moments.certain(drawn / (1 - drop) if scale else drawn)

    def gaussian(self, mean: Tensor, var: Tensor) -> Moments:
        """A draw, as a certain value."""
        return Moments.certain(Moments(mean, var).sample())

    def _drawn(self, x: Moments) -> Tensor:
        return x._mean if x.is_certain else self.enter(x)._mean
