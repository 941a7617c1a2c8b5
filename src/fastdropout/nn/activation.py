"""Transfer functions as modules, and their `Sequential`."""

from __future__ import annotations

from torch import Tensor, nn

from fastdropout.functional import softmax as _softmax
from fastdropout.functional import transfer
from fastdropout.functional.transfer import RULES, Rule
from fastdropout.moments import Moments, as_moments
from fastdropout.nn.checked import Choice
from fastdropout.serving import takes_moments


class _Ruled(nn.Module):
    rule = Choice[Rule](RULES)

    def __init__(self, rule: Rule = "fast") -> None:
        super().__init__()
        self.rule = rule

    def extra_repr(self) -> str:
        """The rule."""
        return f"rule={self.rule!r}"


class Tanh(_Ruled):
    """`functional.tanh`, by `rule`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(2), torch.tensor([0.0, 1.0]))
    >>> fd.nn.Tanh()(x).var
    tensor([0.0000, 0.3974])
    """

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of tanh of the input."""
        return transfer.tanh(as_moments(input), self.rule)


class Sigmoid(_Ruled):
    """`functional.sigmoid`, by `rule`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(2), torch.tensor([0.0, 1.0]))
    >>> fd.nn.Sigmoid()(x).mean
    tensor([0.5000, 0.5000])
    """

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of the logistic sigmoid of the input."""
        return transfer.sigmoid(as_moments(input), self.rule)


class ReLU(nn.Module):
    """`functional.relu`, exact: E[max(a, 0)] = 1 / sqrt(2 pi) for a standard Gaussian.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(2), torch.tensor([0.0, 1.0]))
    >>> fd.nn.ReLU()(x).mean
    tensor([0.0000, 0.3989])
    """

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of max(input, 0)."""
        return transfer.relu(as_moments(input))


class Identity(nn.Module):
    """Pass the moments on.

    >>> import torch, fastdropout as fd
    >>> fd.nn.Identity()(torch.ones(2)).is_certain
    True
    """

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """The input as moments."""
        return as_moments(input)


class Softmax(_Ruled):
    """`functional.softmax`, by `rule`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.zeros(2), torch.tensor([0.0, 1.0]))
    >>> fd.nn.Softmax()(x).mean
    tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int = -1, *, rule: Rule = "fast") -> None:
        super().__init__(rule)
        self.dim = dim

    @takes_moments
    def forward(self, input: Tensor | Moments) -> Moments:
        """Moments of the probabilities."""
        return _softmax(as_moments(input), self.dim, self.rule)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"dim={self.dim}, rule={self.rule!r}"


class Sequential(nn.Sequential):
    """`torch.nn.Sequential` of moments: a tensor that comes in is a certain value.

    >>> import torch, fastdropout as fd
    >>> net = fd.nn.Sequential(fd.nn.Linear(3, 8), fd.nn.ReLU(), fd.nn.Linear(8, 2, drop=0.5))
    >>> net(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def forward(self, input: Tensor | Moments) -> Moments:
        """Run the modules one after the other."""
        return super().forward(as_moments(input))
