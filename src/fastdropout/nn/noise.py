"""Adaptive weight noise: every weight a Gaussian with a mean and a log standard deviation of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastdropout.moments import Moments, unchecked_moments
from fastdropout.serving import serving

_SUFFIX = "_log_std"


def add_weight_noise(module: nn.Module, name: str, std: float) -> None:
    """Give the parameter `name`, which becomes the mean, a learnt `{name}_log_std`."""
    if not 0 < std < math.inf:
        raise ValueError(f"the standard deviation of weight noise must be positive, got {std}")
    mean = getattr(module, name)
    module.register_parameter(name + _SUFFIX, nn.Parameter(torch.full_like(mean, math.log(std))))


def noisy(module: nn.Module, name: str) -> Moments:
    """The Gaussian weight `name`."""
    mean, var = getattr(module, name), torch.exp(2 * getattr(module, name + _SUFFIX))
    return unchecked_moments(mean, var) if serving.sources is None else serving.sources.gaussian(mean, var)


def weight_noise_kl(module: nn.Module) -> Tensor:
    """The description length of all noisy weights of a network: KL(weights || prior), in nats.

    The prior is a Gaussian learnt for each weight tensor. Its best mean and variance for given weights are
    known (Graves, 2011) and are put in, so it needs no parameters and no steps of its own:

        prior mean = mean_i E[w_i],   prior var = mean_i (V[w_i] + (E[w_i] - prior mean)^2)
        KL = sum_i log(prior std / std_i)

    Train with `loss = nll.mean() + weight_noise_kl(model) / n`, where n is the number of terms in the
    training set's nll.

    >>> import fastdropout as fd
    >>> bool(fd.nn.weight_noise_kl(fd.nn.NoisyLinear(10, 5)) > 0)
    True
    """
    total: Tensor | None = None
    for owner in module.modules():
        for name, log_std in owner.named_parameters(recurse=False):
            if name.endswith(_SUFFIX):
                mean = getattr(owner, name.removesuffix(_SUFFIX))
                prior_var = (torch.exp(2 * log_std) + (mean - mean.mean()) ** 2).mean()
                term = (0.5 * prior_var.log() - log_std).sum()
                total = term if total is None else total + term
    if total is None:
        raise ValueError(
            "no noisy weights: weight_noise_kl takes a network with NoisyLinear or RNN(weight_noise=True)"
        )
    return total
