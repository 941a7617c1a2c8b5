"""Normalisation by statistics that are random themselves: layer, group, instance, RMS and batch norm.

Of n independent elements, S their variance (or mean square) and y = (x - mean(x)) / sqrt(S + eps):

    E[S]  = mean((E[x] - mean E[x])^2) + (1 - 1 / n) mean V[x],      r = 1 / sqrt(E[S] + eps)
    E[y_i] ~ r (E[x_i] - mean E[x])
    V[y_i] ~ r^2 sum_j (delta_ij - 1 / n - E[y_i] E[y_j] / n)^2 V[x_j]

The scale is taken at the expectation of S, the variance to first order around it: noise in the direction
of the mean and of the scale is divided out, as in the exact function. Without centring (RMS norm) the
terms 1 / n are missing. Against sampling, 16 elements of unit spread or more: mean within .03 / .05 for a
variance of 1 / 4; standard deviation, over all elements, within 3 %; of single ones within 15 %, or 25 %
too small for an element that leads so far that its own noise is divided out
(`tests/functional/test_norms.py`). Of 4 elements: mean .12, standard deviation 10 %.

Units of networks share noise. With `independent=False` none of it is divided out, V[y_i] = r^2 V[x_i]. Over
the networks of `docs/integrate.md` this has the better diagonal variance and mean, so `fastdropout.integrate`
does it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.moments import Moments, as_moments, unchecked_moments


def layer_norm(
    x: Moments | Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    independent: bool = True,
) -> Moments:
    """`torch.nn.functional.layer_norm`: over the last dimensions, of shape `normalized_shape`.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.layer_norm(x, [3])
    Moments(mean=tensor([[-0.9701, -0.2425,  1.2127]]), var=tensor([[0.0467, 0.1401, 0.0311]]))
    """
    x = as_moments(x)
    dims = _last(x, normalized_shape)
    return _affine(_normalise(x, dims, eps, independent=independent)[0], weight, bias)


def rms_norm(
    x: Moments | Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    independent: bool = True,
) -> Moments:
    """`torch.nn.functional.rms_norm`: x / sqrt(mean(x^2) + eps), without centring.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 1.0]]))
    >>> fd.functional.rms_norm(x, [3])
    Moments(mean=tensor([[0.3651, 0.7303, 1.4606]]), var=tensor([[0.0047, 0.0619, 0.0196]]))
    """
    x = as_moments(x)
    dims = _last(x, normalized_shape)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _affine(_normalise(x, dims, eps, centred=False, independent=independent)[0], weight, None)


def group_norm(
    x: Moments | Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    independent: bool = True,
) -> Moments:
    """`torch.nn.functional.group_norm` of (batch, channels, ...).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0, 2.0, 3.0, 5.0]]), torch.tensor([[0.0, 0.0, 0.5, 0.5]]))
    >>> fd.functional.group_norm(x, 2).mean
    tensor([[-1.0000,  1.0000, -0.8944,  0.8944]])
    """
    x = as_moments(x)
    if x.ndim < 2 or x.shape[1] % num_groups:
        raise ValueError(f"{num_groups} groups must divide the channels, got shape {tuple(x.shape)}")
    grouped = x.rearrange(lambda t: t.reshape(t.shape[0], num_groups, -1))
    y = _normalise(grouped, (2,), eps, independent=independent)[0].reshape(x.shape)
    return _affine(y, _by_channel(weight, x), _by_channel(bias, x))


def instance_norm(
    x: Moments | Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    independent: bool = True,
) -> Moments:
    """`torch.nn.functional.instance_norm` of (batch, channels, ...).

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[0.0, 0.5, 1.0]]]))
    >>> fd.functional.instance_norm(x).mean
    tensor([[[-0.9701, -0.2425,  1.2127]]])
    """
    x = as_moments(x)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    y, mean, var, n = _normalise(x, tuple(range(2, x.ndim)), eps, independent=independent)
    _track(running_mean, running_var, mean.mean(0, keepdim=True), var.mean(0, keepdim=True), n, momentum)
    return _affine(y, _by_channel(weight, x), _by_channel(bias, x))


def batch_norm(
    x: Moments | Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    independent: bool = True,
) -> Moments:
    """`torch.nn.functional.batch_norm` of (batch, channels, ...).

    In evaluation mode, or with given statistics, an affine map and exact. In training the expected
    statistics of the batch normalise, and move the running ones as torch does.

    >>> import torch, fastdropout as fd
    >>> x = fd.Moments(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [2.0]]))
    >>> fd.functional.batch_norm(x, torch.tensor([1.0]), torch.tensor([4.0])).var  # of the running statistics
    tensor([[0.0000],
            [0.5000]])
    """
    x = as_moments(x)
    if training or running_mean is None or running_var is None:
        y, mean, var, n = _normalise(x, (0, *range(2, x.ndim)), eps, independent=independent)
        _track(running_mean, running_var, mean, var, n, momentum)
    else:
        # torch's own kernel for the mean; of the variance only the scale is left.
        mean = F.batch_norm(x.mean, running_mean, running_var, weight, bias, False, momentum, eps)
        if x.is_certain:
            return Moments.certain(mean)
        gain = 1 / (running_var + eps) if weight is None else weight**2 / (running_var + eps)
        return unchecked_moments(mean, x.var * gain.view(-1, *[1] * (x.ndim - 2)))
    return _affine(y, _by_channel(weight, x), _by_channel(bias, x))


def _normalise(
    x: Moments, dims: tuple[int, ...], eps: float, centred: bool = True, independent: bool = True
) -> tuple[Moments, Tensor, Tensor, int]:
    """The normalised elements, the expected mean and variance (or mean square), and their number."""
    m, v = x.mean, x.var
    n = 1
    for dim in dims:
        n *= x.shape[dim]
    centre = m.mean(dims, keepdim=True) if centred else torch.zeros_like(m.mean(dims, keepdim=True))
    spread = (m - centre) ** 2
    if not x.is_certain:
        spread = spread + v * ((1 - 1 / n) if centred else 1.0)
    total = spread.mean(dims, keepdim=True)
    r = torch.rsqrt(total + eps)
    y = (m - centre) * r
    if x.is_certain:
        return Moments.certain(y), centre, total, n
    if not independent:
        return unchecked_moments(y, v * r**2), centre, total, n
    one = 1.0 if centred else 0.0
    moved = y * (y * v).sum(dims, keepdim=True) * (2 * one) + y**2 * (y**2 * v).sum(dims, keepdim=True)
    if centred:
        moved = moved + v.sum(dims, keepdim=True)
    # Never negative in exact arithmetic: a sum of squares, multiplied out.
    share = (v * (1 - 2 / n * (one + y**2)) + moved / n**2).clamp(min=0)
    return unchecked_moments(y, share * r**2), centre, total, n


def _last(x: Moments, shape: Sequence[int]) -> tuple[int, ...]:
    if tuple(x.shape[x.ndim - len(shape) :]) != tuple(shape):
        raise ValueError(
            f"normalized_shape must be that of the last dimensions of {tuple(x.shape)}, got {tuple(shape)}"
        )
    return tuple(range(-len(shape), 0))


def _by_channel(t: Tensor | None, x: Moments) -> Tensor | None:
    return None if t is None else t.reshape(1, -1, *[1] * (x.ndim - 2))


def _affine(x: Moments, weight: Tensor | None, bias: Tensor | None) -> Moments:
    y = x if weight is None else x * weight
    return y if bias is None else y + bias


def _track(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    var: Tensor,
    n: int,
    momentum: float,
) -> None:
    """Move the running statistics, in place, towards those of the batch; the variance without its bias."""
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.reshape(-1).to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((var * (n / max(1, n - 1))).reshape(-1).to(running_var.dtype), momentum)
