"""One step of a recurrent layer, of `Moments`, with the arguments and weights of the cells of `torch.nn`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastdropout.functional.affine import affine
from fastdropout.functional.transfer import RULES, Rule
from fastdropout.moments import Moments, as_moments
from fastdropout.nn.checked import Choice, Drop
from fastdropout.nn.layers import check_nonlinearity
from fastdropout.recurrent.cells import CELLS, State
from fastdropout.serving import takes_moments


class _CellBase(nn.RNNCellBase):
    """What the three cells have in common."""

    drop_input, drop_hidden = Drop(), Drop()
    rule = Choice[Rule](RULES)

    def __init__(
        self,
        name: str,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        rule: Rule = "fast",
    ) -> None:
        gates = CELLS[name].gates
        super().__init__(input_size, hidden_size, bias, gates, device, dtype)
        self._name = name
        self.drop_input, self.drop_hidden, self.rule = drop_input, drop_hidden, rule

    def _step(self, input: Tensor | Moments, state: list[Any] | None, parts: int) -> State:
        x, cell = as_moments(input), CELLS[self._name]
        if state is None:
            zeros = torch.zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)
            state = [zeros] * parts
        before = State(*map(as_moments, state))
        given = affine(x, cell.input_weight(self.weight_ih), None, self.drop_input)
        pre = cell.join(given, affine(before.h, self.weight_hh, None, self.drop_hidden))
        if self.bias:
            pre = pre + cell.bias(self.bias_ih, self.bias_hh)  # type: ignore[operator]
        recurring = cell.recurring(before.h, self.weight_hh, self.drop_hidden)
        return cell.step(pre, before.c if parts == 2 else before.h, self.rule, recurring)

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        text = super().extra_repr()
        defaults = {"drop_input": 0.0, "drop_hidden": 0.0, "rule": "fast"}
        given = {name: getattr(self, name) for name in defaults}
        shown = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
        return ", ".join([text, *shown])


class RNNCell(_CellBase):
    """`torch.nn.RNNCell` with dropout noise integrated out: one step, of `Moments`.

    >>> cell = RNNCell(3, 5, drop_hidden=0.5)
    >>> h = cell(torch.ones(2, 3))
    >>> h = cell(torch.ones(2, 3), h)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        check_nonlinearity(nonlinearity)
        super().__init__(nonlinearity, input_size, hidden_size, bias, device, dtype, **options)
        self.nonlinearity = nonlinearity

    @takes_moments
    def forward(self, input: Tensor | Moments, hx: Tensor | Moments | None = None) -> Moments:
        """The next hidden units."""
        return self._step(input, None if hx is None else [hx], 1).h


class LSTMCell(_CellBase):
    """`torch.nn.LSTMCell` with dropout noise integrated out: one step, of `Moments`.

    >>> cell = LSTMCell(3, 5, drop_hidden=0.5)
    >>> h, c = cell(torch.ones(2, 3))
    >>> h, c = cell(torch.ones(2, 3), (h, c))
    """

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **options: Any) -> None:
        super().__init__("lstm", input_size, hidden_size, *args, **options)

    @takes_moments
    def forward(self, input: Tensor | Moments, hx: tuple[Any, Any] | None = None) -> tuple[Moments, Moments]:
        """The next hidden units and cells."""
        h, c = self._step(input, None if hx is None else list(hx), 2)
        assert c is not None
        return h, c


class GRUCell(_CellBase):
    """`torch.nn.GRUCell` with dropout noise integrated out: one step, of `Moments`.

    >>> cell = GRUCell(3, 5, drop_hidden=0.5)
    >>> h = cell(torch.ones(2, 3))
    >>> h = cell(torch.ones(2, 3), h)
    """

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **options: Any) -> None:
        super().__init__("gru", input_size, hidden_size, *args, **options)

    @takes_moments
    def forward(self, input: Tensor | Moments, hx: Tensor | Moments | None = None) -> Moments:
        """The next hidden units."""
        return self._step(input, None if hx is None else [hx], 1).h
