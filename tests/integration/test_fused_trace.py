"""The fused loop tells the trace of its masks: the same variance as step by step, with all correlations."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import fastdropout as fd


class Forecaster(nn.Module):
    def __init__(self, layer, fused=True, **options):
        super().__init__()
        self.rnn = getattr(fd.nn, layer)(3, 12, drop_input=0.1, drop_hidden=0.3, fused=fused, **options)
        self.out = fd.nn.Linear(12 * (2 if self.rnn.bidirectional else 1), 2, drop=0.2)

    def forward(self, x):
        hidden = self.rnn(x)[0]
        return self.out(hidden.data if isinstance(x, nn.utils.rnn.PackedSequence) else hidden)


def traced(model, x, **options):
    with fd.integrate() as noise:
        y = model(x)
    return noise.var(y, batch_dim=None, **options), y


OPTIONS = [{}, {"num_layers": 2, "drop_between": 0.2}, {"bidirectional": True}, {"recompute": True}]


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_is_the_trace_of_the_reference(layer, options, packed, caplog):
    torch.manual_seed(0)
    quick, slow = Forecaster(layer, **options).double(), Forecaster(layer, False, **options).double()
    slow.load_state_dict(quick.state_dict())
    x = torch.randn(6, 2, 3).double()
    if packed:
        x = pack_sequence([torch.randn(n, 3).double() for n in (3, 5, 1)], enforce_sorted=False)
    with caplog.at_level("DEBUG", "fastdropout.nn.recurrent"):
        got, y = traced(quick, x)
    assert any("path: fused" in r.message for r in caplog.records)
    expected, z = traced(slow, x)
    torch.testing.assert_close(y.mean, z.mean)
    torch.testing.assert_close(got, expected)


def test_the_traced_variance_can_be_trained():
    """Second derivatives go through the reference, with the same place for the noise."""
    torch.manual_seed(0)
    quick, slow = Forecaster("LSTM").double(), Forecaster("LSTM", False).double()
    slow.load_state_dict(quick.state_dict())
    x = torch.randn(3, 1, 3).double()
    found = []
    for model in (quick, slow):
        var, _ = traced(model, x, create_graph=True)
        found.append(torch.autograd.grad(var.sum(), list(model.parameters()), materialize_grads=True))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
def test_agrees_with_masks_where_the_diagonal_does_not(layer):
    """Identical columns: units that share all their noise, which the diagonal takes as independent."""
    torch.manual_seed(0)
    model = Forecaster(layer)
    with torch.no_grad():
        model.out.weight[:] = model.out.weight[:, :1]  # sums over all units
    x = torch.randn(12, 1, 3)
    var, _ = traced(model, x)
    sampler = Forecaster(layer, method="mask")
    sampler.out.method = "mask"
    sampler.load_state_dict(model.state_dict())
    with torch.no_grad():
        drawn = sampler(x.expand(12, 20_000, 3)).mean.var(1)
    torch.testing.assert_close(var[-1, 0], drawn[-1], rtol=0.15, atol=0)


def test_the_noise_of_units_and_weights_takes_the_reference():
    for options in ({"noise_hidden": 0.1}, {"weight_noise": True}):
        torch.manual_seed(0)
        model = Forecaster("RNN", **options)
        var, _ = traced(model, torch.randn(4, 1, 3))
        assert (var > 0).all()


def test_a_memory_limit_changes_nothing_where_passes_cannot_be_batched():
    """vmap does not know the fused loop, so that the passes are made one after the other."""
    torch.manual_seed(0)
    model, x = Forecaster("LSTM").double(), torch.randn(6, 2, 3).double()
    with fd.integrate() as noise:
        y = model(x)
    some = {"batch_dim": None, "memory": 2 * 8 * sum(s.place.numel() for s in noise.sources)}
    torch.testing.assert_close(noise.var(y, **some), noise.var(y, batch_dim=None))
    few, whole = noise.origins(y, **some), noise.origins(y, batch_dim=None)
    for name, found in whole.items():
        torch.testing.assert_close(few[name], found)


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_predictions_leave_out_the_gradient_of_the_variance(layer, options):
    """Half the products: nearly the same variance, and no gradients of weights."""
    torch.manual_seed(0)
    model, x = Forecaster(layer, **options).double(), torch.randn(6, 2, 3).double()
    whole, y = traced(model, x)
    found = fd.integrate(model, batch_dim=None)(x)
    torch.testing.assert_close(found.mean, y.mean)
    torch.testing.assert_close(found.var, whole, rtol=0.05, atol=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_predictions_keep_the_variance_as_it_is():
    """The slope of a single unit at a given variance, E[tanh'], to rounding."""
    rnn = fd.nn.RNN(1, 1, drop_hidden=0.5, bias=False).double()
    with torch.no_grad():
        rnn.weight_ih_l0.fill_(2.0)
        rnn.weight_hh_l0.fill_(1.5)
    y = fd.integrate(lambda x: rnn(x)[0][-1], batch_dim=None)(torch.ones(2, 1, 1).double())
    first = torch.tanh(torch.tensor(2.0).double())
    mean, var = 2 + 1.5 * first / 2, 1.5**2 * first**2 / 4
    _, _, slope = fd.functional.slopes.tanh(mean, var)
    torch.testing.assert_close(y.var.squeeze(), slope**2 * var)
