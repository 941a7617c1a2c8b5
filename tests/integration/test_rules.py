"""Every kind of rule against sampling: torch's function of draws, and the rule of their moments."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments
from fastdropout.functional import quadrature

torch.manual_seed(0)
N = 40_000
W, V = torch.randn(4, 3), torch.randn(4, 3)
BILINEAR = torch.randn(3, 4, 4)


def noisy(*shape, mean=0.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Moments(mean + torch.randn(*shape, generator=g), 0.05 + 0.5 * torch.rand(*shape, generator=g))


X, Y = noisy(2, 4), noisy(2, 4, seed=1)
IMAGE, SOUND, VOLUME = noisy(1, 2, 6, 6), noisy(1, 2, 8), noisy(1, 2, 4, 4, 4)
KEYS, VALUES = noisy(2, 4, seed=2), noisy(2, 4, seed=3)
INDEX = torch.tensor([[0, 2, 1, 3], [3, 3, 0, 1]])

# Exact but for sampling error: moved, added and multiplied elements.
EXACT = {
    "linear": (lambda x: F.linear(x, W.T, torch.ones(3)), X),
    "matmul": (lambda x: x @ W, X),
    "rmatmul": (lambda x: W.T @ x.T, X),
    "addmm": (lambda x: torch.addmm(torch.ones(3), x, W, beta=2, alpha=0.5), X),
    "einsum": (lambda x: torch.einsum("bi,io->bo", x, W), X),
    "einsum of three": (lambda x: torch.einsum("bi,io,io->bo", x, W, V), X),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(3, 2, 3) / 3, torch.ones(3), padding=1), SOUND),
    "conv2d": (lambda x: F.conv2d(x, W.view(3, 2, 2, 1), torch.ones(3), stride=2), IMAGE),
    "conv3d": (lambda x: F.conv3d(x, W.view(3, 2, 2, 1, 1), None), VOLUME),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, W.view(2, 3, 2, 1), torch.ones(3), 2), IMAGE),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, torch.ones(2, 3, 3) / 3, None, 2), SOUND),
    "conv_transpose3d": (lambda x: F.conv_transpose3d(x, W.view(2, 3, 2, 1, 1), torch.ones(3)), VOLUME),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, padding=1), SOUND),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False), IMAGE),
    "avg_pool2d, ceil": (lambda x: F.avg_pool2d(x, (2, 4), ceil_mode=True), IMAGE),
    "avg_pool2d, divisor": (lambda x: F.avg_pool2d(x, 3, 1, 1, divisor_override=5), IMAGE),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, padding=1), VOLUME),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), SOUND),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (4, 1)), IMAGE),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (3, None, 1)), VOLUME),
    "baddbmm": (lambda x: torch.baddbmm(x[None], x.view(1, 2, 4), torch.ones(1, 4, 4) / 2, beta=0), X),
    "addbmm": (lambda x: torch.addbmm(torch.ones(2, 3), x.view(1, 2, 4), W[None], alpha=0.5), X),
    "tensordot": (lambda x: torch.tensordot(x, W, 1), X),
    "prod": (lambda x: x.prod(1), X),
    "diff": (lambda x: torch.diff(x, dim=1), X),
    "fold": (lambda x: F.fold(x.reshape(1, 2, 4), (1, 5), (1, 2)), X),
    "index_add": (lambda x: torch.ones(3, 4).index_add(0, torch.tensor([0, 0]), x, alpha=0.5), X),
    "scatter_add": (lambda x: torch.zeros(2, 4).scatter_add(1, INDEX, x), X),
    "shift and scale": (lambda x: (2 - x * 3) / 4 + torch.arange(4.0), X),
    "sum": (lambda x: x.sum(1), X),
    "mean": (lambda x: x.mean(dim=0, keepdim=True), X),
    "cumsum": (lambda x: x.cumsum(1), X),
    "twice": (lambda x: x + x, X),
    "square": (lambda x: x * x, X),
    "cube": (lambda x: x**3, X),
    "fourth power": (lambda x: torch.pow(x, 4), X),
    "transpose, view": (lambda x: x.T.reshape(2, 4).unsqueeze(0).expand(2, 2, 4), X),
    "split": (lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1), X),
    "chunk, stack": (lambda x: torch.stack(x.chunk(2, 1)), X),
    "index": (lambda x: x[:, [2, 0]], X),
    "gather": (lambda x: x.gather(1, INDEX), X),
    "where": (lambda x: torch.where(torch.tensor([True, False, True, False]), x, 7.0), X),
    "masked_fill": (lambda x: x.masked_fill(torch.tensor([True, False, True, False]), 2.0), X),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0), X),
    "reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), SOUND),
    "roll, flip": (lambda x: x.roll(1, 1).flip(0), X),
    "scatter": (lambda x: torch.zeros(2, 4).scatter(1, INDEX[:, :1], x[:, :1]), X),
    "tril": (lambda x: x.tril(), X),
    "lerp": (lambda x: torch.lerp(x, torch.ones(4), 0.25), X),
    "addcmul": (lambda x: torch.addcmul(x, torch.ones(4), torch.arange(4.0), value=2), X),
    "to": (lambda x: x.double().to(torch.float32), X),
    "set item": (lambda x: _set_item(x), X),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "bilinear up": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), IMAGE),
    "bicubic": (lambda x: F.interpolate(x, size=(9, 4), mode="bicubic", align_corners=True), IMAGE),
    "linear up": (lambda x: F.interpolate(x, size=11, mode="linear"), SOUND),
    "bilinear": (
        lambda x: F.bilinear(x, torch.ones(2, 4), BILINEAR),
        X,
    ),
    "embedding": (lambda x: F.embedding(torch.tensor([0, 1, 0]), x), X),
    "embedding_bag": (lambda x: F.embedding_bag(torch.tensor([[0, 1], [1, 0]]), x, mode="mean"), X),
}


def _set_item(x):
    x = x.clone()
    x[:, 1] = 5.0
    return x


# By closed forms that are fits, by quadrature of few points or by the delta method: a few percent.
_ACTIVATIONS = """
    relu relu6 leaky_relu elu celu selu gelu silu mish softplus logsigmoid hardtanh hardswish hardsigmoid
    softsign tanhshrink softshrink hardshrink
"""
CLOSE = {name: (getattr(F, name), X) for name in _ACTIVATIONS.split()}
CLOSE |= {f.__name__: (f, X) for f in (torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.sin, torch.erf)}
CLOSE |= {
    "glu": (lambda x: F.glu(x, 1), X),
    "rrelu": (F.rrelu, X),
    "threshold": (lambda x: F.threshold(x, 0.1, -1.0), X),
    "expm1": (torch.expm1, X),
    "logit": (lambda x: torch.logit(0.5 + x * 0.05), X),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2, padding=1), SOUND),
    "max_pool2d": (lambda x: nn.MaxPool2d(2, ceil_mode=True)(x), IMAGE),
    "max_pool3d": (lambda x: F.max_pool3d(x, (2, 1, 2)), VOLUME),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 4), SOUND),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), IMAGE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (2, 2, 4)), VOLUME),
    "amax": (lambda x: x.amax(1), X),
    "max": (lambda x: torch.max(x, 1, keepdim=True).values, X),
    "min": (lambda x: x.min(), X),
    "logsumexp": (lambda x: x.logsumexp(1), X),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), noisy(2, 64)),
    "norm of absolute values": (lambda x: x.norm(1, dim=1), X),
    "distance": (lambda x: F.pairwise_distance(x, torch.ones(2, 64)), noisy(2, 64)),
    "var_mean": (lambda x: torch.stack(torch.var_mean(x, 1)), noisy(2, 64)),
    "rms_norm": (lambda x: F.rms_norm(x, (64,), torch.ones(64) / 2), noisy(2, 64)),
    "group_norm": (lambda x: F.group_norm(x, 2, torch.ones(4), torch.ones(4)), noisy(2, 4, 32)),
    "instance_norm": (lambda x: F.instance_norm(x, weight=torch.ones(2)), noisy(2, 2, 64)),
    "batch_norm in training": (lambda x: F.batch_norm(x, None, None, torch.ones(2), training=True),
                               noisy(8, 2, 8)),
    "cosine": (lambda x: F.cosine_similarity(x, torch.linspace(-1, 1, 64).expand(2, 64)), noisy(2, 64)),
    "normalize": (lambda x: F.normalize(x, dim=1), noisy(2, 64)),
    "var": (lambda x: x.var(1), noisy(2, 64)),
    "std": (lambda x: torch.std(x, dim=1, keepdim=True), noisy(2, 64)),
    "prelu": (lambda x: F.prelu(x, torch.tensor([0.3])), X),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "clamp": (lambda x: x.clamp(-0.5, 1.0), X),
    "gelu written out": (lambda x: 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3))), X),
    "swish written out": (lambda x: x * torch.sigmoid(1.702 * x), X),
    "softmax": (lambda x: torch.softmax(x, -1), X),
    "log_softmax": (lambda x: F.log_softmax(x, dim=1), X),
    "sqrt": (lambda x: (x * 0.1 + 4).sqrt(), X),
    "reciprocal": (lambda x: 1 / (x * 0.1 + 4), X),
    "rsqrt": (lambda x: torch.rsqrt(x * 0.1 + 4), X),
    "layer_norm": (lambda x: F.layer_norm(x, (64,), torch.ones(64), torch.ones(64)), noisy(2, 64)),
    "batch_norm": (lambda x: F.batch_norm(x, torch.ones(2), torch.full((2,), 2.0), torch.ones(2)), IMAGE),
}  # fmt: skip

PAIRS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b.T,
    "bmm": lambda a, b: torch.bmm(a.unsqueeze(0), b.T.unsqueeze(0)),
    "einsum": lambda a, b: torch.einsum("ik,jk->ij", a, b),
    "cat": lambda a, b: torch.cat([a, b], 1),
    "where": lambda a, b: torch.where(torch.tensor([True, False, True, False]), a, b),
    "conv1d": lambda a, b: F.conv1d(a.view(1, 2, 4), b.view(2, 2, 2)),
    "linear": lambda a, b: F.linear(a, b),
    "bilinear": lambda a, b: F.bilinear(a, b, BILINEAR),
    "baddbmm": lambda a, b: torch.baddbmm(torch.ones(2, 2), a[None], b.T[None], alpha=0.5),
    "tensordot": lambda a, b: torch.tensordot(a, b, ([1], [1])),
    "einsum, elements": lambda a, b: torch.einsum("ik,ik->ik", a, b),
    "einsum of three": lambda a, b: torch.einsum("ik,jk,k->ij", a, b, torch.arange(4.0)),
    "conv_transpose1d": lambda a, b: F.conv_transpose1d(a.view(1, 2, 4), b.view(2, 2, 2)),
    "maximum": torch.maximum,
    "minimum": lambda a, b: torch.min(a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "scatter_add": lambda a, b: a.scatter_add(1, INDEX, b),
}


def draw(x):
    return x.sample((N,), torch.Generator().manual_seed(7))


def of_draws(f, name, *values):
    if name in ("set item", "bilinear", "embedding_bag", "rrelu"):  # vmap does not know them
        return torch.stack([f(*each) for each in zip(*(v[:8000] for v in values), strict=True)])
    return torch.vmap(f)(*values)


def agree(got, values, relative):
    mean, std = values.mean(0), values.std(0)
    scale = std.max()
    assert (got.mean - mean).abs().max() < (relative + 5 / math.sqrt(N)) * scale
    assert (got.std - std).abs().max() < (relative + 5 / math.sqrt(N)) * scale


@pytest.mark.parametrize("name", EXACT)
def test_exact_rules(name):
    f, x = EXACT[name]
    with fd.integrate():
        y = f(x)
    agree(y, of_draws(f, name, draw(x)), 0.02)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", CLOSE)
def test_close_rules(name, frozen):
    f, x = CLOSE[name]
    x = Moments(x.mean.requires_grad_(), x.var)
    with fd.integrate(train_variance=not frozen):
        y = f(x)
    agree(y, of_draws(f, name, draw(x.detach())), 0.12)


@pytest.mark.parametrize("name", PAIRS)
def test_rules_of_two_random_values(name):
    f = PAIRS[name]
    with fd.integrate():
        y = f(X, Y)
    other = Y.sample((N,), torch.Generator().manual_seed(8))
    agree(y, of_draws(f, name, draw(X), other), 0.03)


def test_slopes_of_frozen_rules_are_those_of_the_rules():
    for name in ("tanh", "gelu", "swish written out"):
        f, x = CLOSE[name]
        grads = []
        for train_variance in (True, False):
            leaf = x.mean.detach().double().requires_grad_()
            with fd.integrate(train_variance=train_variance):
                y = f(Moments(leaf, x.var.double()))
            grads.append(torch.autograd.grad(y.mean.sum(), leaf)[0])
        torch.testing.assert_close(*grads)


def test_expressions_of_one_value_are_integrated_whole():
    """x sigmoid(x): the factors are not independent, and the result knows it."""
    x = noisy(200, mean=0.5)

    def f(a):
        return a * torch.sigmoid(a) - 0.1 * a**2

    exact = quadrature.transform(f, x)
    with fd.integrate() as noise:
        y = f(x)
        independent = x * torch.sigmoid(x + torch.zeros(3, 200))[0]
    torch.testing.assert_close(y.mean, exact.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(y.var, exact.var, rtol=1e-2, atol=1e-3)
    assert (independent.var - exact.var).abs().max() > 0.05
    assert noise.std(y, batch_dim=None).shape == (200,)
    leaves, spec = torch.utils._pytree.tree_flatten(y)
    assert isinstance(torch.utils._pytree.tree_unflatten(leaves, spec), Moments)
