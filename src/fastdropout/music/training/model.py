"""From a configuration to a network, its initial weights and its optimiser."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastdropout.music.training.config import Config
from fastdropout.music.training.network import Committee, Network, NoteRNN
from fastdropout.nn import init
from fastdropout.optim import RMSprop


@torch.no_grad()
def initialise(
    model: NoteRNN,
    *,
    var: float,
    var_input: float,
    spectral_radius: float,
    nu: int,
    output_bias: float | Tensor,
    generator: torch.Generator,
) -> None:
    """The paper's: Gaussian weights, `nu` recurrent ones into a unit, then scaled to the spectral radius."""
    recurrent = model.recurrent_weight
    init.gaussian_(recurrent, var, generator)
    if nu:
        init.sparse_(recurrent, nu, generator)
    init.spectral_radius_(recurrent, spectral_radius)
    init.gaussian_(model.rnn.get_parameter("weight_ih_l0"), var_input, generator)
    init.gaussian_(model.out.weight, var, generator)
    for name in ("bias_ih_l0", "bias_hh_l0"):
        model.rnn.get_parameter(name).zero_()
    bias = model.out.bias
    bias.copy_(torch.as_tensor(output_bias, dtype=bias.dtype).expand_as(bias))


def build_model(config: Config) -> Network:
    """The network of a configuration, with torch's own initial weights."""
    if config.members > 1:
        return Committee(config.members, lambda: _build_part(config))
    return _build_part(config)


def _build_part(config: Config) -> NoteRNN:
    return NoteRNN(
        config.hidden // config.members,
        drop_input=config.drop_input,
        drop_hidden=config.drop_hidden,
        drop_output=config.drop_output,
        propagate_output=config.propagate_output,
        noise_hidden=config.noise_hidden,
        weight_noise=config.weight_noise,
        weight_std=config.weight_std or 0.075,
        rule=config.rule,
        method=config.method,
    )


def initialise_model(model: Network, config: Config, note_counts: npt.NDArray[np.int64], frames: int) -> None:
    """Draw the initial weights of a configuration by its seed."""
    bias: float | Tensor
    if config.output_bias == "frequencies":
        # Laplace's rule of succession: no note is impossible because the training pieces do not have it.
        p = torch.from_numpy((note_counts + 1) / (frames + 2))
        bias = torch.logit(p)
    else:
        bias = float(config.output_bias)
    generator = torch.Generator().manual_seed(config.seed)
    for part in model.parts:
        initialise(
            part,
            var=config.init_var,
            var_input=config.init_var_input,
            spectral_radius=config.spectral_radius,
            nu=config.nu,
            output_bias=bias,
            generator=generator,
        )


def build_optimiser(model: nn.Module, config: Config) -> RMSprop:
    """RMSprop with look-ahead over all parameters."""
    return RMSprop(model.parameters(), lr=config.lr, alpha=config.alpha, momentum=config.momentum)


def default_threads(config: Config) -> int:
    """One for small networks, which more only make wait for one another; else one a core, at most 4."""
    if config.hidden // config.members <= 256:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores)
