"""Rules of whole layers: attention, recurrent layers and cells, dropout, losses."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments

N = 40_000


def noisy(*shape, mean=0.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Moments(mean + torch.randn(*shape, generator=g), 0.05 + 0.5 * torch.rand(*shape, generator=g))


def draw(x):
    return x.sample((N,), torch.Generator().manual_seed(7))


def agree(got, values, relative):
    mean, std = values.mean(0), values.std(0)
    scale = std.max()
    assert (got.mean - mean).abs().max() < (relative + 5 / math.sqrt(len(values))) * scale
    assert (got.std - std).abs().max() < (relative + 5 / math.sqrt(len(values))) * scale


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


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_against_sampling(kind):
    torch.manual_seed(0)
    cell, x, h = kind(4, 5), noisy(3, 4), noisy(3, 5, seed=1)
    state = (h, noisy(3, 5, seed=2)) if kind is nn.LSTMCell else h
    with fd.integrate():
        y = cell(x, state)
    with torch.no_grad():
        parts = [m.sample((8000,)).flatten(0, 1) for m in (x, *(state if kind is nn.LSTMCell else (h,)))]
        drawn = cell(parts[0], tuple(parts[1:]) if kind is nn.LSTMCell else parts[1])
    pairs = zip(y, drawn, strict=True) if kind is nn.LSTMCell else [(y, drawn)]
    for got, values in pairs:
        agree(got.detach(), values.unflatten(0, (8000, 3)), 0.12)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_against_sampling(kind):
    torch.manual_seed(0)
    layer, x = kind(4, 8), noisy(5, 3, 4)
    with fd.integrate(train_variance=False) as noise:
        y = layer(x)[0]
    traced = noise.var(y, batch_dim=1)
    with torch.no_grad():
        rows = layer(x.sample((6000,)).transpose(0, 1).flatten(1, 2))[0]
    drawn = rows.unflatten(1, (6000, 3)).transpose(0, 1)
    assert 0.9 < y.std.mean() / drawn.std(0).mean() < 1.1
    # The mean of gated cells is off by up to a tenth of a standard deviation.
    agree(Moments(y.mean.detach(), traced), drawn, 0.06 if kind is nn.RNN else 0.12)


def test_dropout_of_attention_weights_against_torch():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    with fd.integrate() as noise:
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
    drawn = torch.stack([F.scaled_dot_product_attention(q, k, v, dropout_p=0.2) for _ in range(6000)])
    agree(y.detach(), drawn, 0.03)
    agree(Moments(y.mean.detach(), noise.var(y)), drawn, 0.03)


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
    rows = torch.randn(3, 4, 5)
    cases = [(f, rows) for f in (F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout, F.dropout)]
    for f, x in (*cases, (F.dropout2d, rows[:, :, None]), (F.dropout3d, rows[:, :, None, None])):
        with fd.integrate() as noise:
            y = f(x, 0.3, training=False)
            total = y.sum(-1)
        drawn = torch.stack([f(x, 0.3, training=True) for _ in range(6000)])
        torch.testing.assert_close(y.mean, drawn.mean(0), rtol=0, atol=0.08)
        torch.testing.assert_close(y.std, drawn.std(0), rtol=0.08, atol=0.02)
        torch.testing.assert_close(noise.std(total), drawn.sum(-1).std(0), rtol=0.06, atol=0.03)
    with fd.integrate():
        assert not F.dropout(x, 1.0).mean.any()
        assert not F.alpha_dropout(x, 1.0).mean.any()
