import itertools

import pytest
import torch
from torch.autograd import gradcheck

import fastdropout as fd
from fastdropout.analysis import decompose
from fastdropout.functional import nade
from fastdropout.moments import Moments
from fastdropout.recurrent import compiler
from fastdropout.recurrent import nade as states

F, H, ROWS = 7, 5, 6
OPTIONS = {
    "dropped": {"drop_input": 0.3, "drop_hidden": 0.5},
    "sigmoid": {"drop_input": 0.3, "drop_hidden": 0.5, "nonlinearity": "sigmoid"},
    "accurate": {"drop_input": 0.2, "rule": "accurate"},
    "paper": {"rule": "paper"},
    "hidden only": {"drop_hidden": 0.4},
    "plain": {},
}


def vectors(rows=ROWS, seed=0):
    """Some with no, all and the outermost features on."""
    v = (torch.rand(rows, F, generator=torch.Generator().manual_seed(seed)) < 0.4).double()
    v[0], v[1] = 0, 1
    v[2] = torch.eye(F)[0] + torch.eye(F)[-1]
    return v


def made(seed=0, **options):
    torch.manual_seed(seed)
    model = fd.nn.NADE(F, H, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.7)
    return model


def biases(certain=False, seed=1):
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(ROWS, n, generator=g, dtype=torch.float64) for n in (H, F)]
    if certain:
        return [Moments.certain(b) for b in made]
    return [Moments(b, torch.rand(b.shape, generator=g, dtype=torch.float64)) for b in made]


def by_loop(model, v, hidden, visible):
    """The definition, a feature at a time, from the moments of sums of dropped features."""
    keep, drop = 1 - model.drop_input, model.drop_input
    w, out = model.weight_in, []
    for i in range(F):
        mean = hidden.mean + model.bias_hidden
        var = hidden.var.clone()
        for j in range(i):
            mean = mean + v[:, j, None] * keep * w[:, j]
            var = var + v[:, j, None] * keep * drop * w[:, j] ** 2
        certain = hidden.is_certain and not drop
        a = Moments.certain(mean) if certain else Moments(mean, var)
        f = fd.functional.tanh if model.nonlinearity == "tanh" else fd.functional.sigmoid
        z = fd.functional.dropout(f(a, model.rule), model.drop_hidden)
        own = model.weight_out[i]
        logit = Moments(z.mean @ own, z.var @ own**2)
        out.append(fd.functional.add_independent(logit, visible[:, i] + model.bias_visible[i]))
    return Moments.stack(out, -1)


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_states_are_the_loop_over_features(name, certain):
    model, v, (hidden, visible) = made(**OPTIONS[name]), vectors(), biases(certain)
    found, expected = model(v, hidden, visible), by_loop(model, v, hidden, visible)
    torch.testing.assert_close((found.mean, found.var), (expected.mean, expected.var), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", OPTIONS)
def test_walking_is_the_same(name):
    model, v, (hidden, visible) = made(**OPTIONS[name]), vectors(), biases()
    expected, walk = model(v, hidden, visible), model.walk(hidden, visible)
    for i in range(F):
        logit = walk.logit(i)
        torch.testing.assert_close(logit.mean, expected.mean[:, i])
        torch.testing.assert_close(logit.var, expected.var[:, i])
        walk.observe(i, v[:, i])


def test_a_feature_does_not_see_itself_nor_those_behind_it():
    model, v = made(**OPTIONS["dropped"]), vectors()
    before = model(v)
    for i in range(F):
        other = v.clone()
        other[:, i:] = 1 - other[:, i:]
        after = model(other)
        for x, y in ((after.mean, before.mean), (after.var, before.var)):  # Products round by their rows.
            torch.testing.assert_close(x[:, : i + 1], y[:, : i + 1], rtol=1e-13, atol=1e-14)
            assert i == F - 1 or (x[:, i + 1 :] - y[:, i + 1 :]).abs().max() > 1e-3


def test_without_noise_the_probabilities_of_all_vectors_add_to_one():
    model = made()
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=F)), dtype=torch.float64)
    logits = model(every)
    assert logits.is_certain
    torch.testing.assert_close((-fd.losses.bernoulli_nll(logits, every).sum(-1)).exp().sum().item(), 1.0)


def test_with_noise_they_add_to_one_too():
    """Each conditional is a distribution, whatever its logit."""
    model = made(**OPTIONS["dropped"])
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=F)), dtype=torch.float64)
    nll = fd.losses.bernoulli_nll(model(every), every).sum(-1)
    torch.testing.assert_close((-nll).exp().sum().item(), 1.0)


def drawn_logits(v, method, state, **drops):
    model = fd.nn.NADE(30, 60, method=method, rule="accurate", **drops)
    model.load_state_dict(state)
    with torch.no_grad():
        return model.train()(v.expand(20_000, 30))


def test_moments_are_those_of_masks():
    torch.manual_seed(3)
    v = (torch.rand(1, 30) < 0.4).float()
    v[0, 0] = 1
    # Nothing but hidden units is dropped: their sum has exactly these moments.
    model = fd.nn.NADE(30, 60, drop_hidden=0.5, rule="accurate")
    predicted = model(v)[0].detach()
    drawn = drawn_logits(v, "mask", model.state_dict(), drop_hidden=0.5)
    assert drawn.is_certain
    torch.testing.assert_close(drawn.mean.mean(0), predicted.mean, atol=0.003, rtol=0.01)
    torch.testing.assert_close(drawn.mean[:, 1:].var(0), predicted.var[1:], atol=1e-4, rtol=0.05)
    # Units that see the same dropped features are correlated, which their moments do not know: the logits
    # are right on average.
    model = fd.nn.NADE(30, 60, drop_input=0.3, drop_hidden=0.5, rule="accurate")
    predicted = model(v)[0].detach()
    drawn = drawn_logits(v, "mask", model.state_dict(), drop_input=0.3, drop_hidden=0.5)
    torch.testing.assert_close(drawn.mean.mean(0), predicted.mean, atol=0.01, rtol=0.05)
    assert drawn.mean.var(0).mean() == pytest.approx(predicted.var.mean().item(), rel=0.15)
    # Gaussian draws have no such correlation.
    drawn = drawn_logits(v, "gaussian", model.state_dict(), drop_input=0.3, drop_hidden=0.5)
    assert drawn.is_certain
    torch.testing.assert_close(drawn.mean[:, 1:].var(0), predicted.var[1:], rtol=0.1, atol=1e-3)


def test_masks_in_evaluation_scale_the_units():
    model = made(drop_input=0.3, drop_hidden=0.5, method="mask").eval()
    plain = made()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain.weight_in.mul_(0.7)
        plain.weight_out.mul_(0.5)
    v, (hidden, visible) = vectors(), biases()
    expected = plain(v, hidden.mean, visible.mean)
    found = model(v, hidden, visible)
    assert found.is_certain
    torch.testing.assert_close(found.mean, expected.mean)
    walk = model.train().walk(hidden.mean, visible.mean)
    torch.testing.assert_close(walk.logit(0).mean, expected.mean[:, 0])


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name):
    model, v, (hidden, visible) = made(**OPTIONS[name]), vectors(), biases()
    leaves = [hidden.mean, hidden.var, visible.mean, visible.var]
    leaves += [p.detach().clone() for p in model.parameters()]

    def run(hm, hv, vm, vv, *parameters):
        named = dict(zip(dict(model.named_parameters()), parameters, strict=True))
        out = torch.func.functional_call(model, named, (v, Moments(hm, hv), Moments(vm, vv)))
        return out.mean, out.var

    assert gradcheck(run, [x.requires_grad_() for x in leaves])


def test_samples_have_the_probabilities_of_the_vectors():
    model = made(drop_input=0.2, drop_hidden=0.3)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=F)), dtype=torch.float64)
    p = (-fd.losses.bernoulli_nll(model(every), every).sum(-1)).exp()
    drawn = model.sample((20_000,), generator=torch.Generator().manual_seed(0))
    code = (drawn @ 2 ** torch.arange(F - 1, -1, -1, dtype=torch.float64)).long()
    found = torch.bincount(code, minlength=len(every)) / 20_000
    torch.testing.assert_close(found.double(), p.detach(), atol=0.01, rtol=0)
    again = model.sample((20_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)


def test_samples_follow_the_given_biases():
    model = fd.nn.NADE(4, 3, bias=False)
    visible = torch.tensor([[50.0, -50.0, 50.0, -50.0], [-50.0, 50.0, -50.0, 50.0]])
    with torch.no_grad():
        model.weight_out.zero_()
    drawn = model.sample((5,), visible=visible)
    assert drawn.shape == (5, 2, 4)
    assert torch.equal(drawn, (visible > 0).float().expand(5, 2, 4))


def test_any_leading_shape_and_none():
    model, v = made(**OPTIONS["dropped"]), vectors()
    flat = model(v)
    assert torch.equal(model(v.view(2, 3, F)).mean, flat.mean.view(2, 3, F))
    torch.testing.assert_close(model(v[3]).mean, flat.mean[3])
    assert model(v[:0]).shape == (0, F)


def test_the_decomposition_finds_its_weights():
    model, v = made(**OPTIONS["dropped"]), vectors()
    parts = decompose(model, lambda m: fd.losses.bernoulli_nll(m(v), v).sum(-1).mean())
    fd.losses.bernoulli_nll(model(v), v).sum(-1).mean().backward()
    for name in ("weight_in", "weight_out"):
        assert parts.weights[name].decay.abs().max() > 0
        torch.testing.assert_close(parts.weights[name].gradient, model.get_parameter(name).grad)


def test_states_of_rows_without_ones():
    states = nade.States.of(torch.zeros(3, 4))
    assert states.sizes == [3]
    assert states.ones.numel() == 0
    assert (states.index == torch.arange(3)[:, None]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fd.nn.NADE(0, 3), "features must be a whole number of at least 1, got 0"),
        (lambda: fd.nn.NADE(3, 3, drop_hidden=1.0), r"drop_hidden must lie in \[0, 1\), got 1.0"),
        (lambda: fd.nn.NADE(3, 3, nonlinearity="relu"), "nonlinearity must be one of tanh, sigmoid"),
        (lambda: fd.nn.NADE(3, 3, rule="slow"), "rule must be one of"),
        (lambda: fd.nn.NADE(3, 3)(torch.zeros(2, 4)), r"v must have 3 features .* got \(2, 4\)"),
        (lambda: fd.nn.NADE(3, 3)(torch.full((2, 3), 0.5)), "v must hold only 0 and 1, got 0.5"),
        (lambda: fd.nn.NADE(3, 3)(torch.full((2, 3), torch.nan)), "v must hold only 0 and 1, got nan"),
        (lambda: fd.nn.NADE(3, 3)(torch.zeros(2, 3, dtype=torch.float64)), "dtype of the weights"),
        (
            lambda: fd.nn.NADE(3, 2)(torch.zeros(4, 3), torch.zeros(5, 2)),
            r"hidden must have shape \(4, 2\), got \(5, 2\)",
        ),
    ],
)
def test_errors_say_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rule", ["fast", "paper"])
@pytest.mark.parametrize("drops", [(0.3, 0.5), (0.0, 0.4), (0.2, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_computes_the_reference(rule, drops, dtype, monkeypatch):
    """States, and gradients of everything that enters them, for rows with 0 to all features on."""
    if compiler.status() != "built":
        pytest.skip("no C compiler")
    torch.manual_seed(0)
    model = fd.nn.NADE(9, 33, drop_input=drops[0], drop_hidden=drops[1], rule=rule, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.7)
    v = (torch.rand(50, 9) < torch.linspace(0, 1.1, 50)[:, None]).to(dtype)
    hidden, visible = (
        Moments(torch.randn(50, n, dtype=dtype), torch.rand(50, n, dtype=dtype)) for n in (33, 9)
    )
    found = []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(states, "supports", lambda *_: False)
        leaves = [x.clone().requires_grad_() for x in (hidden.mean, hidden.var)]
        out = model(v, Moments(*leaves), visible)
        assert states.supports(hidden, model.weight_in, nade.Options(*drops)) is kernel
        weight = torch.linspace(-1, 1, out.mean.numel(), dtype=dtype).view_as(out.mean)
        loss = (out.mean * weight).sum() + (out.var * weight.flip(0)).sum()
        gradients = torch.autograd.grad(loss, [*leaves, model.weight_in, model.weight_out])
        found.append([out.mean, out.var, *gradients])
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    for fast, reference in zip(*found, strict=True):
        torch.testing.assert_close(fast, reference, **close)
