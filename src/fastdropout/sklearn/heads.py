"""What the outputs of a network mean: a Gaussian target, or classes. Losses and predictions of moments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastdropout.functional import losses
from fastdropout.functional.transfer import logit_of_expected
from fastdropout.moments import Moments, unchecked_moments
from fastdropout.sklearn.classes import expected_softmax
from fastdropout.sklearn.network import Weights

# exp(10) times the variance of all targets: far from the training rows a learnt log variance grows without
# bound, and its exponential would be infinite in float32.
MAX_LOG_NOISE = 10.0
FLOOR = 1e-6  # of a variance, where targets have variance 1: targets that are met exactly have no density


@dataclass(frozen=True)
class GaussianHead:
    """y = f(x) + noise, both random: V[y] = V[f] (model) + E[exp(a)] (noise), a the log variance.

    `heteroscedastic`: a is a second output of the network for each target; else it is a learnt number.
    """

    targets: int
    heteroscedastic: bool = False

    @property
    def outputs(self) -> int:
        """How many outputs the network needs."""
        return self.targets * (1 + self.heteroscedastic)

    def draw(self, k: int, dtype: npt.DTypeLike) -> dict[str, npt.NDArray[Any]]:
        """First weights beside those of the network."""
        return {} if self.heteroscedastic else {"log_noise": np.full((k, self.targets), -1.0, dtype)}

    def split(self, weights: Weights, out: Moments) -> tuple[Moments, Moments]:
        """f and a, each (k, rows, targets)."""
        if not self.heteroscedastic:
            return out, Moments.certain(weights["log_noise"].unsqueeze(1).expand_as(out.mean))
        f, a = out[..., : self.targets], out[..., self.targets :]
        return f, unchecked_moments(a.mean.clamp(max=MAX_LOG_NOISE), a.var)

    def noise(self, a: Moments) -> Tensor:
        """E[exp(a)] of a Gaussian a: exp(E[a] + V[a] / 2)."""
        return torch.exp((a.mean + a.var / 2).clamp(max=MAX_LOG_NOISE)) + FLOOR

    def loss(self, weights: Weights, out: Moments, target: Tensor, expected: bool) -> Tensor:
        """Negative log-likelihood of the targets of a row, (k, rows).

        of the mean   -log N(y; E[f], V[f] + E[exp(a)])
        expected      E[-log N(y; f, exp(a))]
                      = (E[exp(-a)] ((E[f] - y)^2 + V[f]) + E[a] + log 2 pi) / 2,  f and a independent
        """
        return self._nll(*self.split(weights, out), target, expected).sum(-1)

    def objective(self, weights: Weights, out: Moments, target: Tensor, expected: bool) -> Tensor:
        """What training minimises: the loss, with rows of a variance of their own weighted by its root.

        Otherwise rows that are not met yet are taken for noisy ones and never met: beta-NLL with beta = 1/2
        (Seitzer et al., 2022).
        """
        f, a = self.split(weights, out)
        nll = self._nll(f, a, target, expected)
        return (nll * (f.var + self.noise(a)).detach().sqrt() if self.heteroscedastic else nll).sum(-1)

    def _nll(self, f: Moments, a: Moments, target: Tensor, expected: bool) -> Tensor:
        if not expected:
            total = unchecked_moments(f.mean, f.var + self.noise(a))
            return losses.gaussian_nll(total, target, FLOOR)
        log_noise = a.mean.clamp(min=math.log(FLOOR))
        precision = torch.exp((a.var / 2 - log_noise).clamp(max=-math.log(FLOOR)))
        return 0.5 * (precision * ((f.mean - target) ** 2 + f.var) + log_noise + math.log(2 * math.pi))


@dataclass(frozen=True)
class CategoricalHead:
    """Classes by the softmax of random logits; two classes by the sigmoid of one."""

    classes: int

    @property
    def outputs(self) -> int:
        """How many outputs the network needs."""
        return 1 if self.classes == 2 else self.classes

    def draw(self, k: int, dtype: npt.DTypeLike) -> dict[str, npt.NDArray[Any]]:
        """No weights beside those of the network."""
        return {}

    def loss(self, weights: Weights, out: Moments, target: Tensor, expected: bool) -> Tensor:
        """-log E[p], or E[-log p], of the class of each row, (k, rows)."""
        if self.classes == 2:
            nll = losses.expected_bernoulli_nll if expected else losses.bernoulli_nll
            return nll(out.squeeze(-1), target.to(out.dtype))
        logits = out.flatten(0, 1)
        each = losses.cross_entropy(logits, target.flatten(), reduction="none", expected=expected)
        return each.view(target.shape)

    objective = loss

    def probabilities(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """E[p] of Gaussian logits, (rows, classes), from their means and covariances."""
        if self.classes == 2:
            logit = logit_of_expected(unchecked_moments(mean, covariance.squeeze(-1)))
            return torch.cat([torch.sigmoid(-logit), torch.sigmoid(logit)], -1)
        return expected_softmax(mean, covariance)


Head = GaussianHead | CategoricalHead
