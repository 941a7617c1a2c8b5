"""The compiled rules against those of `functional`, in float64; and where they do not serve."""

import math

import pytest
import torch
from torch.nn import functional as F

import fastdropout as fd
from fastdropout import Moments, functional
from fastdropout.functional import slopes
from fastdropout.integration import compiled, frozen
from fastdropout.recurrent import compiler

pytestmark = pytest.mark.skipif(compiler.status() != "built", reason="no C compiler")

REFERENCE = {
    "relu": slopes.relu,
    "gelu": slopes.gelu,
    "tanh": slopes.tanh,
    "sigmoid": slopes.sigmoid,
    "silu": lambda m, v: slopes.smooth(F.silu, m, v),
}


def values(*shape, var):
    g = torch.Generator().manual_seed(0)
    m, v = 5 * torch.randn(*shape, generator=g), var * torch.rand(*shape, generator=g) ** 2
    v.view(-1)[::7] = 0
    return m, v


@pytest.mark.parametrize("size", [1, 63, 1000, 20_000])
@pytest.mark.parametrize("var", [1e-9, 0.1, 16.0])
@pytest.mark.parametrize("name", REFERENCE)
def test_activations(name, var, size):
    m, v = values(size, var=var)
    got, want = compiled.sloped(name, m, v), REFERENCE[name](m.double(), v.double())
    bounds = (4e-6, 2e-5, 1e-3 if name == "silu" else 2e-6)  # the slope of silu: of a difference
    for a, b, bound in zip(got, want, bounds, strict=True):
        assert (a - b).abs().max() < bound
    assert (got[1] >= 0).all()
    assert (got[1][v == 0] == 0).all()


@pytest.mark.parametrize("name", REFERENCE)
def test_far_values_and_what_is_no_number(name):
    m = torch.tensor([1e4, -1e4, 3e18, -3e18, 0.0, math.nan, 1.0])
    v = torch.tensor([1.0, 1.0, 0.0, 0.0, 1e6, 1.0, math.nan])
    mean, var, slope = compiled.sloped(name, m, v)
    assert torch.isfinite(torch.stack([mean, var, slope])[:, :5]).all()
    assert mean[5].isnan()
    assert var[6].isnan()
    plain = getattr(torch, name, None) or getattr(F, name)
    torch.testing.assert_close(mean[:4], plain(m[:4]))


@pytest.mark.parametrize("n", [2, 16, 100, 1000])
@pytest.mark.parametrize("var", [0.0, 1e-12, 0.1, 4.0])
def test_softmax(n, var):
    m, v = values(50, n, var=var)
    m[:5, 1:] = -math.inf
    mean, var = compiled.softmax(m, v)
    want = functional.softmax(Moments(m.double(), v.double()))
    assert (mean - want.mean).abs().max() < 3e-6
    assert (var - want.var).abs().max() < 2e-3 * max(1e-9, want.var.max())
    torch.testing.assert_close(mean.sum(-1), torch.ones(50))


@pytest.mark.parametrize("centred", [True, False])
def test_norms_and_their_gradient(centred):
    torch.manual_seed(0)
    m, v = values(6, 5, 32, var=1.0)
    w, b = torch.randn(32), torch.randn(32) if centred else None
    leaf = m.clone().requires_grad_()
    y = frozen.norm(Moments(leaf, v), [32], w, b, 1e-5, centred)
    twin = m.double().requires_grad_()
    x, args = Moments(twin, v.double()), (w.double(), b.double()) if centred else (w.double(),)
    norm = functional.layer_norm if centred else functional.rms_norm
    want = norm(x, [32], *args, 1e-5, independent=False)
    torch.testing.assert_close(y.mean, want.mean.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.var, want.var.float())
    g = torch.randn(6, 5, 32)
    (got,) = torch.autograd.grad(y.mean, leaf, g, retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(want.mean, twin, g.double())[0].float())
    rows = torch.stack([g, 2 * g])
    (both,) = torch.autograd.grad(y.mean, leaf, rows, is_grads_batched=True)
    torch.testing.assert_close(both, torch.stack([got, 2 * got]))


def test_a_mask():
    m, v = values(100, var=2.0)
    added, total = compiled.mask(m, v, 0.25, 0.81)
    torch.testing.assert_close(added, 0.25 * (m**2 + v))
    torch.testing.assert_close(total, 0.25 * (m**2 + v) + 0.81 * v)
    added, total = compiled.mask(m, None, 0.25, 0.81)
    assert added is total
    torch.testing.assert_close(added, 0.25 * m**2)


def test_other_tensors_are_not_served():
    m, v = values(4, var=1.0)
    assert compiled.sloped("relu", m.double(), v.double()) is None
    assert compiled.sloped("relu", m.to("meta"), v.to("meta")) is None
    assert compiled.sloped("relu", m, v[:1]) is None
    assert torch.func.vmap(lambda a: torch.tensor(compiled.sloped("relu", a, a) is None).expand(1))(m).all()


def test_the_layout_does_not_matter():
    m, v = values(6, 5, var=1.0)
    for a, b in zip(compiled.sloped("gelu", m.T, v.T), compiled.sloped("gelu", m, v), strict=True):
        torch.testing.assert_close(a, b.T)
    wide = torch.zeros(1, 5).expand(6, 5)
    torch.testing.assert_close(
        compiled.sloped("relu", wide, v)[1], compiled.sloped("relu", wide.clone(), v)[1]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_has_the_same_moments_with_and_without(dtype, monkeypatch):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True).to(dtype)
    x = torch.randn(3, 5, 16, dtype=dtype)
    got = fd.integrate(layer)(x)
    monkeypatch.setattr(compiled, "_function", lambda name: None)
    want = fd.integrate(layer)(x)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.var, want.var, rtol=1e-4, atol=1e-5)
