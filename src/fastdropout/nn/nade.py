"""A neural autoregressive distribution estimator as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastdropout.functional import logit_of_expected, nade
from fastdropout.functional.affine import METHODS, Method
from fastdropout.functional.nade import NONLINEARITIES, Nonlinearity
from fastdropout.functional.propagate import add_independent
from fastdropout.functional.transfer import RULES, Rule
from fastdropout.moments import Moments, as_moments
from fastdropout.nn.checked import Choice, Drop
from fastdropout.recurrent import nade as states
from fastdropout.serving import serving, takes_moments


class NADE(nn.Module):
    """The features of a binary vector, each predicted from those before it (Larochelle & Murray, 2011).

        p(v_i = 1 | v_<i) = sigmoid(V_i . f(c + W v_<i) + b_i)

    with dropout of v and of the hidden units integrated out. Takes v, returns the moments of the logits of
    all conditionals; their loss against v itself is -log p(v):

    >>> model = NADE(5, 20, drop_input=0.2, drop_hidden=0.5)
    >>> v = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0]])
    >>> import fastdropout as fd
    >>> fd.losses.bernoulli_nll(model(v), v).sum(-1).shape
    torch.Size([1])
    >>> model.sample((3,)).shape
    torch.Size([3, 5])

    The biases may be given, as `Moments` too: a distribution conditioned on what they were computed from,
    such as the hidden units of a recurrent network (RNN-NADE, Boulanger-Lewandowski et al., 2012).

    Args:
        features: length of v.
        hidden_size: number of hidden units.
        bias: whether b and c have parameters of their own, to which what is given is added.
        drop_input: probability that a feature is zeroed on its way to the hidden units.
        drop_hidden: probability that a hidden unit is zeroed on its way to the logits.
        nonlinearity: f, `"tanh"` or `"sigmoid"`.
        rule: how exactly f is integrated.
        method: as in `Linear`. Under `"mask"` one mask of the features is drawn for a vector, and one of the
            hidden units for each of its distinct states; `eval()` takes (1 - drop) times the units.

    Shapes: v (*, features); the given biases (*, hidden_size) and (*, features).
    """

    drop_input, drop_hidden = Drop(), Drop()
    nonlinearity = Choice[Nonlinearity](NONLINEARITIES)
    rule = Choice[Rule](RULES)
    method = Choice[Method](METHODS)

    def __init__(
        self,
        features: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        nonlinearity: Nonlinearity = "tanh",
        rule: Rule = "fast",
        method: Method = "moments",
    ) -> None:
        super().__init__()
        for name, value in (("features", features), ("hidden_size", hidden_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.features, self.hidden_size = features, hidden_size
        self.drop_input, self.drop_hidden = drop_input, drop_hidden
        self.nonlinearity, self.rule, self.method = nonlinearity, rule, method
        made = {"device": device, "dtype": dtype}
        self.weight_in = nn.Parameter(torch.empty(hidden_size, features, **made))
        self.weight_out = nn.Parameter(torch.empty(features, hidden_size, **made))
        if bias:
            self.bias_hidden = nn.Parameter(torch.empty(hidden_size, **made))
            self.bias_visible = nn.Parameter(torch.empty(features, **made))
        else:
            self.register_parameter("bias_hidden", None)
            self.register_parameter("bias_visible", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +- 1 / sqrt(incoming units), as `torch.nn.Linear` has it; biases zero."""
        with torch.no_grad():
            for weight in (self.weight_in, self.weight_out):
                limit = weight.shape[1] ** -0.5
                weight.uniform_(-limit, limit)
            for bias in (self.bias_hidden, self.bias_visible):
                if bias is not None:
                    bias.zero_()

    @takes_moments
    def forward(
        self, v: Tensor, hidden: Tensor | Moments | None = None, visible: Tensor | Moments | None = None
    ) -> Moments:
        """Moments of the logits of p(v_i | v_<i), shape (*, features)."""
        self._check_vector(v)
        c, b = self._biases(hidden, visible, v.shape[:-1])
        weights, options = self._pass()
        c, b = c.reshape(-1, self.hidden_size), b.reshape(-1, self.features)
        # A trace of the noise wants to see every mask.
        fast = serving.sources is None and states.supports(c, weights[0], options)
        by = states.dropped_states if fast else None
        v_rows = v.reshape(-1, self.features)
        return nade.logits(v_rows, c, b, *weights, options=options, by=by).reshape(*v.shape)

    def walk(self, hidden: Tensor | Moments, visible: Tensor | Moments) -> nade.Walk:
        """The conditionals one after the other: call `logit(i)` and `observe(i, value)` in turn.

        The given biases are (rows, hidden_size) and (rows, features). Nothing but what is observed is drawn:
        `method` counts as in evaluation.
        """
        c, b = self._biases(hidden, visible, as_moments(hidden).shape[:-1])
        weights, options = self._pass(training=False)
        return nade.Walk(c, b, *weights, options=options)

    @torch.no_grad()
    def sample(
        self,
        shape: tuple[int, ...] = (),
        hidden: Tensor | Moments | None = None,
        visible: Tensor | Moments | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw vectors, `shape` of them for each of the given biases: shape (*shape, *, features)."""
        first = next((as_moments(b) for b in (hidden, visible) if b is not None), None)
        rows = (*shape, *(() if first is None else first.shape[:-1]))
        c, b = self._biases(hidden, visible, rows)
        c, b = c.reshape(-1, self.hidden_size), b.reshape(-1, self.features)
        weights, options = self._pass(training=False)
        walk = nade.Walk(c, b, *weights, options=options)
        like = self.weight_in
        noise = torch.rand(*rows, self.features, generator=generator, dtype=like.dtype, device=like.device)
        noise = noise.reshape(-1, self.features)
        v = torch.empty_like(noise)
        for i in range(self.features):
            v[:, i] = noise[:, i] < torch.sigmoid(logit_of_expected(walk.logit(i)))
            walk.observe(i, v[:, i])
        return v.reshape(*rows, self.features)

    def _pass(self, training: bool | None = None) -> tuple[tuple[Tensor, Tensor], nade.Options]:
        """The weights and options of a pass; under `mask` that of evaluation is ordinary, of scaled units."""
        training = self.training if training is None else training
        w_in, w_out = self.weight_in, self.weight_out
        if self.method == "mask" and not training:
            plain = nade.Options(nonlinearity=self.nonlinearity, method="mask")
            return (w_in * (1 - self.drop_input), w_out * (1 - self.drop_hidden)), plain
        method: Method = self.method if training else "moments"
        options = nade.Options(self.drop_input, self.drop_hidden, self.nonlinearity, self.rule, method)
        return (w_in, w_out), options

    def _biases(
        self, hidden: Tensor | Moments | None, visible: Tensor | Moments | None, rows: tuple[int, ...]
    ) -> tuple[Moments, Moments]:
        out = []
        for name, given, own, size in (
            ("hidden", hidden, self.bias_hidden, self.hidden_size),
            ("visible", visible, self.bias_visible, self.features),
        ):
            zero = self.weight_in.new_zeros(*rows, size)
            bias = Moments.certain(zero if own is None else zero + own)
            if given is not None:
                bias = add_independent(bias, self._fitting(name, as_moments(given), (*rows, size)))
            out.append(bias)
        return out[0], out[1]

    def _fitting(self, name: str, given: Moments, shape: tuple[int, ...]) -> Moments:
        """What was given, in the shape of all rows; certain under `mask`."""
        try:
            fits = torch.broadcast_shapes(given.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(given.shape)}")
        if self.method == "mask":
            given = Moments.certain(given.sample() if self.training else given.mean)
        return given.expand(*shape)

    def _check_vector(self, v: Tensor) -> None:
        if not isinstance(v, Tensor) or v.ndim == 0 or v.shape[-1] != self.features:
            got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(f"v must have {self.features} features in its last dimension, got {got}")
        if v.dtype != self.weight_in.dtype:
            raise ValueError(f"v must have the dtype of the weights, {self.weight_in.dtype}, got {v.dtype}")
        wrong = v[(v != 0) & (v != 1)]
        if wrong.numel():
            raise ValueError(f"v must hold only 0 and 1, got {wrong[0].item():g}")

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"{self.features}, {self.hidden_size}, drop_input={self.drop_input}, "
            f"drop_hidden={self.drop_hidden}, nonlinearity={self.nonlinearity!r}, rule={self.rule!r}, "
            f"method={self.method!r}"
        )
