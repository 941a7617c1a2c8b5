"""Moments through masks, sums, products and linear layers: exact for independent units."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.moments import Moments, as_moments, unchecked_moments
from fastdropout.serving import serving

# Added where 0 would be divided by 0, or have an infinite slope; kernel.c has it too.
SMALLEST_SQUARE = 1e-36
# By how many roundings two sums may differ that are equal in exact arithmetic; kernel.c has it too.
TIE = 16


def check_drop(drop: float, name: str = "drop") -> float:
    """Refuse a drop probability outside [0, 1)."""
    if isinstance(drop, bool) or not isinstance(drop, int | float) or not 0 <= drop < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {drop!r}")
    return float(drop)


def dropout(x: Moments | Tensor, drop: float) -> Moments:
    """Multiply by a mask that is 0 with probability `drop`, else 1 (the paper's equations 1 and 2).

    E[z] = keep E[x]
    V[z] = keep V[x] + keep drop E[x]^2

    Kept units are not scaled up by 1 / keep, as in the paper and unlike `torch.nn.Dropout`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    >>> fd.functional.dropout(x, 0.5)
    Moments(mean=tensor([0.5000, 1.0000]), var=tensor([0.2500, 1.5000]))
    """
    x, keep = as_moments(x), 1 - check_drop(drop)
    if drop == 0:
        return x
    if serving.sources is not None:
        return serving.sources.mask(x, drop, scale=False)
    noise = keep * drop * x.mean**2
    return unchecked_moments(keep * x.mean, noise if x.is_certain else keep * x.var + noise)


def dropout_of_mean(x: Moments | Tensor, drop: float) -> Moments:
    """Dropout as in Wang & Manning (2013): the variance of the incoming units is dropped (footnote 2).

    E[z] = keep E[x]
    V[z] = keep drop E[x]^2

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    >>> fd.functional.dropout_of_mean(x, 0.5)
    Moments(mean=tensor([0.5000, 1.0000]), var=tensor([0.2500, 1.0000]))
    """
    return dropout(as_moments(x).mean, drop)


def sampled_dropout(x: Tensor, drop: float) -> Tensor:
    """Ordinary dropout: draw the mask of `dropout` and apply it.

    >>> import torch, fastdropout as fd
    >>> _ = torch.manual_seed(0)
    >>> fd.functional.sampled_dropout(torch.ones(5), 0.5)
    tensor([0., 1., 0., 0., 0.])
    """
    check_drop(drop)
    return x if drop == 0 else x * (torch.rand_like(x) >= drop)


def linear(x: Moments | Tensor, weight: Tensor, bias: Tensor | None = None) -> Moments:
    """A linear layer of independent units, `weight` of shape (out, in) (the paper's equations 1 and 2).

    E[a] = W E[x] + b
    V[a] = (W o W) V[x]

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    >>> fd.functional.linear(x, torch.tensor([[1.0, 3.0]]))
    Moments(mean=tensor([7.]), var=tensor([9.]))
    """
    x = as_moments(x)
    mean = F.linear(x.mean, weight, bias)
    return unchecked_moments(mean, None if x.is_certain else F.linear(x.var, weight**2))


def noisy_linear(
    x: Moments | Tensor, weight: Moments | Tensor, bias: Moments | Tensor | None = None
) -> Moments:
    """A linear layer whose weights are independent Gaussians (the paper's equations 7 and 8).

    E[a] = E[W] E[x] + E[b]
    V[a] = (E[W]^2 + V[W]) V[x] + V[W] E[x]^2 + V[b]

    >>> import torch, fastdropout as fd
    >>> x = torch.tensor([1.0, 2.0])
    >>> weight = fd.Moments(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.5, 0.5]]))
    >>> fd.functional.noisy_linear(x, weight)
    Moments(mean=tensor([7.]), var=tensor([2.5000]))
    """
    x, weight, bias = as_moments(x), as_moments(weight), None if bias is None else as_moments(bias)
    mean = F.linear(x.mean, weight.mean, None if bias is None else bias.mean)
    var = F.linear(x.mean**2, weight.var, None if bias is None else bias.var)
    if not x.is_certain:
        var = var + F.linear(x.var, weight.mean**2 + weight.var)
        if serving.sources is not None:
            mean = serving.sources.residual(mean, F.linear(x.var, weight.var))
    return unchecked_moments(mean, var)


def add_independent(a: Moments | Tensor, b: Moments | Tensor) -> Moments:
    """The sum of two independent variables: means add, variances add.

    >>> import torch, fastdropout as fd
    >>> a = fd.Moments(torch.tensor(1.0), torch.tensor(0.5))
    >>> b = fd.Moments(torch.tensor(2.0), torch.tensor(1.5))
    >>> fd.functional.add_independent(a, b)
    Moments(mean=tensor(3.), var=tensor(2.))
    """
    a, b = as_moments(a), as_moments(b)
    mean = a.mean + b.mean
    if a.is_certain and b.is_certain:
        return Moments.certain(mean)
    return unchecked_moments(mean, a.var + b.var)


def multiply_independent(a: Moments | Tensor, b: Moments | Tensor) -> Moments:
    """The product of two independent variables.

    V[ab] = V[a] V[b] + V[a] E[b]^2 + E[a]^2 V[b]

    >>> import torch, fastdropout as fd
    >>> a = fd.Moments(torch.tensor(1.0), torch.tensor(0.5))
    >>> b = fd.Moments(torch.tensor(2.0), torch.tensor(1.5))
    >>> fd.functional.multiply_independent(a, b)
    Moments(mean=tensor(2.), var=tensor(4.2500))
    """
    a, b = as_moments(a), as_moments(b)
    mean = a.mean * b.mean
    if a.is_certain and b.is_certain:
        return Moments.certain(mean)
    return unchecked_moments(mean, a.var * b.var + a.var * b.mean**2 + a.mean**2 * b.var)


def mix_independent(z: Moments, a: Moments, b: Moments) -> Moments:
    """(1 - z) a + z b for independent z, a, b: what a GRU makes of its old state and a new one.

    E = E[a] + E[z] (E[b] - E[a])
    V = ((1 - E[z])^2 + V[z]) V[a] + (E[z]^2 + V[z]) V[b] + V[z] (E[b] - E[a])^2

    Exact; to add the products (1 - z) a and z b as if they were independent would be wrong: z is in both.

    >>> import torch, fastdropout as fd
    >>> z = fd.Moments(torch.tensor(0.5), torch.tensor(0.1))
    >>> a = fd.Moments(torch.tensor(1.0), torch.tensor(0.5))
    >>> b = fd.Moments(torch.tensor(2.0), torch.tensor(1.5))
    >>> fd.functional.mix_independent(z, a, b)
    Moments(mean=tensor(1.5000), var=tensor(0.8000))
    """
    z, a, b = as_moments(z), as_moments(a), as_moments(b)
    gap = b.mean - a.mean
    mean = a.mean + z.mean * gap
    if z.is_certain and a.is_certain and b.is_certain:
        return Moments.certain(mean)
    stays = 1 - z.mean
    return unchecked_moments(mean, (stays**2 + z.var) * a.var + (z.mean**2 + z.var) * b.var + z.var * gap**2)


def recurring_covariance(
    forget: Moments, cell: Moments, enter: Moments, candidate: Moments, var: Tensor, recurring: Tensor
) -> Tensor:
    """2 Cov(f c, i g) for the gates f, i, the cell c and the candidate g = tanh(a) of an LSTM.

    The weights into a are the same at every step, and the hidden units behind them remember: part of the
    noise in a was there before, and c has kept it. `var` is V[a], `recurring` that part X of it. With

        N = E[i]^2 V[g] X / V[a]                  what c receives at this step of the noise that returns,
        J = V[f] (E[c]^2 + V[c]) + V[i g]         and of all,

    let the noise of a at steps k apart have the covariance X r f^(k-1), r = Cov(c_t, c_{t-1}) / V[c], as
    in units that forget like this one. Summed over the past of c, this is S = 2 f N r / (1 - f^2). Further
    r = f + S / (2 f V[c]), and (1 - f^2) V[c] = J + S for a cell that neither grows nor shrinks. So

        S^2 + (J - N) S - 2 N f^2 V[c] = 0,

    of which the positive root is taken; it is 0 where X, V[c], E[f] or E[i] is. X, of a mean field,
    may exceed V[a] and then counts as V[a]. Where nothing but returning noise enters a (one unit, no drop),
    X is V[a] but for rounding: that is no excess, since a variance added to a makes V[a] the larger one.

    >>> import torch
    >>> f, c, i, g = (Moments(torch.tensor([m]), torch.tensor([0.1])) for m in (0.9, 0.0, 0.5, 0.0))
    >>> recurring_covariance(f, c, i, g, torch.tensor([0.12]), torch.tensor([0.05]))
    tensor([0.0273])
    """
    f, c, i, g = map(as_moments, (forget, cell, enter, candidate))
    excess = recurring > var * (1 + TIE * torch.finfo(var.dtype).eps)
    part = recurring / (torch.where(excess, recurring, var) + SMALLEST_SQUARE)
    part = part - (part.detach() - 1).clamp(min=0)  # above by rounding; for the value only
    noise = i.mean**2 * g.var * part
    # J - N, of positive terms
    rest = f.var * (c.mean**2 + c.var) + i.var * (g.mean**2 + g.var) + i.mean**2 * g.var * (1 - part)
    held = noise * f.mean**2 * c.var
    return 4 * held / (rest + (rest**2 + 8 * held + SMALLEST_SQUARE).sqrt())
