"""Recurrent layers of moments, with the arguments, weights and shapes of `torch.nn`."""

from __future__ import annotations

from typing import Any, ClassVar

from fastdropout.nn.recurrent import RecurrentBase

_MODES = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}


def check_nonlinearity(nonlinearity: str) -> None:
    """Raise ValueError for an unknown nonlinearity."""
    if nonlinearity not in _MODES:
        raise ValueError(f"nonlinearity must be one of {', '.join(_MODES)}, got {nonlinearity!r}")


class RNN(RecurrentBase):
    """`torch.nn.RNN` with dropout noise integrated out: returns `Moments` instead of tensors.

    Arguments, parameter names, shapes, `(output, h_n)` and `hx` are those of `torch.nn.RNN`; a state dict of
    one loads into the other, and with nothing dropped they compute the same.

    >>> import torch
    >>> rnn = RNN(3, 5, drop_input=0.1, drop_hidden=0.2)
    >>> output, h_n = rnn(torch.ones(7, 2, 3))
    >>> output.mean.shape, output.var.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, bidirectional, device, dtype:
            as in `torch.nn.RNN`.
        options: `drop_input`, `drop_hidden`, `drop_between` (or `dropout`), `noise_hidden`, `rule`,
            `method`, `learn_initial`, `weight_noise`, `weight_std`, `fused`,
            `recompute`: see `RecurrentBase`.
    """

    _defaults: ClassVar[dict[str, Any]] = {"nonlinearity": "tanh", **RecurrentBase._defaults}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        check_nonlinearity(nonlinearity)
        super().__init__(
            _MODES[nonlinearity],
            nonlinearity,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            **options,
        )
        self.nonlinearity = nonlinearity


class LSTM(RecurrentBase):
    """`torch.nn.LSTM` with dropout noise integrated out: returns `Moments` instead of tensors.

        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o),   g = tanh(a_g)
        c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)

    with the pre-synaptic units a = W_ih (d o x_t) + W_hh (d' o h_{t-1}) + b and fresh masks d, d' at every
    step. Gates, candidate and cell are taken as independent, but for the noise that returns to a cell
    (`functional.recurring_covariance`). Arguments, parameter names, shapes,
    `(output, (h_n, c_n))` and `hx = (h_0, c_0)` are those of `torch.nn.LSTM`; state dicts load both ways.

    >>> import torch
    >>> lstm = LSTM(3, 5, num_layers=2, drop_hidden=0.2, drop_between=0.1)
    >>> output, (h_n, c_n) = lstm(torch.ones(7, 2, 3))
    >>> output.var.shape, c_n.shape
    (torch.Size([7, 2, 5]), torch.Size([2, 2, 5]))

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, bidirectional, proj_size, device, dtype: as in
            `torch.nn.LSTM`. With `proj_size` the reference path is taken.
        options: `drop_input`, `drop_hidden`, `drop_between` (or `dropout`), `noise_hidden`, `rule`,
            `method`, `learn_initial`, `weight_noise`, `weight_std`, `fused`,
            `recompute`: see `RecurrentBase`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            "LSTM",
            "lstm",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
            **options,
        )


class GRU(RecurrentBase):
    """`torch.nn.GRU` with dropout noise integrated out: returns `Moments` instead of tensors.

        r, z = sigmoid(a_r), sigmoid(a_z),   n = tanh(n_x + r n_h),   h_t = n + z (h_{t-1} - n)

    r and n_h are taken as independent, and so are z, n and h_{t-1}: for these the variance of h_t is exact.
    Arguments, parameter names, shapes, `(output, h_n)` and `hx` are those of `torch.nn.GRU`; state dicts load
    both ways.

    >>> import torch
    >>> gru = GRU(3, 5, drop_input=0.1, drop_hidden=0.2)
    >>> output, h_n = gru(torch.ones(7, 2, 3))
    >>> output.var.shape
    torch.Size([7, 2, 5])

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, bidirectional, device, dtype: as in
            `torch.nn.GRU`.
        options: `drop_input`, `drop_hidden`, `drop_between` (or `dropout`), `noise_hidden`, `rule`,
            `method`, `learn_initial`, `weight_noise`, `weight_std`, `fused`,
            `recompute`: see `RecurrentBase`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            "GRU",
            "gru",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            **options,
        )
