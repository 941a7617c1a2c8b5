"""Plain tensors in the places of Moments are certain values; other things are refused in one sentence."""

import inspect

import pytest
import torch

from fastdropout import functional, losses
from fastdropout.functional import quadrature
from fastdropout.moments import Moments

X, Y = torch.linspace(-2, 2, 12).view(3, 4), torch.linspace(0.1, 1, 12).view(3, 4)
WEIGHT = torch.linspace(-1, 1, 8).view(2, 4)
CALLS = {
    "add_independent": lambda x: functional.add_independent(x, Y),
    "add_independent left": lambda x: functional.add_independent(Y, x),
    "dropout": lambda x: functional.dropout(x, 0.3),
    "dropout 0": lambda x: functional.dropout(x, 0.0),
    "dropout_of_mean": lambda x: functional.dropout_of_mean(x, 0.3),
    "logit_of_expected": functional.logit_of_expected,
    "expected_softplus": functional.expected_softplus,
    "identity": functional.identity,
    "linear": lambda x: functional.linear(x, WEIGHT),
    "multiply_independent": lambda x: functional.multiply_independent(x, Y),
    "noisy_linear": lambda x: functional.noisy_linear(x, Moments(WEIGHT, WEIGHT**2), WEIGHT[:, 0]),
    "noisy_linear weight": lambda x: functional.noisy_linear(Moments(X, Y), x),
    "relu": functional.relu,
    "sigmoid": functional.sigmoid,
    "sigmoid paper": lambda x: functional.sigmoid(x, "paper"),
    "softmax": functional.softmax,
    "tanh": functional.tanh,
    "tanh accurate": lambda x: functional.tanh(x, "accurate"),
    "squared_error": lambda x: losses.squared_error(x, Y),
    "gaussian_nll": lambda x: losses.gaussian_nll(x, Y),
    "bernoulli_nll": lambda x: losses.bernoulli_nll(x, Y),
    "expected_bernoulli_nll": lambda x: losses.expected_bernoulli_nll(x, Y),
    "categorical_nll": lambda x: losses.categorical_nll(x, torch.tensor([0, 3, 1])),
    "expectation": lambda x: quadrature.expectation(torch.cos, x),
    "transform": lambda x: quadrature.transform(torch.cos, x),
}


def parts(y):
    return (y.mean, y.var) if isinstance(y, Moments) else (y,)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_tensor_is_a_certain_value(call):
    for got, expected in zip(parts(call(X)), parts(call(Moments.certain(X))), strict=True):
        assert torch.equal(got, expected)


# Arguments that have a default, but cannot all be left out.
OPTIONAL = {"clamp": {"min": 0.0}}


def public():
    """Every public function with an argument of Moments, and that argument."""
    found = []
    for module in (functional, losses, quadrature):
        own = [name for name, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            fn = getattr(module, name)
            if inspect.isfunction(fn) and not name.startswith("_"):
                parameters = inspect.signature(fn).parameters.values()
                takers = [p.name for p in parameters if str(p.annotation).startswith("Moments")]
                found += [pytest.param(fn, taker, id=f"{name} {taker}") for taker in takers]
    return found


@pytest.mark.parametrize(("fn", "taker"), public())
def test_other_things_are_refused(fn, taker):
    """The others of its arguments are good ones, as far as their names tell."""
    good = {"weight": WEIGHT, "drop": 0.3, "target": Y, "f": torch.cos}
    parameters = inspect.signature(fn).parameters.values()
    needed = {p.name: good.get(p.name, X) for p in parameters if p.default is p.empty}
    for wrong in ([0.5], 0.5, "x"):
        says = f"expected Moments or a floating-point tensor, got {type(wrong).__name__}"
        with pytest.raises(TypeError, match=says):
            fn(**needed | OPTIONAL.get(fn.__name__, {}) | {taker: wrong})


def test_integers_are_refused():
    with pytest.raises(ValueError, match=r"must be a floating-point tensor, got a tensor of torch\.int64"):
        functional.tanh(torch.arange(3))
