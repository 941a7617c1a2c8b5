"""Recurrent networks that predict frames, from plain arguments, and ensembles of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor, nn

import fastdropout.nn
from fastdropout.functional import add_independent, dropout, sampled_dropout
from fastdropout.functional.affine import Method
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments
from fastdropout.music.data.batches import memory_width
from fastdropout.music.training.outputs import IndependentNotes, Loss, Output, Prediction
from fastdropout.nn import Linear, NoisyLinear

Cell = Literal["tanh", "relu", "lstm", "gru"]
CELLS: tuple[str, ...] = get_args(Cell)
GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
"""Square blocks of the recurrent weights of a layer."""


class Network(nn.Module):
    """Frames in, the distribution of the frames after them out."""

    features: int
    """Of a frame."""
    memory: bool
    similar: bool
    """Whether the inputs hold these memories of the piece beside the frame."""
    output: Output
    """The output layer, of the first part."""

    @property
    def remembers(self) -> bool:
        """Whether the inputs hold more than the frame."""
        return self.memory or self.similar

    @property
    def parts(self) -> list[NoteRNN]:
        """The networks it consists of, which share no weights."""
        raise NotImplementedError

    def score(
        self, inputs: Tensor, targets: Tensor, mask: Tensor, state: Moments | None, loss: Loss
    ) -> tuple[Tensor, Moments]:
        """Nats of the frames where `mask` holds, in a row, and the last state."""
        if self.output.sequential:  # Costly, so that frames that are not scored are left out.
            prediction, last = self(inputs, state, mask)
            return prediction.nll(targets[mask], loss), last
        prediction, last = self(inputs, state)
        return prediction.nll(targets, loss, mask), last

    @property
    def state_shape(self) -> tuple[int, int]:
        """Layers and units of the hidden state."""
        first = self.parts[0].rnn
        depth = first.num_layers * (2 if self.parts[0].cell == "lstm" else 1)
        return depth, len(self.parts) * first.hidden_size


class NoteRNN(Network):
    """Recurrent layers and an output layer: frame t in, the distribution of frame t + 1 out.

    >>> import torch
    >>> model = NoteRNN(88, 50, drop_input=0.1, drop_hidden=0.2, drop_output=0.5)
    >>> prediction, state = model(torch.zeros(7, 2, 88))
    >>> prediction.nll(torch.zeros(7, 2, 88)).shape, state.shape
    (torch.Size([7, 2]), torch.Size([1, 2, 50]))

    Args:
        features: of a frame.
        hidden: units of a layer.
        output: the output layer; independent notes by default.
        cell: `"tanh"`, `"relu"`, `"lstm"` or `"gru"`.
        layers: recurrent layers, one above the other.
        skip: a linear path from the inputs to the context of the output layer besides.
        memory: the inputs hold a memory of the piece after the frame (`data/memory.py`).
        similar: and, after that, one of similar moments (`data/similar.py`).
        drop_input, drop_memory: probabilities that a note, or a feature of the memory, is zeroed.
        drop_hidden, drop_between, drop_output: of hidden units on their way to the next step, to the next
            layer and to the output layer.
        propagate_output: False neglects the variance of the hidden units in the output layer.
        noise_hidden, weight_noise, weight_std, rule, method: as in `fastdropout.nn.RNN`.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        output: Output | None = None,
        cell: Cell = "tanh",
        layers: int = 1,
        skip: bool = False,
        memory: bool = False,
        similar: bool = False,
        drop_input: float = 0.0,
        drop_memory: float = 0.0,
        drop_hidden: float = 0.0,
        drop_between: float = 0.0,
        drop_output: float = 0.0,
        propagate_output: bool = True,
        noise_hidden: float = 0.0,
        weight_noise: bool = False,
        weight_std: float = 0.075,
        rule: Rule = "fast",
        method: Method = "moments",
    ) -> None:
        super().__init__()
        self.features, self.memory, self.similar, self.cell = features, memory, similar, cell
        self.drops, self.method = (drop_input, drop_memory), method
        inputs = features + memory_width(features, memory, similar)
        # One rate for all inputs is the layer's own affair; two are applied before it.
        own = 0.0 if self.remembers else drop_input
        kind, options = recurrent(cell)
        self.rnn = kind(
            inputs,
            hidden,
            layers,
            drop_input=own,
            drop_hidden=drop_hidden,
            drop_between=drop_between,
            noise_hidden=noise_hidden,
            rule=rule,
            method=method,
            weight_noise=weight_noise,
            weight_std=weight_std,
            **options,
        )
        self.output = IndependentNotes(features) if output is None else output
        size = self.output.size
        linear: Callable[..., Linear] = Linear
        noise: dict[str, Any] = {}
        if weight_noise:
            linear, noise = NoisyLinear, {"std": weight_std}
        self.out = linear(hidden, size, drop=drop_output, propagate=propagate_output, method=method, **noise)
        self.skip: Linear | None = None
        if skip:
            self.skip = linear(inputs, size, bias=False, drop=own, method=method, **noise)

    @property
    def parts(self) -> list[NoteRNN]:
        """Only itself."""
        return [self]

    @property
    def recurrent_weights(self) -> list[Tensor]:
        """W_rec of every layer, (gates hidden, hidden); its mean under weight noise."""
        return [self.rnn.get_parameter(f"weight_hh_l{n}") for n in range(self.rnn.num_layers)]

    @property
    def recurrent_weight(self) -> Tensor:
        """W_rec of the first layer."""
        return self.recurrent_weights[0]

    def read(self, inputs: Tensor) -> Moments:
        """The inputs as the layers get them: in the output layer's units, dropped here if by two rates."""
        frames = self.output.encode(inputs[..., : self.features])
        if not self.remembers:
            return Moments.certain(frames)
        return Moments.cat(
            [self._drop(frames, self.drops[0]), self._drop(inputs[..., self.features :], self.drops[1])], -1
        )

    def _drop(self, x: Tensor, drop: float) -> Moments:
        if self.method != "mask":
            return dropout(Moments.certain(x), drop)
        return Moments.certain(sampled_dropout(x, drop) if self.training else x * (1 - drop))

    def forward(
        self, inputs: Tensor, state: Moments | None = None, where: Tensor | None = None
    ) -> tuple[Prediction, Moments]:
        """The distribution of the frames after `inputs`, (steps, batch, inputs), and the last state.

        With a mask `where`, (steps, batch), only of those frames, in a row.
        """
        x = self.read(inputs)
        hidden, last = self.rnn(x, self._unpack(state))
        context = self.out(hidden if where is None else hidden[where])
        if self.skip is not None:
            # Masks of their own, so that the two paths are independent.
            again = self.read(inputs) if self.method == "mask" and self.remembers else x
            context = add_independent(context, self.skip(again if where is None else again[where]))
        return Prediction([self.output], [context]), self._pack(last)

    def _pack(self, state: Any) -> Moments:
        """A state as one value: that of an LSTM has its cells below its hidden units."""
        return Moments.cat(list(state), 0) if self.cell == "lstm" else state

    def _unpack(self, state: Moments | None) -> Any:
        if state is None or self.cell != "lstm":
            return state
        depth = self.rnn.num_layers
        return state[:depth].contiguous(), state[depth:].contiguous()


class Ensemble(Network):
    """Several networks, each a `NoteRNN`, averaged: one layer with block-diagonal recurrent weights.

    In training every member predicts for itself and learns as if it were alone. In evaluation their logits
    and variances are averaged (`outputs.base.average`).

    >>> import torch
    >>> ensemble = Ensemble(3, lambda: NoteRNN(88, 50, drop_hidden=0.5))
    >>> frames = torch.zeros(7, 2, 88)
    >>> ensemble(frames)[0].nll(frames).shape, ensemble.eval()(frames)[0].nll(frames).shape
    (torch.Size([3, 7, 2]), torch.Size([7, 2]))
    """

    def __init__(self, members: int, make: Callable[[], NoteRNN]) -> None:
        super().__init__()
        self.members = nn.ModuleList([make() for _ in range(members)])
        first = self.parts[0]
        self.features, self.memory, self.similar = first.features, first.memory, first.similar

    @property
    def parts(self) -> list[NoteRNN]:
        """The members."""
        return [*self.members]

    @property
    def output(self) -> Output:  # type: ignore[override]
        """The output layer of the first member."""
        return self.parts[0].output

    def forward(
        self, inputs: Tensor, state: Moments | None = None, where: Tensor | None = None
    ) -> tuple[Prediction, Moments]:
        """As of a `NoteRNN`; the last hidden state has the members' in a row."""
        count = len(self.members)
        states = [None] * count if state is None else [part.contiguous() for part in _split(state, count)]
        results = [member(inputs, own, where) for member, own in zip(self.members, states, strict=True)]
        contexts = [prediction.contexts[0] for prediction, _ in results]
        outputs = [member.output for member in self.parts]
        return (
            Prediction(outputs, contexts, together=not self.training),
            Moments.cat([last for _, last in results], -1),
        )


def recurrent(cell: str) -> tuple[Any, dict[str, Any]]:
    """The class of a cell's layers and the arguments that make it that cell."""
    if cell not in CELLS:
        raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {cell!r}")
    if cell in ("tanh", "relu"):
        return fastdropout.nn.RNN, {"nonlinearity": cell}
    kind = getattr(fastdropout.nn, cell.upper(), None)
    if kind is None:
        raise ValueError(f"cell {cell} is not in this version, which has tanh and relu")
    return kind, {}


def _split(state: Moments, count: int) -> list[Moments]:
    units = state.shape[-1] // count
    return [state[..., n * units : (n + 1) * units] for n in range(count)]
