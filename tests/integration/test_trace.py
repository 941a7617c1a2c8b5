"""The traced variance: sources, covariance, shares, noisy inputs and weights, batches that share noise."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments
from fastdropout.integration import Sampled


def net(drop=0.2):
    torch.manual_seed(0)
    hidden = nn.Linear(6, 40), nn.ReLU(), nn.Dropout(drop), nn.Linear(40, 30), nn.Tanh(), nn.Dropout(drop)
    return nn.Sequential(*hidden, nn.Linear(30, 3))


def draws(model, x, n=4000, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad(), Sampled():
        found = [model(x) for _ in range(n)]
    return torch.stack([y.mean if isinstance(y, Moments) else y for y in found])


def test_a_linear_network_is_traced_exactly():
    """W diag(s) W' for dropout of an input and a linear layer, to rounding; the diagonal agrees there too."""
    torch.manual_seed(0)
    x, layer = torch.randn(5, 4, dtype=torch.float64), nn.Linear(4, 3).double()
    with fd.integrate() as noise:
        y = layer(F.dropout(x, 0.3))
    s = 0.3 / 0.7 * x**2
    expected = torch.einsum("ij,bj,kj->bik", layer.weight, s, layer.weight).detach()
    torch.testing.assert_close(noise.covariance(y), expected)
    torch.testing.assert_close(noise.var(y), expected.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(y.var.detach(), expected.diagonal(dim1=1, dim2=2))


def test_correlations_that_the_diagonal_misses():
    """A unit that is copied and subtracted from itself: certain, though each copy is random."""
    x = torch.ones(2, 3)
    with fd.integrate() as noise:
        z = F.dropout(x, 0.5)
        a, b = z @ torch.eye(3), z @ torch.eye(3)
        assert not (z - z).var.any()
        assert not (z * 2.0 - 2 * z).var.any()
        torch.testing.assert_close((z + z).var, 4 * z.var)
        difference = a - b
    assert (difference.var > 0).all()
    assert not noise.var(difference).any()


def test_channel_dropout_is_one_source_for_the_channel():
    torch.manual_seed(0)
    x = 1 + 0.3 * torch.randn(3, 4, 5, 5)
    with fd.integrate() as noise:
        y = F.dropout2d(x, 0.4).mean(dim=(2, 3))
    expected = x.mean((2, 3)) ** 2 * 0.4 / 0.6
    torch.testing.assert_close(noise.var(y), expected)
    assert (y.var < 0.1 * expected).all()  # the diagonal averages the elements' noise away


def test_covariance_is_that_of_masks():
    model, x = net(), torch.randn(3, 6)
    with fd.integrate() as noise:
        y = model(x)
    found = noise.covariance(y)
    assert found.shape == (3, 3, 3)
    torch.testing.assert_close(found, found.mT)
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2), noise.var(y))
    masks = draws(model, x)
    for i in range(3):
        true = torch.cov(masks[:, i].T)
        torch.testing.assert_close(found[i], true, rtol=0.1, atol=0.1 * true.abs().max().item())
    whole = noise.covariance(y, batch_dim=None)
    assert whole.shape == (9, 9)
    torch.testing.assert_close(whole[:3, :3], found[0])
    assert not whole[:3, 3:6].abs().max() > 1e-6  # examples share no noise


def test_memory_limit_changes_nothing():
    model, x = net(), torch.randn(3, 6)
    with fd.integrate() as noise:
        y = model(x)
    for limit in (1, 1000, 10**9):
        torch.testing.assert_close(noise.var(y, memory=limit), noise.var(y))
        torch.testing.assert_close(noise.covariance(y, memory=limit), noise.covariance(y))


def test_shares_add_up_and_name_the_modules():
    model, x = net(), torch.randn(3, 6)
    with fd.integrate(gains="plain") as noise:
        y = model(x)
    shares = noise.shares(y)
    assert set(shares) == {"2", "5"}
    torch.testing.assert_close(sum(shares.values()), torch.ones(3, 3))
    only_last = net()
    only_last[2].p = 0.0
    with fd.integrate(gains="plain") as alone:
        z = only_last(x)
    torch.testing.assert_close(shares["5"] * noise.var(y), alone.var(z))


def test_origins_find_the_input():
    x = torch.tensor([[1.0, 2.0, 3.0]])
    with fd.integrate() as noise:
        y = F.dropout(x, 0.5) @ torch.tensor([[1.0], [0.0], [2.0]])
    (found,) = noise.origins(y).values()
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 36.0]]))


def test_noisy_inputs_are_sources():
    model, x = net(), Moments(torch.randn(4, 6), torch.rand(4, 6) * 0.1)
    with fd.integrate() as noise:
        y = model(x)
        again = model(x)  # the same noise: not independent of the first
        difference = y - again
    true = draws(model, x).std(0)
    assert 0.93 < (noise.std(y) / true).mean() < 1.07
    # The inputs' noise cancels in the difference, the masks' does not.
    masks_only = net()
    with fd.integrate() as alone:
        z = masks_only(x.mean)
    torch.testing.assert_close(noise.std(difference), 2**0.5 * alone.std(z), rtol=0.15, atol=0.01)


def test_noisy_weights_are_sources_shared_by_the_batch():
    model, x = net(0.0), torch.randn(4, 6)
    var = {name: torch.full_like(p, 0.01) for name, p in model.named_parameters()}
    y = fd.integrate(model, weight_var=var)(x)
    torch.manual_seed(1)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        noisy = ({n: p + 0.1 * torch.randn_like(p) for n, p in weights.items()} for _ in range(3000))
        found = torch.stack([functional_call(model, w, (x,)) for w in noisy])
    assert 0.93 < (y.std / found.std(0)).mean() < 1.07
    with pytest.raises(ValueError, match="must name"):
        fd.integrate(model, weight_var={"nowhere": torch.ones(1)})


@pytest.mark.parametrize("examples", [2, 3, 5, 64, 257])
def test_noise_of_a_bias_belongs_to_no_example(examples):
    """Its gradient is the same for all: that of the mean example, if examples were told apart carelessly."""
    layer, x = nn.Linear(4, 3), torch.randn(examples, 4)
    for name, expected in (("bias", torch.full((examples, 3), 0.01)), ("weight", None)):
        var = {name: torch.full_like(getattr(layer, name), 0.01)}
        expected = 0.01 * (x**2).sum(1, keepdim=True).expand(-1, 3) if expected is None else expected
        torch.testing.assert_close(fd.integrate(layer, weight_var=var)(x).var, expected)


class Last(nn.Module):
    def __init__(self, body, width):
        super().__init__()
        self.body, self.out = body, nn.Linear(width, 2)

    def forward(self, x):
        y = self.body(x)
        return self.out((y[0] if isinstance(y, tuple) else y)[:, -1])


NOISY = {
    "LSTM": lambda: Last(nn.LSTM(4, 8, batch_first=True), 8),
    "GRU": lambda: Last(nn.GRU(4, 8, 2, batch_first=True), 8),
    "attention and layer norm": lambda: Last(
        nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)), 8
    ),
    "embedding": lambda: Last(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.GELU()), 8),
    "convolution and batch norm": lambda: Last(
        nn.Sequential(nn.Conv1d(5, 8, 2), nn.BatchNorm1d(8).eval(), nn.SiLU(), nn.GroupNorm(2, 8)), 3
    ),
}


@pytest.mark.parametrize("name", NOISY)
def test_a_posterior_of_all_weights_against_draws(name):
    torch.manual_seed(0)
    model, x = NOISY[name](), torch.randn(3, 5, 4)
    x = torch.arange(15).view(3, 5) % 10 if name == "embedding" else x  # two examples end in one word
    weights = dict(model.named_parameters())
    var = {n: (0.1 * p.detach().abs() + 0.01) ** 2 for n, p in weights.items()}
    y = fd.integrate(model, weight_var=var)(x)
    with fd.integrate(weight_var={p: var[n] for n, p in weights.items()}) as noise:
        z = model(x)
    torch.testing.assert_close(noise.std(z), y.std, rtol=1e-2, atol=1e-4)
    torch.manual_seed(1)
    with torch.no_grad():
        drawn = (
            {n: p + var[n].sqrt() * torch.randn_like(p) for n, p in weights.items()} for _ in range(1500)
        )
        true = torch.stack([functional_call(model, w, (x,)) for w in drawn]).std(0)
    torch.testing.assert_close((y.std / true).mean().item(), 1.0, rtol=0.08, atol=0)
    assert 0.7 < (z.std / true).mean() < 1.3


def test_a_batch_that_shares_noise_is_found_out():
    """Batch norm in training mode mixes the examples; so does a mask for the whole batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    with fd.integrate(gains="plain") as noise:
        y = model(x)
        mixed = y - y.mean(0)
        common = model(x) * F.dropout(torch.ones(3, dtype=torch.float64), 0.5)
    one = torch.stack([noise.var(y[i : i + 1])[0] for i in range(4)])
    torch.testing.assert_close(noise.var(y), one)
    for z in (mixed, common):
        each = torch.stack([noise.var(v, batch_dim=None) for v in z.flatten()]).view(4, 3)
        torch.testing.assert_close(noise.var(z), each)


def test_sequences_and_other_places_of_the_batch():
    torch.manual_seed(0)
    rnn, x = nn.LSTM(3, 8, 2, dropout=0.3), torch.randn(5, 4, 3)
    with fd.integrate() as noise:
        y, _ = rnn(x)
    by_batch = noise.var(y, batch_dim=1)
    assert by_batch.shape == (5, 4, 8)
    torch.testing.assert_close(noise.var(y[2:3], batch_dim=1), by_batch[2:3])
    torch.testing.assert_close(noise.var(y), by_batch, rtol=1e-4, atol=1e-7)  # found out, pass by pass


def test_predictions_fed_back_grow_as_simulated_ones_do():
    torch.manual_seed(0)
    cell, out, drop = nn.GRUCell(1, 24), nn.Linear(24, 1), nn.Dropout(0.1)
    with torch.no_grad():
        out.weight *= 3

    def forecast(x):
        h, steps = torch.zeros(len(x), 24), []
        for _ in range(12):
            h = cell(x, h)
            x = out(drop(h)) + 0.9 * x
            steps.append(x)
        return torch.cat(steps, 1)

    x = torch.randn(3, 1)
    with fd.integrate() as noise:
        y = forecast(x)
    true = draws(forecast, x, 2000).std(0)
    traced = noise.std(y)
    assert 0.93 < (traced / true).mean() < 1.07
    assert (traced[:, -1] > 1.5 * traced[:, 0]).all()


def test_no_noise_is_a_zero():
    model, x = net(), torch.randn(3, 6)
    with fd.integrate() as noise:
        model(x)
        plain = model[0](x)
    assert not noise.std(plain).any()
    assert not noise.std(torch.ones(3, 2)).any()
    assert not noise.covariance(torch.ones(3, 2)).any()
    assert not torch.stack(list(noise.shares(plain).values())).any()


def test_what_cannot_be_traced_says_so():
    model, x = net(), torch.randn(3, 6)
    with torch.no_grad(), fd.integrate() as noise:
        y = model(x)
    with pytest.raises(RuntimeError, match="no_grad"):
        noise.std(y)
    with fd.integrate() as noise:
        y = model(x)
    with pytest.raises(TypeError, match="y must be"):
        noise.std(torch.arange(3))
    with pytest.raises(ValueError, match="batch_dim"):
        noise.std(y, batch_dim=2)
    with pytest.raises(ValueError, match="gains"):
        fd.integrate(gains="none")


def test_the_traced_variance_can_be_trained():
    model, x = net(), torch.randn(3, 6)
    with fd.integrate() as noise:
        y = model(x)
    before = noise.var(y, create_graph=True)
    before.sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:  # the variance does not depend on the last bias
                p -= 0.02 * p.grad / p.grad.norm()
    with fd.integrate() as noise:
        y = model(x)
    assert noise.var(y).sum() < before.sum()


def test_the_callable():
    model, x = net(), torch.randn(3, 6)
    predict = fd.integrate(model)
    with torch.no_grad():
        y = predict(x)
    with torch.inference_mode():
        z = predict(x * 1)
    assert isinstance(y, Moments)
    assert not y.requires_grad
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(z.std, y.std)
    true = draws(model, x).std(0)
    assert 0.95 < (y.std / true).mean() < 1.05
    assert fd.integrate(model, gains="plain")(x).mean.equal(model.eval()(x).detach())
    both = fd.integrate(lambda x: {"y": model(x), "n": torch.arange(3)})(x)
    torch.testing.assert_close(both["y"].std, y.std)
    assert both["n"].dtype == torch.int64
    torch.testing.assert_close(fd.integrate(lambda x: {"y": model(x)}, output="y")(x).std, y.std)
    with pytest.raises(TypeError, match="model must be"):
        fd.integrate(3)


def test_check_prints_a_table():
    model, x = net(), torch.randn(6, 6)
    state = torch.random.get_rng_state()
    found = fd.check(model, x, masks=400)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [row.module for row in found.rows] == ["2", "3", "4", "5", "6", "Sequential"]
    for row in found.rows:
        assert 0.9 < row.traced < 1.1
        assert 0.8 < row.diagonal < 1.2
        assert row.mean_error < 0.3
    text = str(found)
    assert "traced" in text
    assert "Dropout" in text
    assert isinstance(model(x), torch.Tensor)
    assert not model[0]._forward_hooks
    with pytest.raises(ValueError, match="masks"):
        fd.check(model, x, masks=1)


def test_owners_are_found_once_and_again_where_the_way_changes():
    """Later calls save passes; another order of the examples, or batch norm in training, is seen."""
    model = net()
    for x in torch.randn(3, 5, 6):
        torch.testing.assert_close(fd.integrate(model)(x).var, (known := fd.integrate(model))(x).var)
        for other in torch.randn(2, 5, 6):
            torch.testing.assert_close(known(other).var, fd.integrate(model)(other).var)
        assert len(known._owners) == 1

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.first, self.last = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.order = torch.arange(5)

        def forward(self, x):
            return self.last(self.norm(F.dropout(self.first(x), 0.3))[self.order])

    mixed, x = Mixed().eval(), torch.randn(5, 6)
    known = fd.integrate(mixed)
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 1, 4, 3]):
        mixed.order = torch.tensor(order)
        torch.testing.assert_close(known(x).var, fd.integrate(mixed)(x).var)
    assert len(known._owners) == 3


def test_owners_of_packed_pieces_are_those_of_their_lengths():
    torch.manual_seed(0)
    rnn, out = nn.LSTM(3, 8, 2, dropout=0.4), nn.Linear(8, 1)

    def last(*pieces):
        return out(rnn(nn.utils.rnn.pack_sequence(pieces, enforce_sorted=False))[1][0][-1])

    known = fd.integrate(last)
    for lengths in ((2, 5, 3), (5, 3, 2), (4, 4, 2), (2, 5, 3)):
        pieces = [torch.randn(n, 3) for n in lengths]
        torch.testing.assert_close(known(*pieces).var, fd.integrate(last)(*pieces).var)
