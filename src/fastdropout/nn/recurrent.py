"""What all recurrent layers of moments have in common; `layers.py` says what differs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fastdropout.functional.affine import METHODS, Effective, Method, effective_method
from fastdropout.functional.propagate import check_drop
from fastdropout.functional.transfer import RULES, Rule
from fastdropout.moments import Moments, as_moments, unchecked_moments
from fastdropout.nn.checked import Choice, Drop, Variance
from fastdropout.nn.noise import add_weight_noise, noisy
from fastdropout.nn.packed import PackedMoments
from fastdropout.recurrent import fused, kernel, operator, reference, sampled
from fastdropout.recurrent.cells import CELLS, Cell, State
from fastdropout.recurrent.options import Options, Weights
from fastdropout.serving import serving, takes_moments

log = logging.getLogger(__name__)


class RecurrentBase(nn.RNNBase):
    """Layers, directions, packing, initial states and the choice of a path, for every cell.

    Args:
        mode: of `torch.nn.RNNBase`.
        cell: the name of a cell of `fastdropout.recurrent.cells`.
        dropout: `torch.nn`'s name and place for `drop_between`.
        drop_input: probability that an input is zeroed.
        drop_hidden: probability that a hidden unit is zeroed on its way to the next step.
        drop_between: probability that a unit is zeroed on its way to the next layer.
        noise_hidden: a variance added to every hidden unit after its transfer function, at every step.
        rule: how exactly tanh and sigmoid are integrated: `"fast"`, `"accurate"` or `"paper"`.
        method: `"moments"` integrates the noise out. `"gaussian"` draws every pre-synaptic unit from its
            moments, the paper's sampling variant. `"mask"` draws everything: masks at every step (ordinary
            dropout), noisy weights once a call (Graves, 2011). In `eval()` nothing is drawn: `"gaussian"`
            returns the moments, `"mask"` the ordinary pass with (1 - drop) times the units.
        learn_initial: learn the mean and the variance of the state before the first step, which is used
            where `hx` is not given.
        weight_noise: adaptive weight noise: every weight is a Gaussian of which the mean and the log standard
            deviation are learnt; add `fastdropout.nn.weight_noise_kl(model) / n` to the loss.
        weight_std: the standard deviation that noisy weights start with.
        fused: use the fast path where it serves (all but `"gaussian"` with weight noise, and `proj_size`);
            False for the reference.
        recompute: keep only the outputs for the backward pass of the fast path and compute the rest again in
            chunks of steps: memory beyond the outputs grows with the root of the number of steps.
    """

    drop_input, drop_hidden, drop_between = Drop(), Drop(), Drop()
    noise_hidden = Variance()
    rule = Choice[Rule](RULES)
    method = Choice[Method](METHODS)

    _defaults: ClassVar[dict[str, Any]] = {
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

    def __init__(
        self,
        mode: str,
        cell: str,
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
        if dropout and drop_between:
            raise ValueError(
                f"give dropout or drop_between, which are the same, got {dropout} and {drop_between}"
            )
        if proj_size and CELLS[cell].carries != "cell":
            raise ValueError(f"proj_size is for LSTM only, got {proj_size}")
        between = check_drop(dropout or drop_between, "dropout" if dropout else "drop_between")
        # The base class is told the rate only for its own warning, that one layer has no layers between.
        super().__init__(
            mode,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            between,
            bidirectional,
            proj_size,
            device=device,
            dtype=dtype,
        )
        self._cell_name = cell
        self.drop_input, self.drop_hidden, self.drop_between = drop_input, drop_hidden, between
        self.noise_hidden = noise_hidden
        self.rule, self.method = rule, method
        self.learn_initial, self.weight_noise = learn_initial, weight_noise
        self.fused, self.recompute = fused, recompute
        if learn_initial:
            for name, units in self._state_sizes().items():
                zeros = torch.zeros(self._depth, units, device=device, dtype=dtype)
                self.register_parameter(f"initial_{name}mean", nn.Parameter(zeros))
                start = torch.full_like(zeros, math.log(0.01))
                self.register_parameter(f"initial_{name}log_var", nn.Parameter(start))
        if weight_noise:
            for name in [name for names in self._all_weights for name in names]:
                add_weight_noise(self, name, weight_std)

    @property
    def cell(self) -> Cell:
        """The element-wise part of a step."""
        return CELLS[self._cell_name]

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _depth(self) -> int:
        return self.num_layers * self._directions

    def _state_sizes(self) -> dict[str, int]:
        """The units of the parts of a state, by the names that their learnt initial values have."""
        sizes = {"": self.proj_size or self.hidden_size}
        return {**sizes, "cell_": self.hidden_size} if self.cell.carries == "cell" else sizes

    def _parts(self, hx: Any) -> list[Any]:
        """The parts of a given state: of an LSTM two, else one."""
        if self.cell.carries != "cell":
            return [hx]
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            raise TypeError(f"hx must be a pair (h_0, c_0), got {type(hx).__name__}")
        return list(hx)

    @takes_moments
    def forward(self, input: Tensor | Moments | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """All hidden units of the last layer, and the last state of all layers, as in `torch.nn`."""
        if isinstance(input, PackedSequence):
            data, sizes, sorted_indices, unsorted_indices = input
            x = as_moments(data)
            parts = self._initial(x, hx, int(sizes[0]))
            if sorted_indices is not None and hx is not None:
                parts = [part[:, sorted_indices] for part in parts]
            self._check(x, parts, int(sizes[0]))
            output, last = self._run(x, parts, sizes.tolist())
            if unsorted_indices is not None:
                last = [part[:, unsorted_indices] for part in last]
            packed = PackedMoments(output, sizes, sorted_indices, unsorted_indices)  # type: ignore[arg-type]
            return packed, self._state(last)
        x = as_moments(input)
        name = type(self).__name__
        if x.ndim not in (2, 3):
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {x.ndim}D tensor instead")
        batched, given = x.ndim == 3, None if hx is None else self._parts(hx)
        kind = "batched 3-D" if batched else "unbatched 2-D"
        for part in given or ():
            if part.ndim != x.ndim:
                raise RuntimeError(
                    f"For {kind} input, hx should also be {x.ndim}-D but got {part.ndim}-D tensor"
                )
        if not batched:
            x = x.unsqueeze(1)
            hx = None if given is None else self._joined([part.unsqueeze(1) for part in given])
        elif self.batch_first:
            x = x.transpose(0, 1)
        steps, batch = x.shape[:2]
        if steps == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        parts, rows = self._initial(x, hx, batch), x.flatten(0, 1)
        self._check(rows, parts, batch)
        # While a graph is compiled, the number of steps stays open: one size stands for all of them.
        open_ended = torch.compiler.is_compiling() and batch > 0
        output, last = self._run(rows, parts, [batch] if open_ended else [batch] * steps)
        output = output.reshape(steps, batch, output.shape[-1])
        if not batched:
            return output.squeeze(1), self._state([part.squeeze(1) for part in last])
        return (output.transpose(0, 1) if self.batch_first else output), self._state(last)

    def _joined(self, parts: list[Any]) -> Any:
        return tuple(parts) if self.cell.carries == "cell" else parts[0]

    _state = _joined

    def _check(self, x: Moments, parts: list[Moments], batch: int) -> None:
        """Raise what torch.nn raises for inputs and states that do not fit."""
        self.check_input(x.mean, batch)  # type: ignore[arg-type]  # only asks whether there is one
        for name, part, units in zip(("hidden", "cell"), parts, self._state_sizes().values(), strict=False):
            text = f"Expected {name} size {{}}, got {{}}"
            self.check_hidden_size(part.mean, (self._depth, batch, units), text)

    def _initial(self, x: Moments, hx: Any, batch: int) -> list[Moments]:
        if hx is not None:
            return [as_moments(part) for part in self._parts(hx)]
        parts = []
        for name, units in self._state_sizes().items():
            shape = (self._depth, batch, units)
            if self.learn_initial:
                mean, log_var = (getattr(self, f"initial_{name}{what}") for what in ("mean", "log_var"))
                parts.append(unchecked_moments(mean, log_var.exp()).unsqueeze(1).expand(*shape))
            else:
                parts.append(Moments.certain(torch.zeros(shape, dtype=x.dtype, device=x.device)))
        return parts

    def _run(self, x: Moments, parts: list[Moments], sizes: Sequence[int]) -> tuple[Moments, list[Moments]]:
        """All layers on rows laid out as in a `PackedSequence`."""
        if self._is_plain(x, parts):
            self._log("torch")
            output, last = self._run_plain(x.mean, [part.mean for part in parts], sizes)
            return Moments.certain(output), [Moments.certain(part) for part in last]
        method = self._method
        if method == "mask":
            x, parts = Moments.certain(x.sample()), [Moments.certain(part.sample()) for part in parts]
        states: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                index = layer * self._directions + direction
                drop = self.drop_between if layer else self.drop_input
                options = self.options(sizes, drop, reverse=direction == 1)
                state = State(*(part[index] for part in parts))
                made, last_state = self._run_layer(x, state, self.layer_weights(index), options)
                outputs.append(made)
                states.append(last_state)
            x = Moments.cat(outputs, -1) if self.bidirectional else outputs[0]
        columns = zip(*states, strict=True)
        return x, [Moments.stack(column) for column in columns if column[0] is not None]

    def options(self, sizes: Sequence[int], drop_input: float, *, reverse: bool = False) -> Options:
        """What the engine is told for one layer and direction."""
        method = self._method
        assert method != "mean"  # the ordinary pass is torch's own
        return Options(
            tuple(sizes),
            drop_input,
            self.drop_hidden,
            self.noise_hidden,
            self.rule,
            method,
            reverse,
            self.recompute,
        )

    def _run_layer(
        self, x: Moments, state: State, weights: Weights, options: Options
    ) -> tuple[Moments, State]:
        if torch.compiler.is_compiling():
            return self._run_compiled(x, state, weights, options)
        sources = serving.sources
        traced = sources is not None and sources.sees_steps()
        serves = self._is_fused and fused.supports(x, state, weights)
        if sources is not None and traced:
            serves = serves and sources.takes_places() and fused.traces(weights, options)
        if not serves:
            self._log("reference")
            return reference.layer(self.cell, x, state, weights, options)
        self._log("fused")
        run = fused.fused_layer if options.method == "moments" else sampled.sampled_layer
        return (fused.traced_layer if traced else run)(self.cell, x, state, weights, options)

    def _run_compiled(
        self, x: Moments, state: State, weights: Weights, options: Options
    ) -> tuple[Moments, State]:
        """As one operator in a graph that is being compiled, or unrolled, where it does not serve."""
        traced = serving.sources is not None and serving.sources.sees_steps()
        if self._is_fused and not traced and operator.supports(x, state, weights, options):
            return operator.operator_layer(self.cell, x, state, weights, options)
        if len(options.sizes) == 1:
            options = replace(options, sizes=options.sizes * (x.shape[0] // options.sizes[0]))
        return reference.layer(self.cell, x, state, weights, options)

    @property
    def _method(self) -> Effective:
        return effective_method(self.method, self.training)

    @property
    def _is_fused(self) -> bool:
        """Whether the fast path serves these options; the reference serves all."""
        return self.fused and not self.proj_size and not (self.weight_noise and self._method == "gaussian")

    def layer_weights(self, index: int) -> Weights:
        """The weights of a layer and direction as the engine takes them, Gaussian under weight noise."""
        named: dict[str, Any] = {}
        for name in self._all_weights[index]:
            weight: Any = noisy(self, name) if self.weight_noise else getattr(self, name)
            if self.weight_noise and self._method == "mask":
                weight = weight.sample()
            named[name.split("_l")[0]] = weight
        bias = self.cell.bias(named["bias_ih"], named["bias_hh"]) if self.bias else None
        w_ih = self.cell.input_weight(named["weight_ih"])
        return Weights(w_ih, named["weight_hh"], bias, named.get("weight_hr"))

    def _is_plain(self, x: Moments, parts: Sequence[Moments]) -> bool:
        """Whether no variance arises, so that the pass is that of `torch.nn`."""
        if self._method == "mean":
            return True
        if self.rule == "paper" and self._cell_name != "relu" and self._method == "moments":
            return False  # this rule finds a variance in certain units
        random = self.drop_input or self.drop_hidden or self.noise_hidden or self.weight_noise
        if self.num_layers > 1:
            random = random or self.drop_between
        return not random and x.is_certain and all(part.is_certain for part in parts)

    def _run_plain(self, x: Tensor, parts: list[Tensor], sizes: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The ordinary pass of torch's own kernel, with (1 - drop) times the units."""
        weights = []
        for index, names in enumerate(self._all_weights):
            drop = self.drop_input if index < self._directions else self.drop_between
            keeps = (1 - drop, 1 - self.drop_hidden)
            for name in names:
                weight = getattr(self, name)
                keep = keeps["_hh_" in name] if name.startswith("weight_") and "_hr_" not in name else 1.0
                weights.append(weight if keep == 1 else weight * keep)
        given: Any = [part.contiguous() for part in parts]
        given = given if self.cell.carries == "cell" else given[0]
        run = getattr(torch._VF, self.mode.lower())
        options = (self.bias, self.num_layers, 0.0, self.training, self.bidirectional)
        if sizes[0] == sizes[-1]:  # they never grow
            steps = x.view(-1 if len(sizes) == 1 else len(sizes), sizes[0], x.shape[-1])
            output, *last = run(steps, given, weights, *options, False)
            return output.flatten(0, 1), last
        output, *last = run(x, torch.tensor(sizes), given, weights, *options)
        return output, last

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        text = [str(self.input_size), str(self.hidden_size)]
        shown = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "bidirectional": False}
        for name, default in {**shown, **self._defaults}.items():
            if (value := getattr(self, name)) != default:
                text.append(f"{name}={value!r}")
        text.append(f"path={self.path}")
        if self.path == "fused" and not kernel.has_what_serves(getattr(self, self._all_weights[0][0])):
            text.append(f"kernel={kernel.status()!r}")
        return ", ".join(text)

    @property
    def path(self) -> str:
        """How a certain input is computed: by `torch` (no variance arises), `fused` or `reference`."""
        nothing = Moments.certain(torch.zeros(1))
        if not self.learn_initial and self._is_plain(nothing, [nothing]):
            return "torch"
        return "fused" if self._is_fused else "reference"

    def _log(self, path: str) -> None:
        if not torch.compiler.is_compiling():  # a logger would break the graph
            log.debug("%s(%d, %d) path: %s", type(self).__name__, self.input_size, self.hidden_size, path)
