"""`integrate(model)`: a callable that returns Moments with the traced variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fastdropout.integration.modes import rates_passed_on
from fastdropout.integration.noise import Gains, Noise
from fastdropout.integration.trace import MEMORY
from fastdropout.moments import Moments, unchecked_moments


class Predictor:
    """A network that returns Moments with the *traced* variance: the dropout inside is integrated out.

    The first call finds out by two more backward passes whose each source of noise is. Later calls with the
    same shapes, functions and indices know it.

    Works under `torch.no_grad()` and in `torch.inference_mode()` too, leaves no gradients and changes nothing
    in the network. `train()` and `eval()` give the same variance: a module that hands on its dropout rate in
    training mode only (the attention of `transformers`) is in training mode during the call, it alone. This
    needs the network itself: of a function that calls one, only the function is known.

    Args:
        model: any torch network, or a function that calls one.
        output: which of its outputs: an attribute, a key or an index, or a function that picks it. None for
            all of them.
        batch_dim: the dimension of the output that counts the examples; None if it has none.
        gains, weight_var: as in `integrate`; weights may go by their names in the network.
        memory: bytes for gradients that are computed at once.

    >>> import torch, fastdropout as fd
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    >>> predict = fd.integrate(net)
    >>> y = predict(torch.ones(4, 3))
    >>> type(predict).__name__, y.mean.shape, torch.allclose(y.var, (net[1].weight ** 2).sum())
    ('Predictor', torch.Size([4, 1]), True)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        output: str | int | Callable[[Any], Any] | None = None,
        batch_dim: int | None = 0,
        gains: Gains = "moments",
        weight_var: Mapping[Any, Tensor] | None = None,
        memory: int = MEMORY,
    ) -> None:
        if not callable(model):
            raise TypeError(f"model must be a network or a function, got {type(model).__name__}")
        self.model, self.output = model, output
        self.batch_dim, self.gains, self.memory = batch_dim, gains, memory
        self.weight_var = named_weights(model, weight_var)
        self._owners: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, with Moments instead of the tensors that depend on noise."""
        with torch.inference_mode(False), torch.enable_grad():
            args, kwargs = pytree.tree_map_only(Tensor, _usable, (args, kwargs))
            options: dict[str, Any] = {"gains": self.gains, "weight_var": self.weight_var}
            options["owners"] = self._owners
            with (
                rates_passed_on(self.model),
                Noise(train_variance=False, predicts=True, **options) as noise,
            ):
                out = self._picked(self.model(*args, **kwargs))
            traced: dict[int, Moments] = {}

            def trace(y: Any) -> Any:
                if isinstance(y, Tensor) and not y.is_floating_point():
                    return y
                if id(y) not in traced:
                    mean = y._mean if isinstance(y, Moments) else y
                    var = noise.var(y, batch_dim=self.batch_dim, memory=self.memory)
                    traced[id(y)] = unchecked_moments(mean.detach(), var)
                return traced[id(y)]

            return pytree.tree_map(trace, out, is_leaf=lambda x: isinstance(x, Moments | Tensor))

    def _picked(self, out: Any) -> Any:
        if self.output is None:
            return out
        if callable(self.output):
            return self.output(out)
        if isinstance(self.output, str) and hasattr(out, self.output):
            return getattr(out, self.output)
        return out[self.output]

    def __repr__(self) -> str:
        return f"integrate({self.model!r})"


def named_weights(model: Any, weight_var: Mapping[Any, Tensor] | None) -> dict[Tensor, Tensor] | None:
    """Variances by parameter, from variances by name or by parameter."""
    if weight_var is None:
        return None
    names = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    found = {}
    for key, var in weight_var.items():
        if isinstance(key, str) and key not in names:
            raise ValueError(f"weight_var must name parameters of the network, got {key!r}")
        found[names[key] if isinstance(key, str) else key] = var
    return found


def _usable(x: Tensor) -> Tensor:
    """A tensor that autograd can save: not one of inference mode."""
    return x.clone() if x.is_inference() else x
