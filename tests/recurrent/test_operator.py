"""The fused layer in compiled and exported models: one operator, equal to the eager layer."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_sequence

import fastdropout as fd
from fastdropout.recurrent import operator

DROPS = {"drop_input": 0.2, "drop_hidden": 0.3}
LAYERS = {
    "tanh": lambda **o: fd.nn.RNN(5, 6, **DROPS, **o),
    "relu, no kernel": lambda **o: fd.nn.RNN(5, 6, nonlinearity="relu", **DROPS, **o),
    "accurate, no kernel": lambda **o: fd.nn.RNN(5, 6, rule="accurate", **DROPS, **o),
    "paper, batch first": lambda **o: fd.nn.RNN(5, 6, rule="paper", batch_first=True, **DROPS, **o),
    "lstm": lambda **o: fd.nn.LSTM(5, 6, noise_hidden=0.1, **DROPS, **o),
    "lstm, two ways, recomputed": lambda **o: fd.nn.LSTM(
        5, 6, num_layers=2, bidirectional=True, recompute=True, drop_between=0.2, **DROPS, **o
    ),
    "gru": lambda **o: fd.nn.GRU(5, 6, bias=False, **DROPS, **o),
    "gru, recomputed, noisy": lambda **o: fd.nn.GRU(
        5, 6, recompute=True, weight_noise=True, learn_initial=True, **DROPS, **o
    ),
    "plain": lambda **o: fd.nn.GRU(5, 6, **o),
}


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def values(made):
    """All tensors of what a layer returns."""
    if isinstance(made, tuple):
        return [t for part in made for t in values(part)]
    return [made.mean, made.var]


def outcome(run, layer, x):
    """Outputs, and the gradients of the input and all weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    made = values(run(x))
    sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in made).backward()
    return [*made, x.grad, *(p.grad for p in layer.parameters())]


def operators(graph):
    return [node for node in graph.nodes if "fastdropout.layer" in str(node.target)]


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_equals_eager(name):
    dtype = torch.float64  # float32 in the other tests
    layer = LAYERS[name](dtype=dtype)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(7, 3, 5, dtype=dtype)
    for got, expected in zip(outcome(compiled, layer, x), outcome(layer, layer, x), strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        for got, expected in zip(values(compiled(x)), values(layer(x)), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_exported_with_open_batch_and_steps(name):
    layer = LAYERS[name]()
    # torch unrolls its own layers, so where no variance arises the number of steps is fixed.
    shapes = ({1: Dim.DYNAMIC},) if name == "plain" else ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = torch.export.export(layer, (torch.randn(7, 3, 5),), dynamic_shapes=shapes)
    if name != "plain":
        assert len(operators(program.graph)) == layer.num_layers * (1 + layer.bidirectional)
    run = program.module()
    for steps, batch in ((7, 3), (2, 9), (12, 4)):
        x = torch.randn(7 if name == "plain" else steps, batch, 5)
        for got, expected in zip(values(run(x)), values(layer(x)), strict=True):
            torch.testing.assert_close(got, expected)


def test_an_exported_model_is_saved_loaded_and_trained(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = fd.nn.LSTM(5, 6, **DROPS), fd.nn.Linear(6, 2, drop=0.5)

        def forward(self, x):
            y = self.out(self.rnn(x)[0])
            return y.mean, y.var

    model, x = Model(), torch.randn(4, 3, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({1: Dim("batch", min=2)},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    other = torch.randn(4, 8, 5)
    for run in (model, loaded):
        mean, var = run(other)
        (mean.square() + var).sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(dict(loaded.named_parameters())[name].grad, p.grad)


def test_a_layer_is_one_node_however_many_steps():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.graph)
        return graph

    layer = torch.compile(fd.nn.LSTM(5, 6, **DROPS), fullgraph=True, backend=backend)
    layer(torch.randn(50, 3, 5))
    assert len(graphs) == 1
    assert len(operators(graphs[0])) == 1
    assert len(graphs[0].nodes) < 60


def test_other_lengths_do_not_compile_for_ever():
    layer = fd.nn.RNN(5, 6, **DROPS)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for steps, batch in ((5, 2), (6, 3), (7, 4), (8, 5), (30, 17)):
        x = torch.randn(steps, batch, 5)
        torch.testing.assert_close(compiled(x)[0].var, layer(x)[0].var)
    assert counter.frame_count <= 2


# Inductor's own imports use what torch itself has deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_trains_and_predicts():
    layers = nn.ModuleList([fd.nn.RNN(5, 6, **DROPS), fd.nn.LSTM(6, 6, **DROPS), fd.nn.GRU(6, 4, **DROPS)])

    def loss(x):
        for layer in layers:
            x, _ = layer(x)
        return (x.mean.square() + x.var).sum()

    compiled, x = torch.compile(loss, fullgraph=True), torch.randn(6, 3, 5)
    found = []
    for run in (loss, compiled):
        layers.zero_grad()
        value = run(x)
        value.backward()
        found.append([value.detach(), *(p.grad for p in layers.parameters())])
    torch.testing.assert_close(*found)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), loss(x))


def test_packed_sequences_compile():
    layer = fd.nn.LSTM(5, 6, **DROPS)
    packed = pack_sequence([torch.randn(n, 5) for n in (2, 6, 4)], enforce_sorted=False)
    compiled = torch.compile(layer, backend="aot_eager")
    for got, expected in zip(compiled(packed)[1], layer(packed)[1], strict=True):
        torch.testing.assert_close(got.mean, expected.mean)
        torch.testing.assert_close(got.var, expected.var)


@pytest.mark.parametrize(("kind", "method"), [("LSTM", "mask"), ("GRU", "gaussian")])
def test_what_the_operator_does_not_serve_is_unrolled(kind, method):
    layer = getattr(fd.nn, kind)(5, 6, method=method, **DROPS)
    x = torch.randn(3, 2, 5)
    made = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]
    assert made.shape == (3, 2, 6)
    assert made.mean.isfinite().all()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["tanh", "lstm", "gru"])
def test_the_operator_keeps_the_contract_of_operators(name, keep):
    layer = LAYERS[name](dtype=torch.float64)
    given = [
        *(torch.randn(6, 5, dtype=torch.float64), None, torch.randn(2, 6, dtype=torch.float64), None),
        *([torch.randn(2, 6, dtype=torch.float64), None] if name == "lstm" else [None, None]),
        *(layer.layer_weights(0)[:3]),
        *(None, None, None),
    ]
    given = [None if t is None else t.detach().requires_grad_(keep) for t in given]
    torch.library.opcheck(operator._layer, (*given, [2], name, 0.2, 0.3, 0.0, "fast", False, False, keep))


def test_a_copy_of_a_compiled_model_learns():
    model = nn.Sequential(fd.nn.GRU(5, 6, **DROPS))
    model[0].compile(fullgraph=True, backend="aot_eager")
    twin = copy.deepcopy(model)
    x, losses = torch.randn(4, 3, 5), []
    optimiser = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(5):
        optimiser.zero_grad()
        out, _ = twin(x)
        loss = ((out.mean - 1) ** 2 + out.var).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
