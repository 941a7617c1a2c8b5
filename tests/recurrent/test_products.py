"""The product of a step equals that of matrices, packed or not."""

import pytest
import torch

import fastdropout as fd
from fastdropout.recurrent import products


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products count as large."""
    monkeypatch.setattr(products, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(products, "SMALLEST_SIDE", 1)


@pytest.mark.parametrize("steps", [1, products.FEWEST_STEPS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.usefixtures("small")
def test_a_step_is_a_matrix_product(steps: int, dtype: torch.dtype, count: int) -> None:
    weights, units = torch.randn(count, 12, 5, dtype=dtype), torch.randn(count, 7, 5, dtype=dtype)
    product = products.step_product(weights, steps, 7)
    for rows in (7, 3):  # pieces end
        found = product(units[:, :rows])
        assert len(found) == count
        for x, w, y in zip(units, weights, found, strict=True):
            torch.testing.assert_close(y, x[:rows] @ w.T)


@pytest.mark.usefixtures("small")
def test_strided_rows_and_weights() -> None:
    """The gradients of a GRU are a part of wider rows, and the backward pass turns the weights."""
    wide, weights = torch.randn(2, 7, 20), torch.randn(2, 12, 5)
    product = products.step_product(weights.transpose(1, 2), products.FEWEST_STEPS, 7)
    for x, w, y in zip(wide, weights, product(wide[:, :, 8:]), strict=True):
        torch.testing.assert_close(y, x[:, 8:] @ w)


def test_large_weights_are_packed_for_many_steps_only() -> None:
    weights = torch.randn(2, 400, 400)
    assert isinstance(products.step_product(weights, 1, 64), products._Batched)
    assert isinstance(products.step_product(weights.double(), 100, 64), products._Batched)
    assert isinstance(products.step_product(weights, 100, 16), products._Batched)
    assert isinstance(products.step_product(weights[:, :200, :200], 100, 500), products._Batched)
    packs = torch.backends.mkldnn.is_available()
    assert isinstance(products.step_product(weights, 100, 64), products._Packed) == packs


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
def test_layers_do_not_depend_on_the_packing(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = getattr(fd.nn, layer)(5, 8, drop_input=0.1, drop_hidden=0.3, bidirectional=True)
    pieces = [torch.randn(n, 5) for n in (12, 9, 4)]
    x = torch.nn.utils.rnn.pack_sequence(pieces)

    def gradients() -> list[torch.Tensor]:
        output, _ = rnn(x)
        values = [output.data.mean, output.data.var]
        loss = sum((v * torch.linspace(-1, 1, v.numel()).view_as(v)).sum() for v in values)
        return [*values, *torch.autograd.grad(loss, list(rnn.parameters()))]

    apart = gradients()
    monkeypatch.setattr(products, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(products, "SMALLEST_SIDE", 1)
    for a, b in zip(apart, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small")
def test_a_torch_without_the_operators_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert isinstance(products.step_product(torch.randn(2, 12, 5), 100, 7), products._Batched)
