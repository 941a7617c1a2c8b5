"""Linear layers and dropout of moments."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastdropout.functional.affine import METHODS, Effective, Method, affine, effective_method
from fastdropout.functional.propagate import dropout, sampled_dropout
from fastdropout.moments import Moments, as_moments
from fastdropout.nn.checked import Choice, Drop
from fastdropout.nn.noise import add_weight_noise, noisy
from fastdropout.serving import takes_moments


class Dropout(nn.Module):
    """Zero each unit with probability `drop`, with the noise integrated out or drawn.

    Kept units are not scaled up: the mean of a unit is (1 - drop) times its value, in training and in
    evaluation alike. `Linear` and `RNN` have dropout built in.

    >>> import torch
    >>> Dropout(0.5)(torch.tensor([2.0]))
    Moments(mean=tensor([1.]), var=tensor([1.]))
    """

    drop = Drop()
    method = Choice[Method](METHODS)

    def __init__(self, drop: float = 0.5, *, method: Method = "moments") -> None:
        super().__init__()
        self.drop, self.method = drop, method

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of the masked input."""
        x, method = as_moments(input), effective_method(self.method, self.training)
        if method == "mean":
            return x * (1 - self.drop)
        if method == "mask":
            return Moments.certain(sampled_dropout(x.mean, self.drop))
        z = dropout(x, self.drop)
        return Moments.certain(z.sample()) if method == "gaussian" else z

    def extra_repr(self) -> str:
        """The rate and the method."""
        return f"drop={self.drop}, method={self.method!r}"


class Linear(nn.Linear):
    """`torch.nn.Linear` of random units, of which each is dropped with probability `drop`.

    Takes a tensor or `Moments`, returns `Moments`. Weights are those of `torch.nn.Linear`.

    Args:
        in_features, out_features, bias, device, dtype: as in `torch.nn.Linear`.
        drop: probability that an incoming unit is zeroed.
        propagate: False for an ordinary pass that neglects the variance of the incoming units: the paper's
            "no fast dropout for the final layer". Unlike `drop=0`, which passes that variance on.
        method: `"moments"` integrates the noise out; `"gaussian"` draws the output from its moments (the
            paper's sampling variant); `"mask"` draws the mask (ordinary dropout). In `eval()` nothing is
            drawn: `"gaussian"` returns moments and `"mask"` the pass with (1 - drop) times the units.

        E[a] = keep W E[x] + b
        V[a] = (W o W) (keep V[x] + keep drop E[x]^2)

    >>> import torch, fastdropout as fd
    >>> layer = fd.nn.Linear(3, 1, bias=False, drop=0.5)
    >>> _ = torch.nn.init.ones_(layer.weight)
    >>> y = layer(torch.ones(3))
    >>> y.mean.item(), y.var.item()
    (1.5, 0.75)
    """

    drop = Drop()
    method = Choice[Method](METHODS)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        drop: float = 0.0,
        propagate: bool = True,
        method: Method = "moments",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.drop, self.method = drop, method
        if not propagate and drop:
            raise ValueError(
                f"drop must be 0 where propagate=False (no noise enters such a layer), got {drop}"
            )
        self.propagate = propagate

    @property
    def _method(self) -> Effective:
        return effective_method(self.method, self.training)

    def _weights(self) -> tuple[Tensor | Moments, Tensor | Moments | None]:
        return self.weight, self.bias

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of the pre-synaptic units, shape (*, out_features)."""
        x = as_moments(input)
        check_fits(x, self.weight, self.in_features)
        weight, bias = self._weights()
        if not self.propagate:
            return affine(Moments.certain(x.mean), weight, bias, 0.0)
        return linear_by_method(self._method, x, weight, bias, self.drop)

    def extra_repr(self) -> str:
        """The arguments."""
        text = f"{super().extra_repr()}, drop={self.drop}, method={self.method!r}"
        return text if self.propagate else text + ", propagate=False"


class NoisyLinear(Linear):
    """A linear layer of Gaussian weights: adaptive weight noise in closed form, or drawn (Graves, 2011).

    `weight` and `bias` are the means, `weight_log_std` and `bias_log_std` are learnt beside them. Add
    `weight_noise_kl(model) / n` to the loss. Under `method="mask"` the weights are drawn once a call, as in
    Graves (2011).

    >>> import torch
    >>> NoisyLinear(3, 2)(torch.ones(3)).var.shape
    torch.Size([2])
    """

    def __init__(self, *args: Any, std: float = 0.075, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add_weight_noise(self, "weight", std)
        if self.bias is not None:
            add_weight_noise(self, "bias", std)

    def _weights(self) -> tuple[Tensor | Moments, Tensor | Moments | None]:
        weight, bias = noisy(self, "weight"), None if self.bias is None else noisy(self, "bias")
        if self._method == "mean":
            return weight.mean, None if bias is None else bias.mean
        if self._method == "mask":
            return weight.sample(), None if bias is None else bias.sample()
        return weight, bias


def linear_by_method(
    method: Effective,
    x: Moments,
    weight: Tensor | Moments,
    bias: Tensor | Moments | None,
    drop: float,
) -> Moments:
    """A linear pass by the method that applies in training or in evaluation."""
    if method == "mean":
        return affine(Moments.certain(x.mean * (1 - drop)), weight, bias, 0.0)
    if method == "mask":
        return affine(x, weight, bias, drop, "mask")
    y = affine(x, weight, bias, drop)
    return Moments.certain(y.sample()) if method == "gaussian" else y


def check_fits(x: Moments, weight: Tensor, features: int) -> None:
    """Raise for an input whose last dimension or dtype does not match the weight's."""
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(
            f"input must have {features} features in its last dimension, got shape {tuple(x.shape)}"
        )
    if x.dtype != weight.dtype:
        raise ValueError(f"input must have the dtype of the weights, {weight.dtype}, got {x.dtype}")
