"""The paper's network, from plain arguments, and several of them side by side in one layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fastdropout.functional import sigmoid
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments, moments
from fastdropout.music.data.rolls import KEYS
from fastdropout.nn import RNN, Linear, NoisyLinear
from fastdropout.recurrent.reference import Method


class Network(nn.Module):
    """Frames in, moments of the logits of the frames after them out."""

    @property
    def parts(self) -> list[NoteRNN]:
        """The networks it consists of, which share no weights."""
        raise NotImplementedError

    @torch.no_grad()
    def probabilities(self, frames: Tensor, state: Moments | None = None) -> Moments:
        """Moments of the note probabilities of the frames after `frames`."""
        return sigmoid(self(frames, state)[0])


class NoteRNN(Network):
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
    def parts(self) -> list[NoteRNN]:
        """Only itself."""
        return [self]

    @property
    def recurrent_weight(self) -> Tensor:
        """W_rec, (hidden, hidden); its mean under weight noise."""
        return self.rnn.get_parameter("weight_hh_l0")

    def forward(self, frames: Tensor, state: Moments | None = None) -> tuple[Moments, Moments]:
        """Logits of the frames after `frames`, (steps, batch, keys), and the last hidden state."""
        hidden, last = self.rnn(frames, state)
        return self.out(hidden), last


class Committee(Network):
    """One layer whose recurrent weights are block-diagonal: each block is a member, a `NoteRNN`.

    In training every member has logits of its own, (members, steps, batch, keys), and learns as if it were
    alone. In evaluation they are one network, with the average of their logits. The variance is the average
    too: the noise of all members is taken as one. With independent noise it would shrink with their number,
    and the network would be surer of its notes than any member has learnt to be.

    >>> committee = Committee(3, lambda: NoteRNN(50, drop_hidden=0.5))
    >>> committee(torch.zeros(7, 2, 88))[0].shape, committee.eval()(torch.zeros(7, 2, 88))[0].shape
    (torch.Size([3, 7, 2, 88]), torch.Size([7, 2, 88]))
    """

    def __init__(self, members: int, make: Callable[[], NoteRNN]) -> None:
        super().__init__()
        self.members = nn.ModuleList([make() for _ in range(members)])

    @property
    def parts(self) -> list[NoteRNN]:
        """The members."""
        return [*self.members]

    def forward(self, frames: Tensor, state: Moments | None = None) -> tuple[Moments, Moments]:
        """Logits of the frames after `frames`, and the last hidden state: the members' in a row."""
        count = len(self.members)
        states = [None] * count if state is None else [part.contiguous() for part in _split(state, count)]
        results = [member(frames, own) for member, own in zip(self.members, states, strict=True)]
        logits, last = (list(column) for column in zip(*results, strict=True))
        stacked = Moments.stack(logits)
        return stacked if self.training else _average(stacked), Moments.cat(last, -1)


def _split(state: Moments, count: int) -> list[Moments]:
    units = state.shape[-1] // count
    return [state[..., n * units : (n + 1) * units] for n in range(count)]


def _average(logits: Moments) -> Moments:
    return moments(logits.mean.mean(0), None if logits.is_certain else logits.var.mean(0))
