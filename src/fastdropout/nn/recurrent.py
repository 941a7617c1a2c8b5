"""Recurrent layers of moments, with the arguments, weights and shapes of `torch.nn`."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import _VF, Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fastdropout.functional.affine import Method, affine, check_method
from fastdropout.functional.propagate import add_independent, check_drop
from fastdropout.functional.transfer import Rule, check_rule
from fastdropout.moments import Moments, as_moments, moments
from fastdropout.nn.noise import add_weight_noise, noisy
from fastdropout.nn.packed import PackedMoments
from fastdropout.recurrent import backward as fused
from fastdropout.recurrent import kernel
from fastdropout.recurrent import reference as recurrence
from fastdropout.recurrent import sampled as drawn
from fastdropout.recurrent.reference import activate

log = logging.getLogger(__name__)

_MODES = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}


class RNN(nn.RNNBase):
    """`torch.nn.RNN` with dropout noise integrated out: `Moments` in the places of tensors.

    Arguments, parameter names, shapes, `(output, h_n)` and `hx` are those of `torch.nn.RNN`; a state dict of
    one loads into the other, and with nothing dropped they compute the same.

    >>> rnn = RNN(3, 5, drop_input=0.1, drop_hidden=0.2)
    >>> output, h_n = rnn(torch.ones(7, 2, 3))
    >>> output.mean.shape, output.var.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, bidirectional, device, dtype:
            as in `torch.nn.RNN`.
        dropout: `torch.nn.RNN`'s name and place for `drop_between`.
        drop_input: probability that an input is zeroed.
        drop_hidden: probability that a hidden unit is zeroed on its way to the next step.
        drop_between: probability that a unit is zeroed on its way to the next layer.
        noise_hidden: a variance added to every hidden unit after its transfer function, at every step.
        rule: how exactly tanh is integrated: `"fast"`, `"accurate"` or `"paper"`.
        method: `"moments"` integrates the noise out. `"gaussian"` draws every pre-synaptic unit from its
            moments, the paper's sampling variant. `"mask"` draws everything: masks at every step (ordinary
            dropout), noisy weights once a call (Graves, 2011). In `eval()` nothing is drawn: `"gaussian"`
            returns the moments, `"mask"` the ordinary pass with (1 - drop) times the units.
        learn_initial: learn the mean and the variance of the state before the first step, which is used
            where `hx` is not given.
        weight_noise: adaptive weight noise: every weight is a Gaussian of which the mean and the log standard
            deviation are learnt; add `fastdropout.nn.kl(model) / n` to the loss.
        weight_std: the standard deviation that noisy weights start with.
        fused: use the fast path where it serves (all but `"gaussian"` with weight noise); False for the
            reference.
        recompute: keep only the outputs for the backward pass of the fast path and compute the rest again in
            chunks of steps: memory beyond the outputs grows with the root of the number of steps.
    """

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
        *,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        drop_between: float = 0.0,
        noise_hidden: float = 0.0,
        rule: Rule = "fast",
        method: Method = "moments",
        learn_initial: bool = False,
        weight_noise: bool = False,
        weight_std: float = 0.075,
        fused: bool = True,
        recompute: bool = False,
    ) -> None:
        if nonlinearity not in _MODES:
            raise ValueError(f"nonlinearity must be one of {', '.join(_MODES)}, got {nonlinearity!r}")
        if dropout and drop_between:
            raise ValueError(
                f"give dropout or drop_between, which are the same, got {dropout} and {drop_between}"
            )
        drops = (
            check_drop(drop_input, "drop_input"),
            check_drop(drop_hidden, "drop_hidden"),
            check_drop(dropout or drop_between, "dropout" if dropout else "drop_between"),
        )
        if not 0 <= noise_hidden < math.inf:
            raise ValueError(f"noise_hidden must be finite and at least 0, got {noise_hidden}")
        check_rule(rule)
        check_method(method)
        # The base class is told the rate only for its own warning, that one layer has no layers between.
        super().__init__(
            _MODES[nonlinearity],
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            drops[2],
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self.nonlinearity = nonlinearity
        self.drop_input, self.drop_hidden, self.drop_between = drops
        self.noise_hidden = float(noise_hidden)
        self.rule, self.method = rule, method
        self.learn_initial, self.weight_noise = learn_initial, weight_noise
        self.fused, self.recompute = fused, recompute
        if learn_initial:
            shape = (self._depth, hidden_size)
            self.initial_mean = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))
            self.initial_log_var = nn.Parameter(torch.full(shape, math.log(0.01), device=device, dtype=dtype))
        if weight_noise:
            for name in [name for names in self._all_weights for name in names]:
                add_weight_noise(self, name, weight_std)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _depth(self) -> int:
        return self.num_layers * self._directions

    def forward(
        self, input: Tensor | Moments | PackedSequence, hx: Tensor | Moments | None = None
    ) -> tuple[Any, Moments]:
        """All hidden units of the last layer, and the last ones of all layers; see `torch.nn.RNN`."""
        if isinstance(input, PackedSequence):
            data, sizes, sorted_indices, unsorted_indices = input
            x = as_moments(data)
            h = self._initial(x, hx, int(sizes[0]))
            h = h if sorted_indices is None or hx is None else h[:, sorted_indices]
            self.check_forward_args(x.mean, h.mean, sizes)
            output, h_n = self._run(x, h, sizes.tolist())
            h_n = h_n if unsorted_indices is None else h_n[:, unsorted_indices]
            return PackedMoments(output, sizes, sorted_indices, unsorted_indices), h_n  # type: ignore[arg-type]
        x = as_moments(input)
        if x.ndim not in (2, 3):
            raise ValueError(f"RNN: Expected input to be 2D or 3D, got {x.ndim}D tensor instead")
        batched = x.ndim == 3
        if not batched:
            if hx is not None and hx.ndim != 2:
                raise RuntimeError(
                    f"For unbatched 2-D input, hx should also be 2-D but got {hx.ndim}-D tensor"
                )
            x, hx = x.unsqueeze(1), None if hx is None else hx.unsqueeze(1)
        elif hx is not None and hx.ndim != 3:
            raise RuntimeError(f"For batched 3-D input, hx should also be 3-D but got {hx.ndim}-D tensor")
        elif self.batch_first:
            x = x.transpose(0, 1)
        steps, batch = x.shape[:2]
        if steps == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        h = self._initial(x, hx, batch)
        rows = x.flatten(0, 1)
        self.check_forward_args(rows.mean, h.mean, torch.tensor([batch]))
        output, h_n = self._run(rows, h, [batch] * steps)
        output = output.reshape(steps, batch, output.shape[-1])
        if not batched:
            return output.squeeze(1), h_n.squeeze(1)
        return (output.transpose(0, 1) if self.batch_first else output), h_n

    def _initial(self, x: Moments, hx: Tensor | Moments | None, batch: int) -> Moments:
        if hx is not None:
            return as_moments(hx)
        shape = (self._depth, batch, self.hidden_size)
        if self.learn_initial:
            learnt = moments(self.initial_mean, self.initial_log_var.exp())
            return learnt.unsqueeze(1).expand(*shape)
        return Moments.certain(torch.zeros(shape, dtype=x.dtype, device=x.device))

    def _run(self, x: Moments, h_0: Moments, sizes: Sequence[int]) -> tuple[Moments, Moments]:
        """All layers on rows laid out as in a `PackedSequence`."""
        if self._is_plain(x, h_0):
            self._log("torch")
            return self._run_plain(x.mean, h_0.mean, sizes)
        method = self._method
        if method == "mask":
            x, h_0 = Moments.certain(x.sample()), Moments.certain(h_0.sample())
        last: list[Moments] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                index = layer * self._directions + direction
                weights = self._weights(index)
                options: dict[str, Any] = {
                    "drop_input": self.drop_between if layer else self.drop_input,
                    "drop_hidden": self.drop_hidden,
                    "noise": self.noise_hidden,
                    "nonlinearity": self.nonlinearity,
                    "rule": self.rule,
                    "reverse": direction == 1,
                }
                if self._is_fused and fused.fits(x, h_0, *weights):
                    self._log("fused")
                    output, h_n = self._run_fused(x, h_0[index], weights, sizes, options)
                else:
                    self._log("reference")
                    output, h_n = recurrence.layer(x, h_0[index], *weights, sizes, method=method, **options)
                outputs.append(output)
                last.append(h_n)
            x = Moments.cat(outputs, -1) if self.bidirectional else outputs[0]
        return x, Moments.stack(last)

    def _run_fused(
        self,
        x: Moments,
        h_0: Moments,
        weights: tuple[Any, Any, Any],
        sizes: Sequence[int],
        options: dict[str, Any],
    ) -> tuple[Moments, Moments]:
        if self._method == "moments":
            return fused.fused_layer(x, h_0, *weights, sizes, recompute=self.recompute, **options)
        options = {name: value for name, value in options.items() if name != "rule"}
        return drawn.drawn_layer(x, h_0, *weights, sizes, method=self._method, **options)

    @property
    def _method(self) -> Method:
        return "moments" if self.method == "gaussian" and not self.training else self.method

    @property
    def _is_fused(self) -> bool:
        """Whether the fast path serves these options; the reference serves all."""
        return self.fused and not (self.weight_noise and self._method == "gaussian")

    def _weights(self, index: int) -> tuple[Any, Any, Any]:
        """Input and hidden weights of a layer and direction, and the sum of their biases."""
        weights: list[Any] = [getattr(self, name) for name in self._all_weights[index]]
        if self.weight_noise:
            weights = [noisy(self, name) for name in self._all_weights[index]]
            if self._method == "mask":
                weights = [w.sample() for w in weights]
        w_ih, w_hh, *biases = weights
        if not biases:
            return w_ih, w_hh, None
        if isinstance(biases[0], Moments):
            return w_ih, w_hh, add_independent(*biases)
        return w_ih, w_hh, biases[0] + biases[1]

    def _is_plain(self, x: Moments, h_0: Moments) -> bool:
        """Whether no variance arises, so that the pass is that of `torch.nn.RNN`."""
        if self.method == "mask" and not self.training:
            return True
        if self.rule == "paper" and self.nonlinearity == "tanh" and self._method == "moments":
            return False  # this rule finds a variance in certain units
        random = self.drop_input or self.drop_hidden or self.noise_hidden or self.weight_noise
        if self.num_layers > 1:
            random = random or self.drop_between
        return not random and x.is_certain and h_0.is_certain

    def _run_plain(self, x: Tensor, h_0: Tensor, sizes: Sequence[int]) -> tuple[Moments, Moments]:
        """The ordinary pass of torch's own kernel, with (1 - drop) times the units."""
        weights = []
        for index, names in enumerate(self._all_weights):
            drop = self.drop_input if index < self._directions else self.drop_between
            keeps = (1 - drop, 1 - self.drop_hidden, 1.0, 1.0)
            for name, keep in zip(names, keeps, strict=False):
                weight = getattr(self, name)
                weights.append(weight if keep == 1 else weight * keep)
        run = _VF.rnn_tanh if self.nonlinearity == "tanh" else _VF.rnn_relu
        options = (self.bias, self.num_layers, 0.0, self.training, self.bidirectional)
        if min(sizes) == max(sizes):
            steps = x.view(len(sizes), sizes[0], x.shape[-1])
            output, h_n = run(steps, h_0.contiguous(), weights, *options, False)
            output = output.flatten(0, 1)
        else:
            output, h_n = run(x, torch.tensor(sizes), h_0.contiguous(), weights, *options)
        return Moments.certain(output), Moments.certain(h_n)

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        text = [super().extra_repr().split(", dropout=")[0]]
        defaults = {
            "nonlinearity": "tanh",
            "drop_input": 0.0,
            "drop_hidden": 0.0,
            "drop_between": 0.0,
            "noise_hidden": 0.0,
            "rule": "fast",
            "method": "moments",
            "learn_initial": False,
            "weight_noise": False,
            "fused": True,
            "recompute": False,
        }
        given = {k: getattr(self, k) for k in defaults}
        text += [f"{k}={value!r}" for k, value in given.items() if value != defaults[k]]
        text.append(f"path={self.path}")
        if self.path == "fused" and not kernel.has_what_serves(getattr(self, self._all_weights[0][0])):
            text.append(f"kernel={kernel.status()!r}")
        return ", ".join(text)

    @property
    def path(self) -> str:
        """How a certain input is computed: by `torch` (no variance arises), `fused` or `reference`."""
        nothing = Moments.certain(torch.zeros(1))
        if not self.learn_initial and self._is_plain(nothing, nothing):
            return "torch"
        return "fused" if self._is_fused else "reference"

    def _log(self, path: str) -> None:
        if not torch.compiler.is_compiling():  # a logger would break the graph
            log.debug("%s(%d, %d) path: %s", type(self).__name__, self.input_size, self.hidden_size, path)


class RNNCell(nn.RNNCell):
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
        *,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        rule: Rule = "fast",
    ) -> None:
        if nonlinearity not in _MODES:
            raise ValueError(f"nonlinearity must be one of {', '.join(_MODES)}, got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias, nonlinearity, device, dtype)
        check_rule(rule)
        self.drop_input = check_drop(drop_input, "drop_input")
        self.drop_hidden = check_drop(drop_hidden, "drop_hidden")
        self.rule = rule

    def forward(self, input: Tensor | Moments, hx: Tensor | Moments | None = None) -> Moments:  # type: ignore[override]
        """The next hidden state."""
        x = as_moments(input)
        if hx is None:
            hx = torch.zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)
        pre = affine(x, self.weight_ih, self.bias_ih, self.drop_input)
        rec = affine(as_moments(hx), self.weight_hh, self.bias_hh, self.drop_hidden)
        return activate(add_independent(pre, rec), self.nonlinearity, self.rule)  # type: ignore[arg-type]
