"""Binary features: notes that are independent given the hidden state, and notes one after the other."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fastdropout.functional import logit_of_expected, sigmoid
from fastdropout.functional.affine import Method
from fastdropout.functional.losses import bernoulli_nll, expected_bernoulli_nll
from fastdropout.functional.nade import Nonlinearity, Walk
from fastdropout.functional.transfer import Rule
from fastdropout.moments import Moments
from fastdropout.music.training.outputs.base import BINS, Loss, Output
from fastdropout.nn import NADE as NADELayer

OutputRule = Literal["fast", "paper"]
_HALVINGS = 40
"""Of the interval of a level: 1e-12 of it is left."""


class IndependentNotes(Output):
    """A logit for each note: the context itself.

    `output_rule` says how the sigmoid at the output is integrated: `"fast"`, or `"paper"` as in the paper.
    """

    def __init__(self, features: int, output_rule: OutputRule = "fast") -> None:
        super().__init__(features)
        self.output_rule: OutputRule = output_rule

    @property
    def ceiling(self) -> float:
        """Ten times what a fair coin for each note would score."""
        return 10 * self.features * math.log(2)

    def parameters_of(self, context: Moments, frames: Tensor | None) -> Moments:
        """The logits."""
        return context

    def nll(self, parameters: Moments, frames: Tensor, loss: Loss = "mean") -> Tensor:
        """-log E[p] (`mean`, the paper's) or E[-log p] (`expected`), summed over the notes."""
        target = frames.expand(parameters.shape)
        if loss == "expected":
            return expected_bernoulli_nll(parameters, target).sum(-1)
        return bernoulli_nll(parameters, target, self.output_rule).sum(-1)

    def expected(self, parameters: Moments) -> Moments:
        """Moments of the probabilities."""
        p = sigmoid(parameters, self.output_rule)
        # By the rule `paper` even certain logits have a variance, which says nothing of them.
        return Moments.certain(p.mean) if parameters.is_certain else p

    def tally(self, parameters: Moments, frames: Tensor, mask: Tensor) -> Tensor:
        """By the probability that a note was given: how many, their sum, and how many sounded."""
        p = torch.sigmoid(logit_of_expected(parameters, self.output_rule))[mask].flatten().double()
        slot = (p * BINS).long().clamp_(0, BINS - 1)
        weights = (None, p, frames[mask].flatten().double())
        return torch.stack([torch.bincount(slot, w, BINS).double() for w in weights])

    def noise(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform in [0, 1)."""
        return torch.rand(*shape, generator=generator)

    def choose(self, parameters: Moments, noise: Tensor, temperature: float, shift: Tensor | None) -> Tensor:
        """Notes that sound; the logit of the expected probability is divided by the temperature."""
        logit = logit_of_expected(parameters, self.output_rule)
        if not temperature:
            return (logit > 0).to(logit.dtype)
        scaled = logit / temperature if shift is None else logit / temperature + shift
        return (noise < torch.sigmoid(scaled)).to(logit.dtype)

    def level(self, parameters: Moments, temperature: float) -> Tensor | None:
        """The b with sum_i sigmoid(l_i / temperature + b) = sum_i sigmoid(l_i), by bisection.

        Most notes are improbable, so without it a temperature below 1 makes frames thinner, then silent.
        """
        if temperature in (0, 1):
            return None
        logit = logit_of_expected(parameters, self.output_rule).double()
        wanted = torch.sigmoid(logit).sum(-1, keepdim=True)
        # At the b of a note, its probability is what it was: the sum's lies between the lowest and highest.
        low, high = (logit - logit / temperature).aminmax(dim=-1, keepdim=True)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            over = torch.sigmoid(logit / temperature + middle).sum(-1, keepdim=True) > wanted
            low, high = torch.where(over, low, middle), torch.where(over, middle, high)
        return low.to(parameters.dtype)


class NADE(IndependentNotes):
    """Notes from the lowest to the highest, each given those below it in its frame (RNN-NADE).

    The context holds the biases of the notes, then those of the NADE's hidden units: (features + units).
    """

    sequential = True

    def __init__(
        self,
        features: int,
        units: int,
        *,
        drop_input: float = 0.0,
        drop_hidden: float = 0.0,
        nonlinearity: Nonlinearity = "tanh",
        rule: Rule = "fast",
        output_rule: OutputRule = "fast",
        method: Method = "moments",
    ) -> None:
        super().__init__(features, output_rule)
        self.nade = NADELayer(
            features,
            units,
            bias=False,
            drop_input=drop_input,
            drop_hidden=drop_hidden,
            nonlinearity=nonlinearity,
            rule=rule,
            method=method,
        )

    @property
    def size(self) -> int:
        """The notes and the hidden units."""
        return self.features + self.nade.hidden_size

    def parameters_of(self, context: Moments, frames: Tensor | None) -> Moments:
        """Logits of the notes, given those below them in `frames`."""
        assert frames is not None
        return self.nade(frames, context[..., self.features :], context[..., : self.features])

    def walk(self, context: Moments) -> Walk:
        """The notes one after the other."""
        return self.nade.walk(context[:, self.features :], context[:, : self.features])
