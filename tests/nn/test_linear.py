import copy
import pickle

import pytest
import torch

import fastdropout as fd
from fastdropout import Moments


def net(**options):
    torch.manual_seed(0)
    return fd.nn.Sequential(
        fd.nn.Linear(5, 40, drop=0.2, **options), fd.nn.ReLU(), fd.nn.Linear(40, 3, drop=0.5, **options)
    )


def test_without_dropout_it_is_torch_linear():
    plain = torch.nn.Linear(5, 3)
    ours = fd.nn.Linear(5, 3)
    ours.load_state_dict(plain.state_dict(), strict=True)
    x = torch.randn(4, 5)
    for y in (ours(x), ours(Moments(x, torch.zeros(4, 5)))):
        assert torch.equal(y.mean, plain(x))
        assert (y.var == 0).all()
    assert ours(x).is_certain


@pytest.mark.parametrize("method", ["mask", "gaussian"])
def test_drawn_networks_have_the_predicted_moments(method):
    x = torch.rand(1, 5)
    with torch.no_grad():
        exact = net()(x)
        draws = net(method=method)(x.expand(200_000, 5)).mean
    torch.testing.assert_close(exact.mean[0], draws.mean(0), rtol=0, atol=0.01)
    torch.testing.assert_close(exact.var[0], draws.var(0), rtol=0.06, atol=0.003)


def test_in_evaluation_nothing_is_drawn():
    x = torch.rand(2, 5)
    assert net(method="mask").eval()(x).is_certain
    torch.testing.assert_close(net(method="gaussian").eval()(x).var, net()(x).var)
    for method in ("mask", "gaussian"):
        layer = fd.nn.Dropout(0.5, method=method).eval()
        torch.testing.assert_close(layer(x).mean, 0.5 * x)


def test_no_fast_dropout_is_not_zero_dropout():
    x = Moments(torch.randn(4, 5), torch.rand(4, 5))
    ordinary, zero = fd.nn.Linear(5, 3, propagate=False), fd.nn.Linear(5, 3)
    zero.load_state_dict(ordinary.state_dict())
    assert ordinary(x).is_certain
    assert (zero(x).var > 0).all()
    assert torch.equal(ordinary(x).mean, zero(x).mean)


@pytest.mark.parametrize("method", ["moments", "mask", "gaussian"])
def test_dropout_module(method):
    torch.manual_seed(0)
    x = Moments.certain(torch.full((200_000,), 2.0))
    y = fd.nn.Dropout(0.25, method=method)(x)
    mean, var = (y.mean[0], y.var[0]) if method == "moments" else (y.mean.mean(), y.mean.var())
    torch.testing.assert_close(mean, torch.tensor(1.5), rtol=0, atol=0.01)
    torch.testing.assert_close(var, torch.tensor(0.75), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (fd.nn.Tanh(), torch.nn.Tanh()),
        (fd.nn.Tanh("accurate"), torch.nn.Tanh()),
        (fd.nn.Sigmoid(), torch.nn.Sigmoid()),
        (fd.nn.ReLU(), torch.nn.ReLU()),
        (fd.nn.Identity(), torch.nn.Identity()),
        (fd.nn.Softmax(), torch.nn.Softmax(-1)),
    ],
    ids=str,
)
def test_activations_of_certain_input_are_those_of_torch(ours, plain):
    x = torch.randn(4, 5)
    torch.testing.assert_close(ours(x).mean, plain(x))


def test_noisy_linear_drawn_and_in_closed_form_agree():
    torch.manual_seed(0)
    closed = fd.nn.NoisyLinear(6, 4, std=0.3, drop=0.2)
    drawn = fd.nn.NoisyLinear(6, 4, std=0.3, drop=0.2, method="mask")
    drawn.load_state_dict(closed.state_dict())
    x = torch.randn(6)
    with torch.no_grad():
        exact = closed(x)
        draws = torch.stack([drawn(x).mean for _ in range(20_000)])
        assert torch.equal(
            drawn.eval()(x).mean, torch.nn.functional.linear(0.8 * x, closed.weight, closed.bias)
        )
    torch.testing.assert_close(exact.mean, draws.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(exact.var, draws.var(0), rtol=0.06, atol=0.01)


def test_kl_needs_noisy_weights():
    with pytest.raises(ValueError, match="no noisy weights"):
        fd.nn.weight_noise_kl(fd.nn.Linear(2, 2))


def test_survives_copy_pickle_state_dict_double_and_meta():
    model, x = net(), torch.rand(2, 5)
    expected = model(x)
    fresh = net()
    fresh.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert torch.equal(other(x).var, expected.var)
    doubled = torch.func.functional_call(model, {k: 2 * v for k, v in model.state_dict().items()}, (x,))
    assert not torch.equal(doubled.var, expected.var)
    assert model.double()(x.double()).dtype == torch.float64
    assert fd.nn.Linear(5, 3, drop=0.1, device="meta")(x.to("meta")).shape == (2, 3)


def test_exports_and_compiles():
    model, x = net(), torch.rand(2, 5)
    expected = model(x)
    exported = torch.export.export(model, (x,)).module()(x)
    assert isinstance(exported, Moments)
    for got in (exported, torch.compile(model, fullgraph=True, backend="aot_eager")(x)):
        torch.testing.assert_close(got.mean, expected.mean)
        torch.testing.assert_close(got.var, expected.var)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fd.nn.Linear(2, 2, drop=1.0), r"drop must lie in \[0, 1\), got 1.0"),
        (lambda: fd.nn.Linear(2, 2, method="no"), "method must be one of moments, gaussian, mask, got 'no'"),
        (lambda: fd.nn.Linear(2, 2, drop=0.1, propagate=False), "drop must be 0 where propagate=False"),
        (lambda: fd.nn.Dropout(-1), r"drop must lie in \[0, 1\), got -1"),
        (lambda: fd.nn.Tanh("no"), "rule must be one of"),
        (lambda: fd.nn.NoisyLinear(2, 2, std=-1.0), "must be positive, got -1.0"),
        (
            lambda: fd.nn.Linear(2, 2)(torch.zeros(4, 3)),
            r"2 features in its last dimension, got shape \(4, 3\)",
        ),
        (
            lambda: fd.nn.Linear(2, 2)(torch.zeros(2).double()),
            "dtype of the weights, torch.float32, got torch.float64",
        ),
        (
            lambda: fd.nn.Linear(2, 2)(torch.zeros(2).long()),
            "floating-point tensor, got a tensor of torch.int64",
        ),
    ],
)
def test_bad_input_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
