"""Networks of torch's own modules under `integrate()`, against sampled masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments

MASKS = 1500


class Tagger(nn.Module):
    def __init__(self, kind, drop):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.drop = nn.Dropout(drop)
        self.rnn = kind(12, 16, 2, dropout=drop, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, words):
        return self.out(self.rnn(self.drop(self.embed(words)))[0])


class Pooled(nn.Module):
    def __init__(self, drop, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=drop, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.encoder(x).mean(dim=1))


def mlp(drop):
    return nn.Sequential(
        nn.Linear(10, 60), nn.ReLU(), nn.Dropout(drop), nn.Linear(60, 60), nn.Tanh(), nn.Dropout(drop),
        nn.Linear(60, 3),
    )  # fmt: skip


def cnn(drop):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(drop),
        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(drop), nn.Linear(32, 3),
    )  # fmt: skip


WORDS = torch.arange(28).view(4, 7) * 3 % 20
NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(4, 10)),
    "cnn": (cnn, lambda: torch.randn(4, 1, 8, 8)),
    "encoder, post-norm": (Pooled, lambda: torch.randn(4, 5, 16)),
    "encoder, pre-norm": (
        lambda drop: Pooled(drop, norm_first=True, activation="gelu"),
        lambda: torch.randn(4, 5, 16),
    ),
    "RNN tagger": (lambda drop: Tagger(nn.RNN, drop), lambda: WORDS),
    "GRU tagger": (lambda drop: Tagger(nn.GRU, drop), lambda: WORDS),
    "LSTM tagger": (lambda drop: Tagger(nn.LSTM, drop), lambda: WORDS),
}  # fmt: skip


def build(name, drop):
    torch.manual_seed(0)
    make, data = NETWORKS[name]
    return make(drop).eval(), data()


def sampled(model, x, masks=MASKS):
    """Mean and standard deviation over masks; batch norm keeps its running statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with torch.no_grad():
        draws = torch.cat(
            [model(x.repeat(50, *[1] * (x.ndim - 1))).unflatten(0, (50, -1)) for _ in range(masks // 50)]
        )
    model.eval()
    return draws.mean(0), draws.std(0)


def correlation(a, b):
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()


@pytest.mark.parametrize("gains", ["moments", "plain"])
@pytest.mark.parametrize("name", NETWORKS)
def test_traced_deviation_is_that_of_masks(name, gains):
    model, x = build(name, 0.2)
    with fd.integrate(gains=gains) as noise:
        y = model(x)
    assert isinstance(y, Moments if gains == "moments" else torch.Tensor)
    std = noise.std(y)
    mean, true = sampled(model, x)
    assert std.shape == y.shape
    assert 0.9 < (std / true).mean() < 1.1
    assert correlation(std, true) > (0.93 if gains == "moments" else 0.75)
    if gains == "moments":
        assert (y.mean - mean).abs().mean() < 0.15 * true.mean()
        assert 0.8 < (y.std / true).mean() < 1.25  # random weights: the diagonal is right on average


@pytest.mark.parametrize("name", NETWORKS)
def test_without_dropout_it_is_the_plain_network(name):
    model, x = build(name, 0.0)
    with fd.integrate() as noise:
        y = model(x)
        certain = model(Moments.certain(x)) if x.is_floating_point() else y
    for got in (y, certain):
        got = got.mean if isinstance(got, Moments) else got
        torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-6)
    assert not noise.std(y).any()


def test_training_without_sampling():
    model, x = build("mlp", 0.2)
    target = torch.tensor([0.0, 1.0, 2.0, 1.0])[:, None].expand(4, 3)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        with fd.integrate():
            y = model(x)
            loss = ((y.mean - target) ** 2 + y.var).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_nothing_is_left_behind():
    model, x = build("mlp", 0.2)

    def fail():
        with fd.integrate():
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert isinstance(model(x), torch.Tensor)
    assert F.dropout(x, 0.5, training=False) is x
    with pytest.raises(TypeError, match="correlation"):
        Moments.certain(x) + Moments.certain(x)
