"""Adaptive weight noise: layers of Gaussian weights, and their KL term."""

import pytest
import torch

import fastdropout as fd


def test_weight_noise_in_closed_form_agrees_with_drawn_weights():
    """A single step has no reuse of weights, so the closed form is exact up to the transfer rule."""
    torch.manual_seed(0)
    rnn = fd.nn.RNN(8, 30, weight_noise=True, weight_std=0.2, rule="accurate")
    drawn = fd.nn.RNN(8, 30, weight_noise=True, weight_std=0.2, method="mask")
    drawn.load_state_dict(rnn.state_dict())
    x, hx = torch.randn(1, 1, 8), torch.randn(1, 1, 30)
    with torch.no_grad():
        exact = rnn(x, hx)[0]
        draws = torch.stack([drawn(x, hx)[0].mean for _ in range(8000)])
    torch.testing.assert_close(exact.mean, draws.mean(0), rtol=0, atol=0.04)
    torch.testing.assert_close(exact.var, draws.var(0), rtol=0.12, atol=0.01)


@pytest.mark.parametrize("method", ["moments", "mask", "gaussian"])
def test_weight_noise_is_recurrent(method):
    """The previous state must matter, and through the noise of the recurrent weights too."""
    rnn = fd.nn.RNN(4, 6, weight_noise=True, method=method)
    x = torch.randn(3, 2, 4)

    def run(h):
        torch.manual_seed(0)
        return rnn(x, h)[0]

    a, b = run(torch.zeros(1, 2, 6)), run(torch.ones(1, 2, 6))
    assert (a.mean[0] - b.mean[0]).abs().max() > 0.01
    assert (a.mean[-1] - b.mean[-1]).abs().max() > 1e-4
    (run(torch.ones(1, 2, 6)).mean.sum()).backward()
    assert rnn.weight_hh_l0_log_std.grad.abs().max() > 0


def test_weight_noise_carries_the_state_also_where_the_recurrent_means_are_zero():
    rnn = fd.nn.RNN(4, 6, weight_noise=True)
    with torch.no_grad():
        rnn.weight_hh_l0.zero_()
        rnn.weight_ih_l0.zero_()
    x = torch.randn(1, 2, 4)
    assert (rnn(x, torch.ones(1, 2, 6))[0].var > rnn(x, torch.zeros(1, 2, 6))[0].var).all()


def test_adaptive_weight_noise_trains_in_three_lines():
    torch.manual_seed(0)
    rnn = fd.nn.RNN(3, 16, weight_noise=True)
    out = fd.nn.NoisyLinear(16, 3)
    model = torch.nn.ModuleList([rnn, out])
    x = torch.rand(20, 8, 3).round()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    start = (rnn.weight_hh_l0_log_std.detach().clone(), fd.nn.weight_noise_kl(model).item())
    losses = []
    for _ in range(60):
        nll = fd.losses.bernoulli_nll(out(rnn(x)[0]), x)
        loss = nll.mean() + fd.nn.weight_noise_kl(model) / (nll.numel() * 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    assert (rnn.weight_hh_l0_log_std - start[0]).abs().max() > 0.1
    assert fd.nn.weight_noise_kl(model).item() >= 0


def test_kl_is_that_against_the_best_prior():
    layer = fd.nn.NoisyLinear(5, 4, bias=False, std=0.3)
    with torch.no_grad():
        layer.weight_log_std += 0.2 * torch.randn_like(layer.weight_log_std)
    q = torch.distributions.Normal(layer.weight, layer.weight_log_std.exp())

    def against(mean, std):
        return torch.distributions.kl_divergence(q, torch.distributions.Normal(mean, std)).sum()

    best = fd.nn.weight_noise_kl(layer)
    mean = layer.weight.mean()
    std = (layer.weight_log_std.exp() ** 2 + (layer.weight - mean) ** 2).mean().sqrt()
    torch.testing.assert_close(best, against(mean, std))
    for other in (against(mean + 0.05, std), against(mean, std * 1.1), against(mean, std * 0.9)):
        assert other > best
