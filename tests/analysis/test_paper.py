"""Slips of the paper that need no network: a number each (docs/maths.md)."""

import contextlib
import importlib
import math
import re
from pathlib import Path

import pytest
import torch

import fastdropout as fd
from fastdropout import functional
from fastdropout.moments import Moments, unchecked_moments

ROOT = Path(__file__).parents[2]
MATHS = (ROOT / "docs" / "maths.md").read_text()


def test_the_sign_of_the_bernoulli_loss():
    def printed(y, z):
        return z * math.log(y) + (1 - z) * math.log(1 - y)

    assert printed(0.9, 1) == pytest.approx(-0.105, abs=1e-3)
    assert printed(0.1, 1) == pytest.approx(-2.303, abs=1e-3)
    y = torch.tensor([0.9, 0.1], dtype=torch.float64)
    ours = fd.losses.bernoulli_nll(Moments.certain(torch.logit(y)), torch.ones(2, dtype=torch.float64))
    assert ours.tolist() == pytest.approx([-printed(0.9, 1), -printed(0.1, 1)])
    assert ours[0] < ours[1]


def test_the_mean_is_scaled_by_keep():
    one = torch.ones(1, 1, dtype=torch.float64)
    p = 0.8  # the paper's: "the complementary drop out rate"
    fast = functional.linear(functional.dropout(Moments.certain(one), 1 - p), one).mean
    noise = [
        functional.noisy_linear(Moments.certain(one), unchecked_moments(s * one, one)).mean
        for s in (p, 1 - p)
    ]
    assert fast.item() == pytest.approx(0.8)
    assert [m.item() for m in noise] == pytest.approx([0.8, 0.2])


def test_every_function_and_test_that_the_document_names_is_there():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = re.findall(r"`(test_\w+)`", MATHS)
    assert len(named) > 25
    assert [n for n in named if f"def {n}(" not in tests] == []
    functions = re.findall(
        r"\b((?:functional|recurrent|nn|losses|analysis|training)(?:\.(?!md\b)[a-zA-Z_]\w*)+)", MATHS
    )
    assert len(functions) > 18
    for name in functions:
        assert callable(named_object(name)), name


def named_object(name):
    for package in ("fastdropout", "fastdropout.music"):
        with contextlib.suppress(ImportError, AttributeError):
            return attribute_path(package, name.split("."))
    raise AssertionError(f"{name} does not exist")


def attribute_path(module, names):
    """What a user reaches by dots. A submodule is imported only where there is no attribute of its name:
    `functional.softmax` is the function, though a file is called so too."""
    found = importlib.import_module(module)
    for name in names:
        module = f"{module}.{name}"
        found = getattr(found, name) if hasattr(found, name) else importlib.import_module(module)
    return found


def test_a_function_goes_before_the_file_of_its_name():
    assert named_object("functional.softmax") is functional.softmax
    assert named_object("training.fit") is importlib.import_module("fastdropout.music.training").fit
    with pytest.raises(AssertionError, match="Nothing does not exist"):
        named_object("nn.Nothing")


def test_the_numbers_of_the_sampled_term():
    x, w = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, -2.0, 0.5], [0.8, 0.3, -1.1]))
    spread = 0.6 * 0.4 * x**2
    ours = w * spread / (spread @ w**2).sqrt()
    for name, row in (("derived above", ours), ("as printed", spread.sqrt())):
        line = next(line for line in MATHS.splitlines() if line.strip().startswith(name))
        assert [float(v) for v in line.split()[2:]] == pytest.approx(row.tolist(), abs=1e-4)


def test_units_that_share_masks_are_correlated():
    """What weight noise of the same moments does not give: a covariance of keep drop sum w1 w2 x^2."""
    drop, x = 0.4, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    w = torch.tensor([[0.8, 0.3, -1.1], [0.5, 0.9, 0.2]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(200_000, 3, generator=generator, dtype=torch.float64) > drop).double()
    weights = (1 - drop) * w + (drop * (1 - drop)) ** 0.5 * w * torch.randn(
        200_000, 2, 3, generator=generator, dtype=torch.float64
    )
    dropped, noisy = torch.cov(((masks * x) @ w.T).T), torch.cov((weights @ x).T)
    torch.testing.assert_close(dropped.diagonal(), noisy.diagonal(), rtol=0.02, atol=0)
    expected = drop * (1 - drop) * (w[0] * w[1] * x**2).sum()
    assert dropped[0, 1] == pytest.approx(expected.item(), abs=0.01)
    assert abs(noisy[0, 1]) < 0.01 < abs(expected) / 5


def test_delta_at_the_optimum_of_a_gaussian_unit():
    for var in (1.0, 1e-2, 1e-4):
        v = torch.tensor(var, dtype=torch.float64, requires_grad=True)
        mean = torch.tensor(0.2, dtype=torch.float64)
        loss = fd.losses.gaussian_nll(unchecked_moments(mean, v), mean)
        assert torch.autograd.grad(loss, v)[0].item() == pytest.approx(1 / (2 * var), rel=1e-3)


def test_the_rectifier_in_single_precision():
    m = torch.linspace(-8, 100, 2000)
    for var in (1e-4, 1e-2, 1.0, 100.0):
        v = torch.full_like(m, var)
        single = functional.relu(Moments(m, v)).var.double()
        double = functional.relu(Moments(m.double(), v.double())).var
        assert (single - double).abs().max() < 1e-6 * var
