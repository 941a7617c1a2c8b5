import copy
import pickle

import pytest
import torch
from torch import nn

import fastdropout as fd
from fastdropout.nn.checked import Choice, Drop, Variance

LAYERS = [
    fd.nn.Dropout(0.3),
    fd.nn.Linear(3, 2, drop=0.3),
    fd.nn.NoisyLinear(3, 2, drop=0.3),
    fd.nn.Tanh(),
    fd.nn.Sigmoid(),
    fd.nn.Softmax(),
    fd.nn.NADE(3, 2, drop_input=0.1),
]
WRONG = {
    "drop": (2.0, r"drop must lie in \[0, 1\), got 2\.0"),
    "drop_input": (-0.1, r"drop_input must lie in \[0, 1\), got -0\.1"),
    "drop_hidden": ("0.5", r"drop_hidden must lie in \[0, 1\), got '0\.5'"),
    "method": ("typo", "method must be one of moments, gaussian, mask, got 'typo'"),
    "rule": ("slow", "rule must be one of fast, accurate, paper, got 'slow'"),
    "by": ("guessing", "by must be one of unscented, sampling, got 'guessing'"),
    "nonlinearity": ("cos", "nonlinearity must be one of tanh, sigmoid, got 'cos'"),
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_what_is_set_later_is_checked_too(layer):
    layer = copy.deepcopy(layer)
    seen = 0
    for name, (wrong, says) in WRONG.items():
        before = getattr(layer, name, None)
        if before is None:
            continue
        seen += 1
        with pytest.raises(ValueError, match=says):
            setattr(layer, name, wrong)
        assert getattr(layer, name) == before
        setattr(layer, name, before)
    assert seen


def test_the_new_value_is_used():
    layer = fd.nn.Dropout(0.5)
    layer.drop = 0
    assert layer(torch.ones(2)).mean.tolist() == [1.0, 1.0]
    assert isinstance(layer.drop, float)


class Layer(nn.Module):
    noise, drop, mode = Variance(), Drop(), Choice(("a", "b"))


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan"), True, "1", None])
def test_a_variance_is_finite_and_not_negative(wrong):
    layer = Layer()
    layer.noise = 2
    with pytest.raises(ValueError, match="noise must be finite and at least 0, got"):
        layer.noise = wrong
    assert layer.noise == 2.0


def test_pickles_keep_the_values():
    layer = pickle.loads(pickle.dumps(fd.nn.Linear(3, 2, drop=0.3, method="mask")))
    assert (layer.drop, layer.method) == (0.3, "mask")


def test_compiled_layers_read_them_in_one_graph():
    layer = fd.nn.Linear(3, 2, drop=0.3)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.ones(4, 3)
    torch.testing.assert_close(compiled(x).var, layer(x).var)
    layer.drop = 0.6
    torch.testing.assert_close(compiled(x).var, layer(x).var)
