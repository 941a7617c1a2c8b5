"""From a configuration to a network, its initial weights and its optimiser."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fastdropout.errors import ConfigError
from fastdropout.music.data.rolls import Piece
from fastdropout.music.training.config import Config
from fastdropout.music.training.network import GATES, Ensemble, Network, NoteRNN
from fastdropout.music.training.outputs import NADE, Gaussian, IndependentNotes, Output
from fastdropout.nn import init
from fastdropout.optim import RMSprop

MANY_THREADS = 16


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
    """The paper's: Gaussian weights, `nu` recurrent ones into a unit, then scaled to the spectral radius.

    Each gate of a cell is a matrix of its own. Weights between layers have the variance 1 / units, so that
    a layer gets as much as it gives; the linear path besides starts at zero; an LSTM starts remembering.
    """
    rnn = model.rnn
    for layer in range(rnn.num_layers):
        for recurrent in rnn.get_parameter(f"weight_hh_l{layer}").chunk(GATES[model.cell]):
            init.gaussian_(recurrent, var, generator)
            if nu:
                init.sparse_(recurrent, nu, generator)
            init.spectral_radius_(recurrent, spectral_radius)
        into = rnn.get_parameter(f"weight_ih_l{layer}")
        init.gaussian_(into, 1 / into.shape[1] if layer else var_input, generator)
        for name in (f"bias_ih_l{layer}", f"bias_hh_l{layer}"):
            rnn.get_parameter(name).zero_()
        if model.cell == "lstm":  # Its gates: input, forget, candidate, output.
            rnn.get_parameter(f"bias_ih_l{layer}").chunk(4)[1].fill_(1.0)
    init.gaussian_(model.out.weight, var, generator)
    output, bias = model.output, model.out.bias
    if isinstance(output, NADE):
        init.gaussian_(output.nade.weight_in, var_input, generator)
        init.gaussian_(output.nade.weight_out, var, generator)
        bias[output.features :].zero_()
    visible = bias[: output.features]
    visible.copy_(torch.as_tensor(output_bias, dtype=bias.dtype).expand_as(visible))
    if model.skip is not None:
        model.skip.weight.zero_()


def build_model(config: Config, features: int) -> Network:
    """The network of a configuration for frames of `features`, with torch's own initial weights."""
    try:
        if config.members > 1:
            return Ensemble(config.members, lambda: _build_part(config, features))
        return _build_part(config, features)
    except ValueError as error:  # Such as a cell that the library does not have.
        raise ConfigError(f"configuration: {error}") from error


def _build_part(config: Config, features: int) -> NoteRNN:
    return NoteRNN(
        features,
        config.hidden // config.members,
        output=_build_output(config, features),
        cell=config.cell,
        layers=config.layers,
        skip=config.skip,
        memory=config.memory,
        similar=config.similar,
        drop_input=config.drop_input,
        drop_memory=config.drop_memory,
        drop_hidden=config.drop_hidden,
        drop_between=config.drop_between,
        drop_output=config.drop_output,
        propagate_output=config.propagate_output,
        noise_hidden=config.noise_hidden,
        weight_noise=config.weight_noise,
        weight_std=config.weight_std or 0.075,
        rule=config.rule,
        method=config.method,
    )


def _build_output(config: Config, features: int) -> Output:
    if config.output == "gaussian":
        return Gaussian(features)
    if config.output == "nade":
        return NADE(
            features,
            config.nade_hidden or 200,
            drop_input=config.drop_nade_input,
            drop_hidden=config.drop_nade_hidden,
            nonlinearity=config.nade_nonlinearity or "tanh",
            rule=config.rule,
            output_rule=config.output_rule,
            method=config.method,
        )
    return IndependentNotes(features, config.output_rule)


def initialise_model(model: Network, config: Config, pieces: Sequence[Piece]) -> None:
    """Draw the initial weights of a configuration by its seed, the output's bias by the training pieces."""
    frames = sum(map(len, pieces))
    bias: float | Tensor
    if model.output.real:
        bias = 0.0
        every = np.concatenate(pieces).astype(np.float64)
        centre, scale = (torch.from_numpy(x(every, axis=0)).float() for x in (np.mean, np.std))
        for part in model.parts:
            assert isinstance(part.output, Gaussian)
            part.output.centre.copy_(centre)
            part.output.scale.copy_(torch.where(scale > 0, scale, 1.0))  # A constant stays as it is.
    elif config.output_bias == "frequencies":
        # Laplace's rule of succession: no note is impossible because the training pieces do not have it.
        counts = sum(piece.sum(axis=0, dtype=np.int64) for piece in pieces)
        bias = torch.logit(torch.from_numpy((counts + 1) / (frames + 2)))
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
    """One for small networks, which more only make wait for one another; else one a core, at most 4.

    Not more than `OMP_NUM_THREADS` either: whoever sets it runs something else on the other cores.
    """
    if config.hidden // config.members <= 256:
        return 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(4, cores(), int(asked) if asked.isdecimal() and int(asked) else 4)


def usable_threads(config: Config) -> int:
    """The threads of a configuration; not more than there are cores, if that are many.

    A run from a machine with more cores keeps its number here, as the last digits depend on it. Hundreds of
    threads, which a file may ask for, would only wait for one another.
    """
    return min(config.threads or default_threads(config), max(cores(), MANY_THREADS))


@contextmanager
def torch_settings(config: Config) -> Iterator[None]:
    """Inside, torch has the threads of a configuration; afterwards those it had.

    Entered before torch starts its threads, which take the setting of the thread that starts them.
    """
    # Variances become tiny, and processors are slow at denormal numbers.
    torch.set_flush_denormal(True)
    before = torch.get_num_threads()
    torch.set_num_threads(usable_threads(config))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
