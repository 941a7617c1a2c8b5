"""What every output layer does: the loss of a frame, its expectation, and drawing one.

An output layer is given a *context* for each frame, which the network makes linear in its hidden moments, and
turns it into a distribution of the frame. All layers say what they know of a feature by the moments of one
parameter, a logit or a mean, and where the features of a frame depend on one another, those of a feature
given the features before it. A `Prediction` holds the contexts of one network, or of several that predict
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastdropout.moments import Moments, unchecked_moments

Loss = Literal["mean", "expected"]

BINS = 20
"""Bins of equal width in a calibration table."""


class Output(nn.Module):
    """From the context of frames to their distribution.

    Shapes: contexts (*, size), frames and parameters (*, features).
    """

    real = False
    """Whether the features are real values, not zeros and ones."""
    sequential = False
    """Whether the features of a frame depend on those before them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    @property
    def size(self) -> int:
        """Features of a context."""
        return self.features

    @property
    def ceiling(self) -> float:
        """Nats per frame that only a training that has diverged exceeds."""
        raise NotImplementedError

    def silence(self) -> Tensor:
        """The frame that stands for nothing before the first one, (features,)."""
        return torch.zeros(self.features)

    def encode(self, inputs: Tensor) -> Tensor:
        """Frames as the network reads them."""
        return inputs

    def parameters_of(self, context: Moments, frames: Tensor | None) -> Moments:
        """Moments of the parameter of every feature; `frames` only matter to a sequential layer."""
        raise NotImplementedError

    def nll(self, parameters: Moments, frames: Tensor, loss: Loss = "mean") -> Tensor:
        """Nats of each frame, (*)."""
        raise NotImplementedError

    def expected(self, parameters: Moments) -> Moments:
        """Moments of the probability, or of the value, of every feature."""
        raise NotImplementedError

    def tally(self, parameters: Moments, frames: Tensor, mask: Tensor) -> Tensor:
        """Of each of `BINS` bins, where `mask`: count, sum of probabilities, number of events; (3, BINS)."""
        raise NotImplementedError

    def noise(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """What `choose` turns into a draw."""
        raise NotImplementedError

    def choose(self, parameters: Moments, noise: Tensor, temperature: float, shift: Tensor | None) -> Tensor:
        """Values drawn by `noise` where the parameters are known; surer ones at a temperature below 1.

        `shift`, from `level`, has the shape of the parameters or a 1 for their features.
        """
        raise NotImplementedError

    def level(self, parameters: Moments, temperature: float) -> Tensor | None:
        """What keeps the expected sum of a frame at a temperature, (*, 1); None where nothing is needed."""
        return None

    def walk(self, context: Moments) -> Any:
        """The features one after the other, of a sequential layer: see `functional.nade.Walk`."""
        raise NotImplementedError


class Prediction:
    """The distribution of frames that are not known yet, by one network or several.

    `together` says that the parameters of several networks are averaged, which is one distribution; if not,
    each has its own, and they stand in front: (networks, *, features).
    """

    def __init__(self, outputs: Sequence[Output], contexts: Sequence[Moments], together: bool = True) -> None:
        self.outputs, self.contexts, self.together = tuple(outputs), tuple(contexts), together

    @property
    def output(self) -> Output:
        """The output layer of the first network; the others are of its kind."""
        return self.outputs[0]

    def __getitem__(self, index: Any) -> Prediction:
        """Of some of the frames."""
        return Prediction(self.outputs, [context[index] for context in self.contexts], self.together)

    def parameters(self, frames: Tensor | None = None) -> Moments:
        """Moments of the parameter of every feature, given the features of its frame before it."""
        if frames is None and self.output.sequential:
            raise ValueError("frames must be given: their features depend on one another")
        found = [
            output.parameters_of(context, frames)
            for output, context in zip(self.outputs, self.contexts, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        stacked = Moments.stack(found)
        return average(stacked) if self.together else stacked

    def nll(self, frames: Tensor, loss: Loss = "mean", mask: Tensor | None = None) -> Tensor:
        """Nats of each frame, (*), or of those where `mask` holds, in a row."""
        if mask is None:
            return self.output.nll(self.parameters(frames), frames, loss)
        if self.output.sequential:  # Costly, so that frames that are not scored are left out.
            return self[mask].nll(frames[mask], loss)
        return self.nll(frames, loss)[..., mask]

    def expected(self, frames: Tensor | None = None) -> Moments:
        """Moments of the probability, or value, of every feature, given those of its frame before it."""
        return self.output.expected(self.parameters(frames))

    @torch.no_grad()
    def draw(self, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        """Draw the frames, (*, features), with as many notes as are expected at any temperature but 0."""
        output = self.output
        shape = self.contexts[0].shape[:-1]
        noise = output.noise(*shape, output.features, generator=generator)
        if not output.sequential:
            parameters = self.parameters()
            return output.choose(parameters, noise, temperature, output.level(parameters, temperature))
        if temperature in (0, 1):
            return self._walk(noise, temperature, None)
        # How many notes are expected depends on those that were drawn: a draft stands for them.
        draft = self._walk(output.noise(*noise.shape, generator=generator), 1.0, None)
        return self._walk(noise, temperature, output.level(self.parameters(draft), temperature))

    def _walk(self, noise: Tensor, temperature: float, shift: Tensor | None) -> Tensor:
        """Draw the features one after the other."""
        output, shape = self.output, noise.shape
        noise = noise.reshape(-1, output.features)
        shift = None if shift is None else shift.reshape(-1)
        walks = [
            own.walk(context.reshape(-1, own.size))
            for own, context in zip(self.outputs, self.contexts, strict=True)
        ]
        frames = torch.empty_like(noise)
        for i in range(output.features):
            parameter = average(Moments.stack([walk.logit(i) for walk in walks]))
            frames[:, i] = output.choose(parameter, noise[:, i], temperature, shift)
            for walk in walks:
                walk.observe(i, frames[:, i])
        return frames.reshape(shape)


def average(stacked: Moments) -> Moments:
    """One set of parameters out of several networks', which stand in front.

    The variance is the average too: the noise of all is taken as one. With independent noise it would shrink
    with their number, and together they would be surer than any has learnt to be.
    """
    return unchecked_moments(stacked.mean.mean(0), None if stacked.is_certain else stacked.var.mean(0))
