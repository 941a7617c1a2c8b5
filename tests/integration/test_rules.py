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
}


def draw(x):
    return x.sample((N,), torch.Generator().manual_seed(7))


def of_draws(f, name, *values):
    if name in ("set item", "bilinear", "embedding_bag"):  # vmap does not know them
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
    agree(y, torch.vmap(f)(draw(x.detach())), 0.12)


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


def test_attention_is_that_of_its_parts():
    q, k, v = (Moments(x.mean, x.var / 4) for x in (noisy(1, 2, 5, 4, seed=s) for s in range(3)))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    with fd.integrate() as noise:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        same = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        weights = torch.softmax((q / 2 @ k.mT).masked_fill(~mask, -math.inf), -1)
        parts = weights @ v
        plain = F.scaled_dot_product_attention(*(Moments.certain(x.mean) for x in (q, k, v)), is_causal=True)
    for got in (same, parts):
        torch.testing.assert_close(y.mean, got.mean)
        torch.testing.assert_close(y.var, got.var)
    torch.testing.assert_close(
        plain.mean, F.scaled_dot_product_attention(q.mean, k.mean, v.mean, is_causal=True)
    )
    drawn = [x.sample((4000,)) for x in (q, k, v)]
    drawn = F.scaled_dot_product_attention(*drawn, is_causal=True)
    agree(Moments(y.mean.detach(), noise.var(y, batch_dim=None)), drawn, 0.1)
    agree(y, drawn, 0.4)  # weights that add up to one are not independent


@pytest.mark.parametrize(
    "options", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"kdim": 3, "vdim": 5}]
)
def test_multi_head_attention_is_torchs(options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, **options).eval()
    q, k, v = (
        torch.randn(4, 3, 8),
        torch.randn(5, 3, options.get("kdim", 8)),
        torch.randn(5, 3, options.get("vdim", 8)),
    )
    masks = {
        "key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3),
        "attn_mask": torch.ones(4, 5).triu(3) > 0,
    }
    for extra in ({}, masks, {"average_attn_weights": False}, {"need_weights": False}):
        expected = layer(q, k, v, **extra)
        with fd.integrate():
            got = layer(Moments.certain(q), Moments.certain(k), Moments.certain(v), **extra)
        torch.testing.assert_close(got[0].mean, expected[0])
        if expected[1] is not None:
            torch.testing.assert_close(got[1].mean, expected[1])
    alone = layer(q[:, 0], k[:, 0], v[:, 0])
    with fd.integrate():
        got = layer(*(Moments.certain(x[:, 0]) for x in (q, k, v)))
    torch.testing.assert_close(got[0].mean, alone[0])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_are_torchs(kind, packed):
    torch.manual_seed(0)
    options = {"proj_size": 3} if kind is nn.LSTM and not packed else {}
    layer = kind(4, 5, 2, bidirectional=True, batch_first=True, **options)
    x = torch.randn(3, 6, 4)

    def run(x):
        if packed:
            x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
        y, h = layer(x)
        y = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0] if packed else y
        return y, h[0] if kind is nn.LSTM else h

    expected = run(x)
    with fd.integrate():
        certain, barely = run(Moments.certain(x)), run(Moments(x, torch.full_like(x, 1e-12)))
    for got in (certain, barely):
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a.mean, b, rtol=1e-4, atol=1e-5)
    assert barely[0].std.max() < 1e-4


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_are_torchs(kind):
    torch.manual_seed(0)
    cell, x = kind(4, 5), torch.randn(3, 4)
    expected = cell(x)
    with fd.integrate():
        got = cell(Moments(x, torch.full_like(x, 1e-12)))
    first = (lambda y: y[0]) if kind is nn.LSTMCell else (lambda y: y)
    torch.testing.assert_close(first(got).mean, first(expected), rtol=1e-4, atol=1e-5)


def test_losses_are_plain_tensors():
    logits, target = noisy(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    drawn = draw(logits)
    with fd.integrate():
        found = {
            "cross_entropy": F.cross_entropy(logits, target),
            "bce": F.binary_cross_entropy_with_logits(logits, torch.eye(6, 5)),
            "bce of p": F.binary_cross_entropy(torch.sigmoid(logits), torch.eye(6, 5)),
            "nll": F.nll_loss(F.log_softmax(logits, -1), target),
            "mse": F.mse_loss(logits, torch.ones(6, 5)),
            "l1": nn.L1Loss()(logits, torch.ones(6, 5)),
            "huber": F.huber_loss(logits, torch.ones(6, 5)),
            "smooth": F.smooth_l1_loss(logits, torch.ones(6, 5), beta=0.5),
            "gaussian": F.gaussian_nll_loss(logits, torch.ones(6, 5), torch.full((6, 5), 0.5)),
        }
    p, q = drawn.softmax(-1).mean(0), drawn.sigmoid().mean(0)
    ones = torch.ones_like(drawn)
    expected = {
        "cross_entropy": F.nll_loss(p.log(), target),
        "bce": F.binary_cross_entropy(q, torch.eye(6, 5)),
        "bce of p": F.binary_cross_entropy(q, torch.eye(6, 5)),
        "nll": F.nll_loss(drawn.log_softmax(-1).mean(0), target),
        "mse": F.mse_loss(drawn, ones),
        "l1": F.l1_loss(drawn, ones),
        "huber": F.huber_loss(drawn, ones),
        "smooth": F.smooth_l1_loss(drawn, ones, beta=0.5),
        "gaussian": F.gaussian_nll_loss(drawn, ones, 0.5 * ones),
    }
    for name, loss in found.items():
        assert isinstance(loss, torch.Tensor), name
        torch.testing.assert_close(loss, expected[name], rtol=0.03, atol=0.01, msg=name)
    with fd.integrate():
        assert F.mse_loss(Moments.certain(logits.mean), torch.zeros(6, 5)).ndim == 0
        assert F.l1_loss(logits, torch.ones(6, 5), reduction="none").shape == (6, 5)


def test_channel_and_alpha_dropout_against_torch():
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5)
    for f, options in (
        (F.dropout1d, {}),
        (F.alpha_dropout, {}),
        (F.feature_alpha_dropout, {}),
        (F.dropout, {}),
    ):
        with fd.integrate() as noise:
            y = f(x, 0.3, training=False, **options)
            total = y.sum(-1)
        drawn = torch.stack([f(x, 0.3, training=True, **options) for _ in range(6000)])
        torch.testing.assert_close(y.mean, drawn.mean(0), rtol=0, atol=0.08)
        torch.testing.assert_close(y.std, drawn.std(0), rtol=0.08, atol=0.02)
        torch.testing.assert_close(noise.std(total), drawn.sum(-1).std(0), rtol=0.06, atol=0.03)
    with fd.integrate():
        assert not F.dropout(x, 1.0).mean.any()
        assert not F.alpha_dropout(x, 1.0).mean.any()
