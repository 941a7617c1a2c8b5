"""Forecasts of trained networks whose predictions are fed back, against masks drawn anew in each step."""

import pytest
import torch
from benchmarks.integrate.forecasts import compare, simulated, trained, waves


@pytest.mark.parametrize("name", ["nn.RNNCell", "nn.LSTMCell", "fd.nn.RNNCell"])
def test_bands_grow_as_simulated_ones_do(name):
    model, loss = trained(name, 150, 0)
    assert loss < 0.03  # it has learnt: the waves have a variance of .5
    x = waves(4, 20, 1)
    row = compare(model, x, simulated(model, x, 1500, 1))
    assert 0.95 < row["traced"] < 1.05
    assert all(0.9 < ratio < 1.1 for ratio in row["by_step"])
    assert row["correlation"] > 0.95
    assert row["true_last"] > 1.5 * row["true_first"]
    assert torch.tensor(row["diagonal"]) < 0.6  # what the trace is for
