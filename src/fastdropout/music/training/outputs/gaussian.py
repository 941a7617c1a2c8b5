"""Real values: a Gaussian for each feature."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastdropout.functional.losses import gaussian_nll
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.music.training.outputs.base import BINS, Loss, Output


class Gaussian(Output):
    """y_i = a_i + e_i with the context a and noise e_i of a learnt variance, both in standard units.

    The network reads and predicts (y - centre) / scale, with the centre and scale of the training data, which
    are kept as buffers; losses, expectations and draws are in the units of the data.
    """

    real = True
    centre: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.log_var = nn.Parameter(torch.zeros(features))
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    @property
    def ceiling(self) -> float:
        """Ten times the entropy of a standard normal for each feature, in the units of the data."""
        entropy = 0.5 * math.log(2 * math.pi * math.e)
        return 10 * self.features * entropy + float(self.scale.abs().log().sum())

    def silence(self) -> Tensor:
        """The centre."""
        return self.centre

    def encode(self, inputs: Tensor) -> Tensor:
        """Standard units."""
        return (inputs - self.centre) / self.scale

    def parameters_of(self, context: Moments, frames: Tensor | None) -> Moments:
        """Moments of a, in standard units."""
        return context

    def nll(self, parameters: Moments, frames: Tensor, loss: Loss = "mean") -> Tensor:
        """-log of a Gaussian with the moments of y (`mean`), or E[-log p(y | a)] (`expected`)."""
        target = self.encode(frames).expand(parameters.shape)
        noise = self.log_var.exp().expand(parameters.shape)
        if loss == "mean":
            elementwise = gaussian_nll(unchecked_moments(parameters.mean, parameters.var + noise), target)
        else:
            elementwise = gaussian_nll(unchecked_moments(parameters.mean, noise), target) + parameters.var / (
                2 * noise
            )
        return (elementwise + self.scale.log()).sum(-1)

    def expected(self, parameters: Moments) -> Moments:
        """Mean and variance of the value, in the units of the data."""
        y = self._predictive(parameters)
        return y * self.scale + self.centre

    def tally(self, parameters: Moments, frames: Tensor, mask: Tensor) -> Tensor:
        """By the quantile q: values that were predicted, q times them, and how many lie below it."""
        y = self._predictive(parameters[mask])
        place = torch.special.ndtr(((self.encode(frames[mask]) - y.mean) / y.std).double()).flatten()
        q = (torch.arange(BINS, dtype=torch.float64) + 0.5) / BINS
        below = (place[:, None] < q).sum(0).double()
        count = torch.full_like(q, len(place))
        return torch.stack([count, count * q, below])

    def noise(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal."""
        return torch.randn(*shape, generator=generator)

    def choose(self, parameters: Moments, noise: Tensor, temperature: float, shift: Tensor | None) -> Tensor:
        """Values in the units of the data; the standard deviation is multiplied by the temperature."""
        y = self.expected(parameters)
        return y.mean + temperature * y.std * noise

    def _predictive(self, parameters: Moments) -> Moments:
        """Moments of y in standard units."""
        noise = self.log_var.exp().expand(parameters.shape)
        return unchecked_moments(parameters.mean, parameters.var + noise)
