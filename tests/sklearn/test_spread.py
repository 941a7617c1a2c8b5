"""The traced variance of an estimator's networks, and probabilities from it, against independent ways."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

import fastdropout as fd
from fastdropout.sklearn import spread
from fastdropout.sklearn.classes import expected_entropy, expected_softmax
from fastdropout.sklearn.heads import CategoricalHead, GaussianHead
from fastdropout.sklearn.network import Architecture, outputs, to_tensors
from fastdropout.sklearn.spread import predicted, predicted_covariance

SHAPES = [
    ((4, 30, 1), "relu", (0.1, 0.2)),
    ((4, 30, 20, 3), "relu", (0.1, 0.2, 0.3)),
    ((4, 30, 20, 3), "tanh", (0.0, 0.2, 0.3)),
    ((4, 20, 2), "logistic", (0.2, 0.0)),
    ((4, 3), "relu", (0.3,)),
]


def stack(sizes, activation, drops, k=2):
    shape = Architecture(sizes, drops, activation)
    weights = to_tensors(shape.draw(k, np.random.RandomState(0), np.float64))
    return shape.build(), weights, torch.randn(50, sizes[0], dtype=torch.float64)


@pytest.mark.parametrize(("sizes", "activation", "drops"), SHAPES)
def test_is_the_trace_of_integrate(sizes, activation, drops):
    torch.manual_seed(0)
    network, weights, x = stack(sizes, activation, drops)
    found = predicted(network, weights, x, trace=True)
    mean, covariance = predicted_covariance(network, weights, x)
    torch.testing.assert_close(mean, found.mean)
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1), found.var)
    for i in range(2):
        own = {name: w[i] for name, w in weights.items()}
        with fd.integrate(train_variance=False) as noise:
            y = functional_call(network, own, (x,))
            torch.testing.assert_close(found.mean[i], y.mean)
            torch.testing.assert_close(found.var[i], noise.var(y).detach())
            torch.testing.assert_close(covariance[i], noise.covariance(y).detach())


def test_diagonal_is_that_of_the_layers():
    network, weights, x = stack((4, 30, 20, 3), "relu", (0.1, 0.2, 0.3))
    found = predicted(network, weights, x, trace=False)
    y = functional_call(network, {name: w[1] for name, w in weights.items()}, (x,))
    torch.testing.assert_close(found.mean[1], y.mean)
    torch.testing.assert_close(found.var[1], y.var)


def test_nothing_dropped_is_certain():
    network, weights, x = stack((4, 30, 2), "relu", (0.0, 0.0))
    assert not predicted(network, weights, x, trace=True).var.any()
    assert not predicted_covariance(network, weights, x)[1].any()


def test_inputs_of_zero_have_a_variance_that_is_a_number():
    network, weights, x = stack((4, 30, 2), "relu", (0.1, 0.1))
    assert predicted(network, weights, x * 0, trace=True).var.isfinite().all()


@pytest.mark.parametrize(("classes", "std", "error"), [(2, 1.0, 0.01), (10, 1.0, 0.01), (10, 3.0, 0.03)])
def test_expected_softmax_against_sampling(classes, std, error):
    g = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(100, classes, generator=g, dtype=torch.float64)
    root = std * torch.randn(100, classes, classes, generator=g, dtype=torch.float64) / classes**0.5
    total = torch.zeros_like(mean)
    for _ in range(5000):
        noise = torch.randn(100, classes, 1, generator=g, dtype=torch.float64)
        total += (mean + (root @ noise)[..., 0]).softmax(-1)
    p = expected_softmax(mean, root @ root.mT)
    assert (p - total / 5000).abs().mean() < error
    torch.testing.assert_close(p.sum(-1), torch.ones(100, dtype=torch.float64))
    torch.testing.assert_close(expected_softmax(mean, 0 * root), mean.softmax(-1), rtol=0, atol=1e-5)


def test_two_classes_are_one_logit():
    head = CategoricalHead(2)
    assert head.outputs == 1
    mean, var = torch.tensor([[0.5], [-3.0]]), torch.tensor([[[4.0]], [[0.0]]])
    p = head.probabilities(mean, var)
    g = torch.Generator().manual_seed(0)
    draws = torch.sigmoid(0.5 + 2 * torch.randn(200_000, generator=g)).mean()
    torch.testing.assert_close(p[0, 1], draws, atol=2e-3, rtol=0)
    torch.testing.assert_close(p[1, 1], torch.sigmoid(torch.tensor(-3.0)))


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_expected_loss_is_the_mean_over_draws(heteroscedastic):
    """E[-log N(y; f, exp(a))] with f and a independent, against drawing both."""
    head = GaussianHead(1, heteroscedastic)
    weights = {"log_noise": torch.tensor([[-0.7]], dtype=torch.float64)}
    mean = torch.tensor([[[0.3, -0.5][: head.outputs]]], dtype=torch.float64)
    out = fd.Moments(mean, torch.full_like(mean, 0.4))
    target = torch.tensor([[[1.0]]], dtype=torch.float64)
    draws = out.sample((200_000,), torch.Generator().manual_seed(0))
    a = draws[..., 1:] if heteroscedastic else weights["log_noise"]
    sampled = -torch.distributions.Normal(draws[..., :1], (a / 2).exp()).log_prob(target)
    found = head.loss(weights, out, target, expected=True)
    torch.testing.assert_close(found.squeeze(), sampled.mean(), rtol=0.02, atol=0)
    # Jensen: never below the loss of the mean.
    assert found > head.loss(weights, out, target, expected=False)


def test_a_stack_is_its_networks():
    network, weights, x = stack((4, 30, 3), "relu", (0.1, 0.2), k=3)
    together = outputs(network, weights, x.expand(3, *x.shape))
    for i in range(3):
        alone = outputs(network, {n: w[i : i + 1] for n, w in weights.items()}, x[None])
        torch.testing.assert_close(together[i].mean, alone[0].mean)
        torch.testing.assert_close(together[i].var, alone[0].var)


@pytest.mark.parametrize("std", [0.5, 3.0])
def test_expected_entropy_against_sampling(std):
    g = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(50, 10, generator=g, dtype=torch.float64)
    root = std * torch.randn(50, 10, 10, generator=g, dtype=torch.float64) / 10**0.5
    a = mean.unsqueeze(0) + torch.einsum(
        "rij,prj->pri", root, torch.randn(5000, 50, 10, generator=g, dtype=torch.float64)
    )
    sampled = torch.distributions.Categorical(logits=a).entropy().mean(0)
    found = expected_entropy(mean, root @ root.mT)
    assert (found - sampled).abs().mean() < 0.03
    # Jensen: the mutual information is never negative.
    p = expected_softmax(mean, root @ root.mT)
    assert (torch.distributions.Categorical(probs=p).entropy() >= found).all()


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("drops", [(0.0, 0.0, 0.2), (0.0, 0.2, 0.0), (0.2, 0.0, 0.0)])
def test_each_layer_alone_is_the_trace_of_integrate(activation, drops):
    torch.manual_seed(0)
    network, weights, x = stack((4, 12, 9, 2), activation, drops, k=1)
    found = predicted(network, weights, x, trace=True)
    with fd.integrate(train_variance=False) as noise:
        y = functional_call(network, {name: w[0] for name, w in weights.items()}, (x,))
        torch.testing.assert_close(found.mean[0], y.mean)
        torch.testing.assert_close(found.var[0], noise.var(y).detach())


def test_rows_in_chunks_are_the_same_rows(monkeypatch):
    network, weights, x = stack((4, 30, 20, 3), "relu", (0.1, 0.2, 0.3))
    whole, covariance = predicted(network, weights, x, trace=True), predicted_covariance(network, weights, x)
    monkeypatch.setattr(spread, "_rows_at_once", lambda weights: 7)
    parts = predicted(network, weights, x, trace=True)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.var, whole.var)
    torch.testing.assert_close(predicted_covariance(network, weights, x), covariance)
