"""What people use beside `integrate()`: compilers, checkpoints, several processes and threads, exceptions."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fastdropout as fd
from fastdropout import Moments
from fastdropout.integration import context


def net(drop=0.2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(drop), nn.Linear(20, 3))


X = torch.linspace(-1, 1, 24).view(4, 6)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = net()
        self.out = nn.Linear(3, 6)

    def forward(self, x):
        return x + self.out(torch.tanh(self.body(x)))


@pytest.mark.filterwarnings("ignore")
def test_compiled_networks_run_uncompiled():
    """Also one that was compiled before: the guards see the context."""
    plain = Residual()
    model = torch.compile(plain, backend="eager")
    with torch.no_grad():
        model(X)
    with fd.integrate() as noise:
        y = model(X)
    with fd.integrate() as same:
        z = plain(X)
    torch.testing.assert_close(y.var, z.var)
    torch.testing.assert_close(noise.std(y), same.std(z))
    assert isinstance(model.eval()(X), torch.Tensor)


def test_a_function_that_integrates_is_exported():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            with fd.integrate(trace=False):
                y = self.body(x)
            return y.mean, y.var

    wrapped = Wrapped()
    program = torch.export.export(wrapped, (X,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    for x in (X, torch.cat([X, X])):
        for got, expected in zip(program.module()(x), wrapped(x), strict=True):
            torch.testing.assert_close(got, expected)


def test_checkpointing_inside_of_the_context():
    model = net()

    def run(through):
        model.zero_grad()
        with fd.integrate() as noise:
            h = F.dropout(X, 0.1)
            y = checkpoint(model, h, use_reentrant=False) if through else model(h)
            (y.mean.sum() + y.var.sum()).backward(retain_graph=True)
        return y.detach(), model[0].weight.grad.clone(), noise

    y, grad, _ = run(False)
    z, same, _ = run(True)
    torch.testing.assert_close(z.var, y.var)
    torch.testing.assert_close(same, grad)


@pytest.mark.parametrize("gains", ["moments", "plain"])
def test_checkpointed_parts_are_traced(gains):
    """Gradients are taken after the `with`, where dropout is not integrated any more."""
    model = net()

    def through(x):
        return checkpoint(model, F.dropout(checkpoint(model, x, use_reentrant=False), 0.1).repeat(1, 2),
                          use_reentrant=False)  # fmt: skip

    def plainly(x):
        return model(F.dropout(model(x), 0.1).repeat(1, 2))

    with fd.integrate(gains=gains) as noise:
        y = through(X)
    with fd.integrate(gains=gains) as same:
        z = plainly(X)
    torch.testing.assert_close(noise.std(y), same.std(z))
    of = {f: fd.integrate(f, gains=gains)(X).std for f in (through, plainly)}
    torch.testing.assert_close(of[through], of[plainly])
    with fd.integrate() as noise:
        y = checkpoint(model, X.clone().requires_grad_(), use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant"):
        noise.std(y)


@pytest.mark.usefixtures("process_group")
def test_distributed_networks():
    """One process: gradients, diagonal and trace are those of the network itself, unused weights or not."""

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.unused = net(), nn.Linear(2, 2)

        def forward(self, x):
            return self.body(x)

    plain, model = net(), Unused()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    found = []
    for run, body in ((plain, plain), (wrapped, model.body)):
        for _ in range(2):
            with fd.integrate() as noise:
                y = run(X)
                loss = F.cross_entropy(y, torch.tensor([0, 1, 2, 0]))
            std = noise.std(y)
            loss.backward()
        found.append((y.var, std, body[0].weight.grad, fd.integrate(run)(X).std))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_exceptions_leave_torch_as_it_was():
    def fails(x):
        raise KeyError(net()(x))

    for run in (fd.integrate(fails), lambda x: F.linear(x, torch.ones(2, 7))):
        with pytest.raises((KeyError, RuntimeError)), fd.integrate():
            run(net()(X))
        assert type(net().eval()(X)) is torch.Tensor
        assert not torch.overrides._get_current_function_mode_stack()
        assert context.current() is None
        with pytest.raises(TypeError, match="inside of"):
            torch.relu(Moments(X, X**2))


def test_predictors_in_threads_copies_and_autocast():
    predict, found = fd.integrate(net()), []
    expected = predict(X).std

    def run():
        found.extend(predict(X).std for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 15
    for std in (
        *found,
        copy.deepcopy(predict)(X).std,
        fd.integrate(torch.compile(net(), backend="eager"))(X).std,
    ):
        torch.testing.assert_close(std, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = predict(X)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.std.float(), expected, rtol=0.05, atol=0.01)
