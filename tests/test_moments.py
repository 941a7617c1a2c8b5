import copy
import pickle

import numpy as np
import pytest
import torch

from fastdropout import Moments
from fastdropout.moments import as_moments

X = Moments(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) / 10)


def test_shape_device_and_dtype_follow():
    assert (X.shape, X.ndim, X.dtype, X.device.type) == ((2, 3), 2, torch.float32, "cpu")
    assert X.to(torch.float64).var.dtype == torch.float64
    assert X.to("meta").mean.is_meta
    assert X.size(1) == X.size()[1] == 3


def test_indexing_stacking_and_reshaping_are_those_of_tensors():
    for change in (
        lambda t: t[0],
        lambda t: t[:, 1:],
        lambda t: t[..., None],
        lambda t: t[torch.tensor([1, 0])],
        lambda t: t.reshape(3, 2),
        lambda t: t.transpose(0, 1),
        lambda t: t.permute(1, 0),
        lambda t: t.flatten(),
        lambda t: t.unsqueeze(1).squeeze(1).expand(2, 3),
        lambda t: t.detach().clone().contiguous().double().float().cpu().view(6),
    ):
        y = change(X)
        assert torch.equal(y.mean, change(X.mean))
        assert torch.equal(y.var, change(X.var))
    assert torch.equal(Moments.stack([X, X], 1).var, torch.stack([X.var, X.var], 1))
    assert torch.equal(Moments.cat([X, X], -1).mean, torch.cat([X.mean, X.mean], -1))
    assert torch.equal(torch.stack([X, X], dim=1).var, torch.stack([X.var, X.var], 1))
    assert torch.equal(torch.cat((X, X.mean)).var, torch.cat([X.var, torch.zeros(2, 3)]))
    assert len(X) == 2
    assert X.numel() == 6


@pytest.mark.parametrize("x", [X, Moments.certain(X.mean)], ids=["random", "certain"])
@pytest.mark.parametrize(
    "parts",
    [
        lambda t: t.unbind(),
        lambda t: t.unbind(-1),
        lambda t: t.split(2, 1),
        lambda t: t.split([1, 2], dim=-1),
        lambda t: t.chunk(2, -1),
        lambda t: t.chunk(5),
    ],
    ids=["unbind", "unbind last", "split", "split sizes", "chunk", "chunk fewer"],
)
def test_parts_are_those_of_tensors(x, parts):
    for got, mean, var in zip(parts(x), parts(x.mean), parts(x.var), strict=True):
        assert torch.equal(got.mean, mean)
        assert torch.equal(got.var, var)
        assert got.is_certain == x.is_certain


def test_conversions():
    assert (X.half().dtype, X.bfloat16().var.dtype) == (torch.float16, torch.bfloat16)
    assert X[None, :, None].squeeze().shape == (2, 3)
    assert X[None, :, None].squeeze(0).shape == (2, 1, 3)
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):  # torch's own words
            X.cuda()


@pytest.mark.parametrize("options", [{}, {"dim": 1}, {"dim": -2, "keepdim": True}, {"dim": (0, 1)}], ids=str)
def test_the_sum_of_independent_elements(options):
    total = X.sum(**options)
    assert torch.equal(total.mean, X.mean.sum(**options))
    assert torch.equal(total.var, X.var.sum(**options))
    assert Moments.certain(X.mean).sum(**options).is_certain
    torch.manual_seed(0)
    drawn = X.sample((200_000,))
    if options == {}:
        torch.testing.assert_close(drawn.sum((1, 2)).var(), total.var, rtol=0.02, atol=0)


def test_unpacking_does_not_split_a_batch_of_two():
    with pytest.raises(TypeError, match=r"take x\.mean and x\.var, or x\.unbind\(dim\)"):
        _mean, _var = X
    with pytest.raises(TypeError, match="iterated over"):
        list(X)


def test_they_are_not_one_array():
    for convert in (np.asarray, np.array, lambda x: np.asarray(x, dtype=object)):
        with pytest.raises(TypeError, match=r"Moments are not one array: take x\.mean\.numpy\(\)"):
            convert(X)


def test_certain_has_zero_variance_and_mixes_with_random():
    c = Moments.certain(torch.ones(2, 3))
    assert c.is_certain
    assert torch.equal(c.var, torch.zeros(2, 3))
    assert c[0].is_certain
    joined = Moments.cat([c, X])
    assert not joined.is_certain
    assert torch.equal(joined.var[:2], torch.zeros(2, 3))
    assert Moments.stack([c, c]).is_certain


def test_arithmetic_with_plain_values_is_exact():
    torch.manual_seed(0)
    x = Moments(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    scale = torch.tensor([2.0, -3.0])
    draws = x.sample((400_000,))
    for got, sampled in (
        (x * scale + 1, draws * scale + 1),
        (1 - x / 2, 1 - draws / 2),
        (scale * -x, scale * -draws),
        (torch.ones(2) + x - scale, 1 + draws - scale),
    ):
        torch.testing.assert_close(got.mean, sampled.mean(0), atol=0.05, rtol=0.01)
        torch.testing.assert_close(got.var, sampled.var(0), atol=0.05, rtol=0.01)
    assert (Moments.certain(scale) * 2 + 1).is_certain


def test_broadcasting_keeps_the_variance_in_shape():
    y = Moments(torch.zeros(3), torch.ones(3)) + torch.zeros(2, 3)
    assert y.shape == y.var.shape == (2, 3)


@pytest.mark.parametrize(
    "operate", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b]
)
def test_operators_of_two_random_variables_refuse(operate):
    with pytest.raises(TypeError, match=r"depends on their correlation: call functional\.\w+_independent"):
        operate(X, X)
    with pytest.raises(TypeError, match="takes a tensor or a number, got list"):
        operate(X, [1])


def test_functions_of_torch_say_where_to_go():
    with pytest.raises(TypeError, match="tanh does not take Moments: see"):
        torch.tanh(X)
    with pytest.raises(TypeError, match="linear does not take Moments"):
        torch.nn.Linear(3, 2)(X)
    with pytest.raises(TypeError, match="Moments"):
        torch.ones(2, 3) / X


def test_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot be changed"):
        X.mean = torch.zeros(2, 3)
    with pytest.raises(AttributeError):
        X.note = 1


@pytest.mark.parametrize(
    ("mean", "var", "says"),
    [
        (torch.zeros(2), torch.tensor([0.0, -0.1]), "var must be at least 0, got -0.1"),
        (torch.zeros(2), torch.tensor([0.0, float("nan")]), "var must be at least 0, got nan"),
        (torch.zeros(2), torch.zeros(3), r"var must have the shape of mean, \(2,\), got \(3,\)"),
        (torch.zeros(2), torch.zeros(2).double(), "dtype of mean, torch.float32, got torch.float64"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "device of mean, cpu, got meta"),
        (
            torch.zeros(2).long(),
            torch.zeros(2),
            "mean must be a floating-point tensor, got a tensor of torch.int64",
        ),
        (torch.zeros(2), 0.0, "var must be a floating-point tensor, got float"),
    ],
)
def test_what_does_not_fit_is_refused(mean, var, says):
    with pytest.raises(ValueError, match=says):
        Moments(mean, var)


def test_certain_refuses_integers():
    with pytest.raises(ValueError, match=r"floating-point tensor, got a tensor of torch\.int64"):
        Moments.certain(torch.zeros(2).long())


@pytest.mark.parametrize("x", [0.5, [0.5], np.ones(2), None], ids=str)
def test_other_things_are_not_taken_for_values(x):
    with pytest.raises(TypeError, match=r"expected Moments or a floating-point tensor, got \w+"):
        as_moments(x)


@pytest.mark.parametrize("x", [X, Moments.certain(X.mean)], ids=["random", "certain"])
def test_copies_and_pickles(x):
    for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(y.mean, x.mean)
        assert torch.equal(y.var, x.var)
        assert y.is_certain == x.is_certain


def test_is_a_pytree_for_torch_func():
    def energy(x):
        return (x.mean**2 * x.var).sum()

    gradient = torch.func.grad(energy)(X)
    assert torch.equal(gradient.mean, 2 * X.mean * X.var)
    assert torch.equal(gradient.var, X.mean**2)
    mapped = torch.func.vmap(lambda x: Moments(x.mean, x.var) * 2)(X)
    assert torch.equal(mapped.var, X.var * 4)


def test_compiles_in_one_graph():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        return Moments(x.mean * 2, x.var + 1)[0] * 3

    y = step(X)
    assert torch.equal(y.mean, X.mean[0] * 6)
    assert torch.equal(y.var, (X.var[0] + 1) * 9)


def test_sampling_passes_gradients_also_at_zero_variance():
    var = torch.tensor([0.0, 4.0], requires_grad=True)
    draws = Moments(torch.zeros(2), var).sample((1000,), torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((draws**2).mean(0).sum(), var)
    assert torch.isfinite(gradient).all()
    assert (draws[:, 0] == 0).all()
    # E[draw^2] = V, so its derivative is 1.
    assert abs(gradient[1].item() - 1) < 0.15


def test_old_names_work_until_the_next_version():
    with pytest.warns(DeprecationWarning, match=r"Moments\.map is now Moments\.rearrange"):
        y = X.map(lambda t: t.flip(0))
    assert torch.equal(y.var, X.var.flip(0))
    old = pickle.dumps(X, protocol=2).replace(b"unchecked_moments", b"moments")
    with pytest.warns(DeprecationWarning, match="fastdropout.moments.moments is now"):
        assert torch.equal(pickle.loads(old).var, X.var)
