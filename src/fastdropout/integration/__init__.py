"""Any torch network on Moments: rules by torch function, the trace of noise to its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from torch import Tensor

from fastdropout.integration import rules
from fastdropout.integration.checking import Check, check
from fastdropout.integration.noise import Gains, Noise
from fastdropout.integration.predict import Predictor
from fastdropout.integration.registry import register
from fastdropout.integration.sampled import Sampled

__all__ = ["Check", "Noise", "Predictor", "Sampled", "check", "integrate", "register", "rules"]


@overload
def integrate(
    model: None = None,
    *,
    gains: Gains = "moments",
    trace: bool = True,
    train_variance: bool = True,
    weight_var: Mapping[Tensor, Tensor] | None = None,
) -> Noise: ...


@overload
def integrate(model: Callable[..., Any], **options: Any) -> Predictor: ...


def integrate(model: Callable[..., Any] | None = None, **options: Any) -> Noise | Predictor:
    """Integrate out the dropout of any network that is called inside of the `with`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 50), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    >>> with integrate() as noise:
    ...     y = model(torch.ones(2, 3))
    >>> y.mean.shape, y.var.shape, noise.std(y).shape
    (torch.Size([2, 50]), torch.Size([2, 50]), torch.Size([2, 50]))

    Inside, `nn.Dropout` and its variants are active in `train()` and in `eval()` alike, and return Moments;
    every torch function of Moments returns Moments. A module that passes a rate of zero in `eval()` itself,
    such as the attention of `transformers`, must be in training mode; `integrate(model)` and `check` do that.
    There are two variances:

    - *diagonal*, `y.var`: units are taken as independent. It comes with the forward pass, and gradients flow
      through it: for training. Too small in trained networks.
    - *traced*, `noise.var(y)`: the sum over all sources of noise, found by autograd, with all correlations
      between units. One backward pass for each output of an example.

    `integrate(model)` is a callable instead: it returns Moments with the traced variance, see `Predictor` for
    its options.

    >>> predict = integrate(model)
    >>> predict(torch.ones(2, 3)).std.shape
    torch.Size([2, 50])

    Args:
        model: a network, for a callable; None for a context.
        gains: `"moments"` follows the noise through the moment rules, whose slopes know the spread of the
            units. `"plain"` follows it through the ordinary network: tensors flow instead of Moments, there
            is no diagonal variance, and no rule is needed for any function.
        trace: keep the sources. False saves their memory where only the diagonal variance is used.
        train_variance: False where the variance needs no gradients (prediction): the trace is cheaper.
        weight_var: variances of parameters that are Gaussian, such as a posterior found elsewhere. They are
            sources of noise like masks.
    """
    return Noise(**options) if model is None else Predictor(model, **options)
