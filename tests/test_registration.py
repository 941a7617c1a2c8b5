"""What of torch knows Moments."""

import dataclasses
import io
import pprint
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

import fastdropout as fd
from fastdropout import Moments

X = Moments(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) / 10)
BOTH = pytest.mark.parametrize("x", [X, Moments.certain(X.mean)], ids=["random", "certain"])


def same(a, b):
    return torch.equal(a.mean, b.mean) and torch.equal(a.var, b.var) and a.is_certain == b.is_certain


@BOTH
def test_a_safe_load_knows_them(x):
    file = io.BytesIO()
    torch.save({"hidden": [x], "epoch": 3}, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=True)["hidden"][0], x)


def test_a_safe_load_knows_them_in_a_new_process(tmp_path):
    torch.save(X, tmp_path / "x.pt")
    program = "import sys, torch, fastdropout as fd; fd.nn; print(torch.load(sys.argv[1]).mean.sum().item())"
    command = [sys.executable, "-c", program, str(tmp_path / "x.pt")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "15.0\n"


def test_a_safe_load_still_refuses_what_is_not_safe():
    file = io.BytesIO()
    torch.save({"x": X, "function": subprocess.run}, file)
    file.seek(0)
    with pytest.raises(Exception, match="Unsupported global"):
        torch.load(file, weights_only=True)


@BOTH
def test_a_batch_is_stacked(x):
    batch = default_collate([(x, 1, {"x": x}), (x, 2, {"x": x})])
    assert same(batch[0], Moments.stack([x, x]))
    assert same(batch[2]["x"], batch[0])
    assert batch[1].tolist() == [1, 2]


def test_a_loader_with_workers():
    items = [(X + i, i) for i in range(4)]
    batches = list(DataLoader(items, batch_size=2, num_workers=1))
    assert same(batches[1][0], Moments.stack([X + 2, X + 3]))


@BOTH
def test_they_are_dataclasses_for_those_who_ask(x):
    assert [field.name for field in dataclasses.fields(x)] == ["mean", "var"]
    y = dataclasses.replace(x, mean=x.mean + 1)
    assert torch.equal(y.mean, x.mean + 1)
    assert torch.equal(y.var, x.var)
    assert "Moments" in pprint.pformat(x, width=10)
    assert (x == dataclasses.replace(x)) is False  # by identity, not by value


class Branches(nn.Module):
    """One of two layers is not used."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = fd.nn.Linear(3, 2, drop=0.3), fd.nn.Linear(3, 2, drop=0.3)

    def forward(self, x):
        return self.used(x)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static graph"])
def test_distributed_training_finds_unused_parameters(static):
    model = Branches()
    wrapped = nn.parallel.DistributedDataParallel(
        model, find_unused_parameters=not static, static_graph=static
    )
    for _ in range(3):
        model.zero_grad()
        out = wrapped(torch.ones(4, 3))
        (out.mean.sum() + out.var.sum()).backward()
        assert model.used.weight.grad.abs().sum() > 0
        assert model.unused.weight.grad is None


def test_full_backward_hooks_have_a_way_round():
    """torch calls them for tensors only, and says so; the tensors inside can be hooked."""
    layer = fd.nn.Linear(3, 2, drop=0.3)
    layer.register_full_backward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="For backward hooks to be called"):
        layer(X)
    seen = []
    layer = fd.nn.Linear(3, 2, drop=0.3)
    layer.register_forward_hook(lambda module, args, out: out.var.register_hook(seen.append) and None)
    layer(X).var.sum().backward()
    assert torch.equal(seen[0], torch.ones(2, 2))


def test_gathering_from_several_devices_says_what_to_do():
    from torch.nn.parallel.scatter_gather import gather

    with pytest.raises(TypeError, match="Moments cannot be unpacked or iterated over"):
        gather([X, X], "cpu")
