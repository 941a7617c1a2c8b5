"""The paper's network, from plain arguments; and from a configuration to those."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastdropout.data.rolls import KEYS
from fastdropout.functional import sigmoid
from fastdropout.functional.recurrence import Method
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments
from fastdropout.nn import RNN, Linear, NoisyLinear, init
from fastdropout.optim import RMSprop
from fastdropout.training.config import Config


class NoteRNN(nn.Module):
    """One tanh layer and one output a key: frame t in, moments of the logits of frame t + 1 out.

    >>> model = NoteRNN(50, drop_input=0.1, drop_hidden=0.2, drop_output=0.5)
    >>> logits, state = model(torch.zeros(7, 2, 88))
    >>> logits.shape, state.shape
    (torch.Size([7, 2, 88]), torch.Size([1, 2, 50]))
    """

    def __init__(
        self,
        hidden: int,
        *,
        keys: int = KEYS,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        drop_output: float = 0.0,
        propagate_output: bool = True,
        noise_hidden: float = 0.0,
        weight_noise: bool = False,
        weight_std: float = 0.075,
        rule: Rule = "fast",
        method: Method = "moments",
    ) -> None:
        super().__init__()
        self.rnn = RNN(
            keys,
            hidden,
            drop_input=drop_input,
            drop_hidden=drop_hidden,
            noise_hidden=noise_hidden,
            rule=rule,
            method=method,
            weight_noise=weight_noise,
            weight_std=weight_std,
        )
        if weight_noise:
            self.out: Linear = NoisyLinear(
                hidden, keys, drop=drop_output, propagate=propagate_output, method=method, std=weight_std
            )
        else:
            self.out = Linear(hidden, keys, drop=drop_output, propagate=propagate_output, method=method)

    @property
    def recurrent_weight(self) -> Tensor:
        """W_rec, (hidden, hidden); its mean under weight noise."""
        return self.rnn.get_parameter("weight_hh_l0")

    def forward(self, frames: Tensor, state: Moments | None = None) -> tuple[Moments, Moments]:
        """Logits of the frames after `frames`, (steps, batch, keys), and the last hidden state."""
        hidden, last = self.rnn(frames, state)
        return self.out(hidden), last

    @torch.no_grad()
    def probabilities(self, frames: Tensor, state: Moments | None = None) -> Moments:
        """Moments of the note probabilities of the frames after `frames`."""
        return sigmoid(self(frames, state)[0])


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


def build_model(config: Config) -> NoteRNN:
    """The network of a configuration, with torch's own initial weights."""
    return NoteRNN(
        config.hidden,
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


def initialise_model(model: NoteRNN, config: Config, note_counts: npt.NDArray[np.int64], frames: int) -> None:
    """Draw the initial weights of a configuration by its seed."""
    bias: float | Tensor
    if config.output_bias == "frequencies":
        # Laplace's rule of succession: no note is impossible because the training pieces do not have it.
        p = torch.from_numpy((note_counts + 1) / (frames + 2))
        bias = torch.logit(p)
    else:
        bias = float(config.output_bias)
    initialise(
        model,
        var=config.init_var,
        var_input=config.init_var_input,
        spectral_radius=config.spectral_radius,
        nu=config.nu,
        output_bias=bias,
        generator=torch.Generator().manual_seed(config.seed),
    )


def build_optimiser(model: nn.Module, config: Config) -> RMSprop:
    """RMSprop with look-ahead over all parameters."""
    return RMSprop(model.parameters(), lr=config.lr, alpha=config.alpha, momentum=config.momentum)


def default_threads(hidden: int) -> int:
    """One for a small network, which more only make wait for one another; else one a core, at most 4."""
    if hidden <= 256:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores)
