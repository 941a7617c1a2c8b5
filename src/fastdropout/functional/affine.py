"""A dropped-out linear layer by any method, and which method applies in training and in evaluation."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from fastdropout.functional import propagate
from fastdropout.moments import Moments

Method = Literal["moments", "gaussian", "mask"]
Effective = Literal["moments", "gaussian", "mask", "mean"]
METHODS: tuple[str, ...] = get_args(Method)


def check_method(method: str) -> None:
    """Raise ValueError for an unknown method."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def effective_method(method: Method, training: bool) -> Effective:
    """What `method` means in training and in evaluation, where nothing is drawn.

    In evaluation `"gaussian"` is `"moments"`, and `"mask"` is `"mean"`: the ordinary pass with (1 - drop)
    times the units.
    """
    if training or method == "moments":
        return method
    return "moments" if method == "gaussian" else "mean"


def affine(
    x: Moments,
    weight: Tensor | Moments,
    bias: Tensor | Moments | None,
    drop: float,
    method: Method = "moments",
) -> Moments:
    """Dropout of the incoming units, then a linear layer, of certain or of Gaussian weights.

    Under `method="mask"` the mask is drawn; under the others its moments are propagated.
    """
    z = (
        Moments.certain(propagate.sampled_dropout(x.mean, drop))
        if method == "mask"
        else propagate.dropout(x, drop)
    )
    if isinstance(weight, Moments):
        return propagate.noisy_linear(z, weight, bias)
    return propagate.linear(z, weight, bias)  # type: ignore[arg-type]
