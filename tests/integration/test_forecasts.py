"""Forecasts of trained networks whose predictions are fed back, against masks drawn anew in each step."""

import pytest
import torch
from torch import nn

import fastdropout as fd
from fastdropout import Moments
from fastdropout.integration import Sampled

AHEAD = 20


class Forecaster(nn.Module):
    def __init__(self, cell, out, drop=None):
        super().__init__()
        self.cell, self.out, self.drop = cell, out, drop or nn.Identity()

    def forward(self, x, ahead=0):
        state, found = None, []
        for step in range(x.shape[1] + ahead):
            given = x[:, step : step + 1] if step < x.shape[1] else found[-1]
            state = self.cell(given, state)
            two = isinstance(state, tuple)
            hidden = self.drop(state[0] if two else state)
            state = (hidden, state[1]) if two else hidden
            found.append(self.out(hidden))
        return torch.cat(found, 1)


def stock(kind):
    return Forecaster(kind(1, 32), nn.Linear(32, 1), nn.Dropout(0.1))


def ours(kind):
    return Forecaster(kind(1, 32, drop_hidden=0.1), fd.nn.Linear(32, 1, drop=0.1))


def waves(count, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    noise = 0.05 * torch.randn(count, steps, generator=generator)
    return torch.sin(0.3 * torch.arange(steps) + phase) + noise


def trained(make, kind, updates=150):
    torch.manual_seed(0)
    model, x = make(kind), waves(32, 31, 0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(updates):
        optimizer.zero_grad()
        if make is stock:
            loss = ((model(x[:, :-1]) - x[:, 1:]) ** 2).mean()
        else:
            with fd.integrate(trace=False):
                y = model(x[:, :-1])
            loss = ((y.mean - x[:, 1:]) ** 2 + y.var).mean()
        loss.backward()
        optimizer.step()
    assert loss < 0.03  # it has learnt: the waves have a variance of .5
    return model.eval()


@pytest.mark.parametrize(
    ("make", "kind"),
    [(stock, nn.RNNCell), (stock, nn.LSTMCell), (ours, fd.nn.RNNCell)],
    ids=["torch RNN", "torch LSTM", "our RNN"],
)
def test_bands_grow_as_simulated_ones_do(make, kind):
    model, x = trained(make, kind), waves(4, 20, 1)

    def forecast(x):
        return model(x, AHEAD)[:, -AHEAD:]

    traced = fd.integrate(forecast)(x).std
    torch.manual_seed(1)
    with torch.no_grad(), Sampled():
        drawn = forecast(x.repeat(1500, 1))
    drawn = drawn.mean if isinstance(drawn, Moments) else drawn
    true = drawn.view(1500, 4, AHEAD).std(0)
    torch.testing.assert_close(traced.mean(), true.mean(), rtol=0.05, atol=0)
    torch.testing.assert_close(traced.mean(0), true.mean(0), rtol=0.1, atol=0)  # each step
    assert torch.corrcoef(torch.stack([traced.flatten(), true.flatten()]))[0, 1] > 0.95
    assert (traced[:, -5:].mean(1) > 1.5 * traced[:, 0]).all()
