"""Our own modules under `integrate()`: unscaled dropout, with sources at every step."""

import pytest
import torch
from torch import nn

import fastdropout as fd
from fastdropout import Moments
from fastdropout.integration import Sampled


def recurrent(kind, **options):
    torch.manual_seed(0)
    net = kind(3, 24, **{"drop_input": 0.1, "drop_hidden": 0.2, **options})
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.startswith("weight_hh") and not name.endswith("log_std"):
                p *= 1.5
    return net


def masks(run, x, n, passes=1):
    """n draws of the output, (n, batch, outputs): of n / passes copies of the batch in each pass."""
    torch.manual_seed(1)
    copies = n // passes
    x = x.repeat_interleave(copies, -2)  # of every piece
    with torch.no_grad(), Sampled():
        return torch.cat([run(x).mean.unflatten(0, (-1, copies)).transpose(0, 1) for _ in range(passes)])


NETWORKS = {
    "RNN": lambda: recurrent(fd.nn.RNN),
    "RNN relu, two ways": lambda: recurrent(
        fd.nn.RNN, nonlinearity="relu", bidirectional=True, drop_hidden=0.1
    ),
    "RNN, noisy units": lambda: recurrent(fd.nn.RNN, noise_hidden=0.05),
    "RNN, noisy weights": lambda: recurrent(fd.nn.RNN, weight_noise=True, drop_input=0.0, drop_hidden=0.0),
    "LSTM": lambda: recurrent(fd.nn.LSTM, num_layers=2, drop_between=0.2),
    "GRU": lambda: recurrent(fd.nn.GRU),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_deviations_are_those_of_masks(name):
    net = NETWORKS[name]()
    out = fd.nn.Linear(net.hidden_size * (2 if net.bidirectional else 1), 2, drop=0.3)
    x = torch.randn(8, 4, 3)

    def run(x):
        return out(net(x)[0])[-1]

    with fd.integrate() as noise:
        y = run(x)
    plain = run(x)
    torch.testing.assert_close(y.mean, plain.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y.var, plain.var, rtol=1e-4, atol=1e-5)  # the same diagonal as without
    # Noise of weights is drawn once for all that is in a pass.
    true = (masks(run, x, 500, 500) if net.weight_noise else masks(run, x, 1500)).std(0)
    assert 0.9 < (noise.std(y).mean() / true.mean()) < 1.1


def test_cells_and_linear_layers():
    torch.manual_seed(0)
    cell, out = fd.nn.LSTMCell(3, 16, drop_hidden=0.2), fd.nn.NoisyLinear(16, 2, drop=0.2, std=0.1)
    x = torch.randn(4, 3)

    def run(x):
        h, c = cell(x)
        for _ in range(5):
            h, c = cell(x, (h, c))
        return out(fd.nn.Dropout(0.1)(h))

    with fd.integrate() as noise:
        y = run(x)
    true = masks(run, x, 1000, 1000).std(0)
    assert 0.93 < (noise.std(y).mean() / true.mean()) < 1.07
    assert set(noise.shares(y)) == {"LSTMCell", "NoisyLinear", "Dropout"}


def test_ours_and_torchs_together():
    torch.manual_seed(0)
    body = nn.Linear(5, 30), nn.GELU(), nn.Dropout(0.2), fd.nn.Linear(30, 30, drop=0.2), nn.SiLU()
    net = nn.Sequential(*body, nn.Linear(30, 2))
    x = Moments(torch.randn(6, 5), torch.rand(6, 5) * 0.05)
    with fd.integrate() as noise:
        y = net(x)
    assert isinstance(y, Moments)
    with torch.no_grad():
        torch.manual_seed(1)
        found = []
        for _ in range(2000):
            with Sampled():  # the input is drawn once in each
                found.append(net(x))
    true = torch.stack([y.mean if isinstance(y, Moments) else y for y in found]).std(0)
    assert 0.95 < (noise.std(y).mean() / true.mean()) < 1.05
    assert 0.8 < (y.std.mean() / true.mean()) < 1.2


def test_without_a_trace_the_fused_path_is_taken():
    net = recurrent(fd.nn.LSTM)
    x = torch.randn(8, 4, 3)
    with torch.no_grad(), fd.integrate() as noise:
        y, _ = net(x)
    torch.testing.assert_close(y.var, net(x)[0].var)
    assert not noise.sources
    with pytest.raises(RuntimeError, match="not traced"):
        noise.std(y)
