"""What a network may do under `integrate()` and what it may not: errors that say what to do."""

import copy
import io
import logging
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments
from fastdropout.integration import context


def net(drop=0.2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(drop), nn.Linear(20, 3))


X = torch.linspace(-1, 1, 24).view(4, 6)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.2, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_through_a_small_transformer(frozen):
    model = Encoder().double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = [p for p in model.parameters() if p.ndim == 2][:2]

    def run(x, *_):
        with fd.integrate(train_variance=not frozen):
            y = model(x)
        return y.mean if frozen else (y.mean, y.var)

    if frozen:
        # The gradient of the frozen mean is that with the variances held; it is not checked by differences.
        (got,) = torch.autograd.grad(run(x).sum(), x)
        assert got.isfinite().all()
    else:
        assert torch.autograd.gradcheck(run, (x, *weights), atol=1e-5)


def test_float64_stays_float64():
    with fd.integrate() as noise:
        y = net().double()(X.double())
    assert y.dtype == noise.std(y).dtype == torch.float64


@pytest.mark.parametrize("make", [net, Encoder])
def test_autocast_to_bfloat16(make):
    model = make()
    x = X if make is net else torch.randn(3, 5, 4)
    with fd.integrate() as noise:
        y = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), fd.integrate() as low:
        z = model(x)
    assert z.dtype == torch.bfloat16
    torch.testing.assert_close(z.mean.float(), y.mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(z.std.float(), y.std, rtol=0.1, atol=0.02)
    torch.testing.assert_close(low.std(z).float(), noise.std(y), rtol=0.1, atol=0.02)


def test_threads_do_not_see_each_other():
    model, found = net().eval(), {}

    def plain():
        found["plain"] = model(X)

    def integrated(drop, mine):
        for _ in range(20):
            with fd.integrate() as noise:
                y = mine(X)
            found[drop] = noise.std(y)

    with fd.integrate() as noise:
        threads = [threading.Thread(target=plain)]
        # Made here: the seed of torch, which gives them the same weights, belongs to all threads.
        threads += [threading.Thread(target=integrated, args=(d, net(d))) for d in (0.1, 0.4)]
        for t in threads:
            t.start()
        y = net()(X)
        for t in threads:
            t.join()
    assert isinstance(found["plain"], torch.Tensor)
    assert (found[0.1] < noise.std(y)).all()
    assert (found[0.4] > noise.std(y)).all()


def test_nested_contexts():
    model = net()
    with fd.integrate() as outer:
        first = model(X)
        with fd.integrate() as inner:
            second = model(X)
        third = model(X)
        both = first + third
        mixed = first + second  # noise of the inner context is new noise for the outer one
    assert len(inner.sources) == 1
    torch.testing.assert_close(outer.var(first), outer.var(third))
    torch.testing.assert_close(outer.var(both), 2 * outer.var(first))
    torch.testing.assert_close(outer.var(mixed), outer.var(first) + second.var.detach(), rtol=1e-4, atol=1e-6)
    assert not outer.var(second).any()


def test_hooks_copies_and_pickles():
    model, seen = net(), []
    handles = [model[3].register_forward_hook(lambda m, i, o: seen.append((i[0], o)))]
    handles.append(model[0].weight.register_hook(lambda g: seen.append(g)))
    with fd.integrate():
        y = model(X)
        twin = copy.deepcopy(model)(X)
    assert isinstance(seen[0][0], Moments)
    torch.testing.assert_close(twin.mean, y.mean)
    (y.mean.sum() + y.var.sum()).backward()
    assert isinstance(seen[-1], torch.Tensor)
    for handle in handles:
        handle.remove()
    assert model[0].weight.grad.isfinite().all()
    copied = copy.deepcopy(y.detach())
    torch.testing.assert_close(copied.var, y.var)
    buffer = io.BytesIO()
    torch.save(y.detach(), buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer).mean, y.mean)


def test_complex_numbers_do_not_pass_for_certain():
    with fd.integrate() as noise:
        h = net()(X)
        y = F.dropout(torch.fft.irfft(torch.fft.rfft(h) * (1 + 2j), n=3), 0.1)
        assert isinstance(torch.fft.fft(h).real, Moments)
    assert (noise.std(y) > 0).all()
    with pytest.raises(TypeError, match=r"torch\.fft\.\w+ has no moment rule"):
        y.var  # noqa: B018


def test_unknown_functions_lose_the_diagonal_only(caplog):
    context._noted.clear()
    model = net()
    with caplog.at_level(logging.WARNING), fd.integrate() as noise:
        for _ in range(3):
            y = torch.logcumsumexp(model(X), 1) * 2
            z = torch.linalg.norm(model(X), dim=1)
    assert sum("logcumsumexp" in r.getMessage() for r in caplog.records) == 1
    torch.testing.assert_close(y.mean, torch.logcumsumexp(model.eval()(X), 1) * 2, rtol=0.5, atol=0.5)
    assert (noise.std(y) > 0).all()
    assert (noise.std(z) > 0).all()
    with pytest.raises(TypeError, match=r"logcumsumexp.*fastdropout\.register"):
        y.var  # noqa: B018

    class Odd(nn.Module):
        def forward(self, x):
            return torch.logcumsumexp(x, 1)

    model.add_module("odd", Odd())
    with fd.integrate() as noise:
        y = model(X)
    with pytest.raises(TypeError, match=r"torch\.logcumsumexp in odd has no moment rule"):
        y.std  # noqa: B018


def test_registered_rules():
    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def bump(x):
        return torch.exp(-(x**2))

    model = net()
    with fd.integrate() as noise:
        before = bump(model(X))
    with pytest.raises(TypeError, match="no moment rule"):
        before.var  # noqa: B018
    fd.register(bump)
    with fd.integrate():
        y = bump(model(X))
    fd.register(bump, lambda x: Moments(x.mean * 0, x.var * 0 + 3))
    with fd.integrate():
        z = bump(model(X))
    assert (y.var > 0).all()
    assert (z.var == 3).all()
    assert noise.std(before).shape == (4, 3)
    with pytest.raises(TypeError, match="function must be callable"):
        fd.register(3)
    with pytest.raises(TypeError, match="rule must be callable"):
        fd.register(bump, 3)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda y: y.sum().item(), "item.*asks for the value of Moments"),
        (lambda y: y.tolist(), "asks for the value"),
        (lambda y: float(y.sum()), "random|float"),
        (lambda y: 1 if y.sum() else 0, "neither true nor false"),
        (lambda y: y.numpy(), "asks for the value"),
        (lambda y: y.add_(1), "in place"),
        (lambda y: y.relu_(), "in place"),
        (lambda y: torch.zeros(4, 3).add_(y), "in place"),
        (lambda y: torch.zeros(4, 3).copy_(y), "in place"),
        (lambda y: torch.zeros(4, 3).__setitem__(0, y[0]), "plain tensor cannot hold Moments"),
        (lambda y: torch.add(y, 1, out=torch.empty(4, 3)), "out="),
        (lambda y: y**y, "exponent"),
        (lambda y: y.no_such_method(), "no attribute"),
    ],
)
def test_what_random_values_cannot_do(bad, says):
    with fd.integrate():
        y = net()(X)
        with pytest.raises((TypeError, AttributeError), match=says):
            bad(y)
        assert isinstance(net()(X), Moments)  # the context goes on


def test_decisions_are_made_at_the_mean(caplog):
    context._noted.clear()
    with caplog.at_level(logging.WARNING), fd.integrate():
        y = net()(X)
        index, above, same = y.argmax(1), y > 0, y == 0
        assert y.long().dtype == torch.int64
        top = torch.topk(y, 2, dim=1)
    assert torch.equal(index, y.mean.argmax(1))
    assert torch.equal(above, y.mean > 0)
    assert not same.any()
    assert torch.equal(top[1], y.mean.topk(2, dim=1)[1])
    torch.testing.assert_close(top[0].var, y.var.gather(1, top[1]))
    assert any("at the mean" in r.getMessage() for r in caplog.records)


def test_integers_and_plain_tensors_are_left_alone():
    with fd.integrate():
        assert F.dropout(X, 0.0) is not None
        assert isinstance(torch.relu(X), torch.Tensor)
        assert torch.arange(3).add(1).dtype == torch.int64
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"floating|nteger"):
            F.dropout(torch.arange(4), 0.5)
        with pytest.raises(ValueError, match="probability"):
            F.dropout(X, 1.5)


def test_in_place_modules_and_operators():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 9), nn.Dropout(0.2), nn.ReLU(inplace=True), nn.Dropout(0.1, inplace=True)
    )
    with fd.integrate():
        y = model(X)
        z = model[2:](model[:2](X))
        h = model[:2](X)
        other = h
        h += 1
        assert other is not h or h.mean.equal(other.mean)
        relu = F.relu(other, inplace=True)
        assert relu is other
    torch.testing.assert_close(y.mean, z.mean)
    assert (y.mean >= 0).all()


def test_reading_tensors_inside():
    with fd.integrate():
        y = net()(X)
        assert y.mean.shape == (*y.mean(1).shape, 3)
        assert isinstance(y.mean, torch.Tensor)
        assert type(y.mean + 1) is torch.Tensor
        total = y.mean.sum() + y.var.sum() + y.std.sum()
        torch.testing.assert_close(y.var(dim=1, unbiased=False).mean.shape, torch.Size([4]))
        assert y.size(0) == len(y) == 4
        assert y.T.shape == (3, 4)
        assert y.numel() == 12
        assert not y.is_cuda
    assert total.requires_grad
    assert type(y.mean) is torch.Tensor


def test_a_prediction_sees_that_noise_goes_elsewhere():
    """What was found about the sources of a batch does not serve one that is mixed by other numbers."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 1)
    once, twice = torch.eye(3), torch.eye(3)[[1, 2, 0]]

    def mixed(x, p):
        return p @ (F.dropout(x, 0.5) @ w)

    predict = fd.integrate(mixed)
    var = ((x * w.T) ** 2).sum(1, keepdim=True)
    for p in (once, twice, twice @ twice):
        torch.testing.assert_close(predict(x, p).var, p @ var)

    def gated(x, gate):
        return gate * (F.dropout(x[:1], 0.5) @ w)

    predict = fd.integrate(gated)
    for gate in (once[:, :1], twice[:, :1], torch.ones(3, 1)):
        torch.testing.assert_close(predict(x, gate).var, gate * var[0])


def test_a_prediction_sees_that_weights_have_changed():
    torch.manual_seed(0)
    x, layer = torch.randn(3, 4), nn.Linear(4, 1, bias=False)
    mix = nn.Parameter(torch.eye(3))

    def mixed(x):
        return mix @ layer(F.dropout(x, 0.5))

    predict = fd.integrate(mixed)
    for weight in (0.0, 1.0):
        for p in (torch.eye(3), torch.eye(3)[[2, 0, 1]]):
            with torch.no_grad():
                layer.weight.fill_(weight)
                mix.copy_(p)
            var = ((x * layer.weight) ** 2).sum(1, keepdim=True)
            torch.testing.assert_close(predict(x).var, p @ var.detach())
