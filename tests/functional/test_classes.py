"""Class losses against exact integration, sampling and torch's own."""

import functools
import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from fastdropout import Moments
from fastdropout import functional as fd
from fastdropout.functional import categorical, gumbel, losses, quadrature

LEVELS = 8
VARIANCES = [0.0, 1e-3, 0.1, 1.0, 4.0, 25.0, 100.0, "mixed"]
CLASSES = [2, 10, 100, 1_000, 10_000]


def exact_gumbel(x, v):
    """1 - F and its slope by the trapezoid rule, fine enough for a variance of 100."""
    at = Moments(*torch.broadcast_tensors(x, v))
    f = quadrature.expectation(lambda b: -torch.expm1(-torch.exp(b.clamp(max=40))), at, step=0.02, reach=11)
    return f, quadrature.expectation(
        lambda b: torch.exp(b - torch.exp(b.clamp(max=40))), at, step=0.02, reach=11
    )


def few_levels(classes, variance, seed=0):
    """At most eight distinct logits, each `count` times: exact integration is cheap for any number."""
    g = torch.Generator().manual_seed(seed)
    n = min(classes, LEVELS)
    mean = torch.randn(n, generator=g).double() * 2
    mixed = torch.tensor([0, 100, 1, 4, 9, 16, 25, 0.1]).double()[:n]
    var = mixed if variance == "mixed" else torch.full((n,), variance).double()
    count = torch.full((n,), classes // n)
    count[0] += classes - count.sum()
    return mean, var, count


@functools.cache
def exact(classes, variance):
    mean, var, count = few_levels(classes, variance)
    return quadrature.categorical(Moments(mean, var), count)


def test_the_integrand_agrees_with_quadrature():
    x = torch.linspace(-40, 12, 131).double()[:, None]
    v = torch.tensor([0, 1e-3, 0.02, 0.05, 0.1, 0.3, 1, 5, 25, 100]).double()
    f, slope = exact_gumbel(x, v)
    counts = f > 1e-9  # below, the reference itself is rounding
    got, in_x, _ = gumbel.complement_and_slopes(x, v)
    assert ((got - f) / f)[counts].abs().max() < 3e-4
    assert ((in_x - slope) / f)[counts].abs().max() < 6e-4
    torch.testing.assert_close(gumbel.complement(x, v), got, rtol=0, atol=1e-14)
    body = slope > 1e-3
    assert (gumbel.log_slope(x, v).exp() - in_x).abs()[body].max() < 1e-12


def test_slopes_of_the_integrand_are_those_of_its_value():
    x = torch.linspace(-20, 4, 49).double()[:, None].expand(-1, 8).clone().requires_grad_()
    v = (
        torch.tensor([0.0, 0.01, 0.05, 0.15, 0.3, 2, 40, 100])
        .double()
        .expand(49, -1)
        .clone()
        .requires_grad_()
    )
    by_autograd = torch.autograd.grad(gumbel.complement(x, v).sum(), (x, v))
    _, in_x, in_v = gumbel.complement_and_slopes(x, v)
    # Autograd differentiates the asymptotic series of the tail, which is off by 6e-6.
    torch.testing.assert_close(in_x, by_autograd[0], rtol=0, atol=1e-7)
    torch.testing.assert_close(in_v, by_autograd[1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_integrand_is_finite_everywhere(dtype):
    x = torch.cat([torch.zeros(1), torch.logspace(-6, 6, 61)])
    x = torch.cat([-x, x]).to(dtype)[:, None]
    v = torch.cat([torch.zeros(1), torch.tensor([1e-45, 1e-38]), torch.logspace(-30, 12, 99)]).to(dtype)
    f, in_x, in_v = gumbel.complement_and_slopes(x, v)
    assert all(torch.isfinite(t).all() for t in (f, in_x, in_v, gumbel.log_slope(x, v)))
    assert f.min() >= 0
    assert f.max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("classes", "variance"), list(itertools.product(CLASSES, VARIANCES)))
def test_class_losses_agree_with_exact_integration(classes, variance, dtype):
    mean, var, count = few_levels(classes, variance)
    each, lse = exact(classes, variance)
    level = torch.repeat_interleave(torch.arange(len(mean)), count)
    first = torch.cat([torch.zeros(1).long(), count.cumsum(0)[:-1]])
    x = Moments(mean[level].to(dtype), var[level].to(dtype))
    nll = torch.stack([losses.categorical_nll(x, i) for i in first]).double()
    # What `categorical` states; at a variance of 100 still less than 1 % of losses of 1 to 30.
    error = 6e-4 if variance != "mixed" and variance <= 25 else 6e-3 if classes <= 1000 else 4e-2
    assert (nll + each).abs().max() < error
    expected = torch.stack([losses.expected_categorical_nll(x, i) for i in first]).double()
    assert (expected - (lse - mean)).abs().max() < error
    assert (expected - nll).min() > -error  # Jensen's inequality


@pytest.mark.parametrize(("classes", "draws"), [(10, 400_000), (100, 100_000), (1_000, 20_000)])
@pytest.mark.parametrize("variance", [0.5, 4.0, 25.0])
def test_class_losses_agree_with_sampling(classes, draws, variance):
    torch.manual_seed(5)
    x = Moments(torch.randn(classes), torch.rand(classes) * 2 * variance)
    target = torch.tensor([0, classes // 2])
    sampled = x.sample((draws,)).log_softmax(-1)[:, target].double()
    rows = x.expand(2, classes)
    p = sampled.exp()
    got = losses.categorical_nll(rows, target).double()
    assert ((got + p.mean(0).log()).abs() < 1e-3 + 5 * p.std(0) / p.mean(0) / draws**0.5).all()
    got = losses.expected_categorical_nll(rows, target).double()
    assert ((got + sampled.mean(0)).abs() < 1e-3 + 5 * sampled.std(0) / draws**0.5).all()


@pytest.mark.parametrize("classes", [2, 10, 300])
@pytest.mark.parametrize("variance", [0.03, 1.0, 9.0, 64.0])
def test_all_classes_at_once_are_a_distribution(classes, variance):
    torch.manual_seed(6)
    x = Moments(torch.randn(3, classes).double(), torch.rand(3, classes).double() * variance)
    together = categorical.log_expected_softmax(x)
    assert (together.exp().sum(-1) - 1).abs().max() < 3e-4
    one_by_one = [categorical.log_expected_softmax(x, index=torch.full((3,), k)) for k in range(classes)]
    torch.testing.assert_close(together, torch.stack(one_by_one, -1))
    across = categorical.log_expected_softmax(x.transpose(0, 1), dim=0)
    torch.testing.assert_close(across, together.T)
    # d E[log S] / d E[a_k] = E[softmax(a)_k]
    mean = x.mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(categorical.expected_logsumexp(Moments(mean, x.var)).sum(), mean)
    assert (slope - together.exp()).abs().max() < 3e-4


def test_chunks_do_not_show(monkeypatch):
    x = Moments(torch.randn(7, 50).double(), torch.rand(7, 50).double())

    def values(m, v):
        y = Moments(m, v)
        return categorical.expected_logsumexp(y).sum() + (categorical.log_expected_softmax(y) * x.mean).sum()

    mean, var = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    whole = values(mean, var)
    slopes = torch.autograd.grad(whole, (mean, var))
    for chunk in (categorical.NODES * 11, categorical.NODES * 120):
        monkeypatch.setattr(categorical, "_CHUNK", chunk)
        parts = values(mean, var)
        torch.testing.assert_close(parts, whole)
        for a, b in zip(torch.autograd.grad(parts, (mean, var)), slopes, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 0.05, 3.0, 40.0])
def test_class_loss_gradients(expected, soft, scale):
    torch.manual_seed(7)
    mean = (torch.randn(2, 4).double() * 2).requires_grad_()
    var = (torch.rand(2, 4).double() * scale + scale / 10).requires_grad_()
    target = torch.rand(2, 4).double() if soft else torch.tensor([0, 3])

    def loss(m, v):
        return losses.cross_entropy(Moments(m, v), target, reduction="none", expected=expected)

    # The nodes move with the logits and the gradient takes them as fixed: it is the quadrature of the
    # gradient, as good as the value, not the gradient of the quadrature.
    assert gradcheck(loss, (mean, var), eps=scale * 1e-2 if scale < 1e-3 else 1e-6, atol=2e-4)
    if scale > 1e-3:
        assert gradgradcheck(loss, (mean, var), atol=3e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("expected", [False, True])
def test_class_losses_are_stable_far_out_and_at_zero_variance(expected, dtype):
    rows = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [-300.0, 50.0, 49.0]], dtype=dtype)
    for variance in (0.0, 1e-38, 1e-12, 1.0, 100.0, 1e6):
        for target in range(3):
            mean, var = rows.clone().requires_grad_(), torch.full_like(rows, variance).requires_grad_()
            index = torch.full((3,), target)
            loss = losses.cross_entropy(Moments(mean, var), index, reduction="none", expected=expected)
            gradients = torch.autograd.grad(loss.sum(), (mean, var))
            assert torch.isfinite(loss).all()
            assert all(torch.isfinite(g).all() for g in gradients)
            if variance < 1e-10:
                torch.testing.assert_close(loss, F.cross_entropy(rows, index, reduction="none"))


def test_a_masked_class_takes_no_part():
    mean = torch.tensor([[0.3, -math.inf, 1.0], [0.3, 1.0, -math.inf]], requires_grad=True)
    var = torch.tensor([[1.0, 0.0, 2.0], [1.0, 2.0, 0.0]], requires_grad=True)
    kept = Moments(torch.tensor([0.3, 1.0]), torch.tensor([1.0, 2.0])).expand(2, 2)
    target = torch.tensor([0, 0])
    for loss in (losses.categorical_nll, losses.expected_categorical_nll):
        value = loss(Moments(mean, var), target)
        torch.testing.assert_close(value, loss(kept, target))
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(value.sum(), (mean, var)))
    assert categorical.log_expected_softmax(Moments(mean, var))[0, 1] < -9e3


@pytest.mark.parametrize("shape", [(5,), (7, 5), (3, 5, 4, 2)])
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("expected", [False, True])
def test_conventions_are_those_of_torch(shape, certain, expected):
    torch.manual_seed(8)
    logits = torch.randn(shape).double() * 3
    x = Moments.certain(logits) if certain else Moments(logits, torch.zeros_like(logits))
    index = torch.randint(5, shape[:1] * (len(shape) > 1) + shape[2:])
    if index.ndim:
        index.view(-1)[0] = -1
    probabilities = torch.rand(shape).double()
    for target, weight, reduction, smoothing in itertools.product(
        (index, probabilities), (None, torch.rand(5).double()), ("none", "mean", "sum"), (0.0, 0.1)
    ):
        options = (weight, -1, reduction, smoothing)
        torch.testing.assert_close(
            losses.cross_entropy(x, target, *options, expected=expected),
            F.cross_entropy(logits, target, weight, None, -1, None, reduction, smoothing),
        )


def test_smoothed_labels_of_random_logits_are_soft_targets():
    x = Moments(torch.randn(6, 5).double(), torch.rand(6, 5).double() * 4)
    index = torch.randint(5, (6,))
    soft = F.one_hot(index, 5).double() * 0.8 + 0.04
    for expected in (False, True):
        smoothed = losses.cross_entropy(x, index, label_smoothing=0.2, expected=expected)
        torch.testing.assert_close(smoothed, losses.cross_entropy(x, soft, expected=expected))


def test_half_precision_and_empty_batches():
    x = Moments(torch.randn(4, 6), torch.rand(4, 6))
    target = torch.tensor([0, 5, 2, 2])
    half = losses.cross_entropy(x.to(torch.bfloat16), target)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), losses.cross_entropy(x, target), rtol=0.02, atol=0.02)
    empty = losses.cross_entropy(x[:0], target[:0], reduction="none")
    assert empty.shape == (0,)
    assert losses.cross_entropy(x[:, :1], torch.zeros(4).long()) == 0


# Total variation of the means and the largest relative error of the summed variance, for logit variances
# 1, 4, 16.
SOFTMAX = {
    "fast": [(0.02, 0.25), (0.08, 0.6), (0.35, 0.6)],
    "accurate": [(3e-4, 0.25), (3e-4, 0.6), (3e-4, 0.6)],
    "paper": [(0.25, 20.0), (0.7, 20.0), (0.85, 20.0)],
}


@pytest.mark.parametrize("classes", [2, 5, 10, 64])
@pytest.mark.parametrize("rule", SOFTMAX)
@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_softmax_agrees_with_sampling(rule, classes, scale):
    torch.manual_seed(9)
    for variance, (mean_error, var_error) in zip((1.0, 4.0, 16.0), SOFTMAX[rule], strict=True):
        x = Moments(torch.randn(classes) * scale, torch.rand(classes) * 2 * variance)
        draws = 2_000_000 // classes
        p = x.sample((draws,)).softmax(-1).double()
        y = fd.softmax(x, rule=rule)
        noise = (p.std(0) / draws**0.5).sum().item()
        assert (y.mean - p.mean(0)).abs().sum() / 2 < mean_error + 3 * noise
        assert (y.var.sum() / p.var(0).sum() - 1).abs() < var_error
        torch.testing.assert_close(y.mean.sum(), torch.tensor(1.0), rtol=0, atol=5e-4)


@pytest.mark.parametrize("classes", [2, 10, 64])
@pytest.mark.parametrize(("rule", "errors"), [("fast", (0.02, 0.1, 1.0)), ("accurate", (6e-4, 6e-4, 6e-4))])
def test_log_softmax_agrees_with_sampling(classes, rule, errors):
    torch.manual_seed(10)
    for variance, error in zip((0.3, 1.0, 4.0), errors, strict=True):
        x = Moments(torch.randn(classes) * 2, torch.rand(classes) * 2 * variance)
        log_p = x.sample((2_000_000 // classes,)).log_softmax(-1).double()
        y = fd.log_softmax(x, rule=rule)
        assert ((y.mean - log_p.mean(0)).abs() < error + 5 * log_p.std(0) / len(log_p) ** 0.5).all()
        assert (y.var.sum() / log_p.var(0).sum() - 1).abs() < 0.15


@pytest.mark.parametrize("rule", SOFTMAX)
@pytest.mark.parametrize("function", [fd.softmax, fd.log_softmax])
def test_softmax_of_certain_logits_is_plain(rule, function):
    x = torch.randn(4, 6) * 10
    plain = getattr(torch, function.__name__)(x, -1)
    for moments in (Moments.certain(x), Moments(x, torch.zeros_like(x))):
        y = function(moments, rule=rule)
        torch.testing.assert_close(y.mean, plain)
        assert y.var.abs().max() < 1e-12
    for dim in (0, 1, -1):
        z = Moments(torch.randn(3, 4, 5).double(), torch.rand(3, 4, 5).double())
        along_last = function(z.rearrange(lambda t, dim=dim: t.movedim(dim, -1)), rule=rule)
        torch.testing.assert_close(function(z, dim, rule).var.movedim(dim, -1), along_last.var)


@pytest.mark.parametrize("rule", ["fast", "accurate"])
@pytest.mark.parametrize("function", [fd.softmax, fd.log_softmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_is_stable(rule, function, dtype):
    logits = torch.tensor([[0.3, -math.inf, 1.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [60.0, 0.0, -60.0]])
    for variance in (0.0, 1e-38, 1e-12, 1.0, 100.0, 1e6):
        mean = logits.to(dtype).requires_grad_()
        var = torch.full_like(mean, variance)
        var[0, 1] = 0
        var.requires_grad_()
        y = function(Moments(mean, var), rule=rule)
        masked = torch.zeros(4, 3, dtype=torch.bool)
        masked[0, 1] = function is fd.log_softmax
        for value in (y.mean.masked_fill(masked, 0), y.var):
            assert torch.isfinite(value).all()
            for g in torch.autograd.grad(value.sum(), (mean, var), retain_graph=True):
                assert torch.isfinite(g).all()
        assert (y.var >= 0).all()


@pytest.mark.parametrize("rule", SOFTMAX)
def test_softmax_gradients(rule):
    torch.manual_seed(11)
    mean = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    var = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)

    def values(m, v):
        y, z = fd.softmax(Moments(m, v), rule=rule), fd.log_softmax(Moments(m, v), rule=rule)
        return y.mean, y.var, z.mean, z.var

    assert gradcheck(values, (mean, var), atol=2e-4 if rule == "accurate" else 1e-5)
    if rule != "accurate":
        assert gradgradcheck(values, (mean, var))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, t: losses.cross_entropy(x, t, reduction="max"), "one of none, mean, sum, got 'max'"),
        (lambda x, t: losses.cross_entropy(x, t, label_smoothing=2.0), r"must lie in \[0, 1\], got 2.0"),
        (lambda x, t: losses.cross_entropy(x, t + 5), r"target must lie in \[0, 4\), got 5"),
        (lambda x, t: losses.cross_entropy(x, t - 2), r"target must lie in \[0, 4\), got -2"),
        (lambda x, t: losses.cross_entropy(x, t[:1]), r"target must have shape \(2,\), got \(1,\)"),
        (lambda x, t: losses.cross_entropy(x, t.int()), "class indices of torch.int64, got torch.int32"),
        (
            lambda x, t: losses.cross_entropy(x, t, torch.ones(3)),
            r"weight must have shape \(4,\), got \(3,\)",
        ),
        (
            lambda x, t: losses.cross_entropy(x, torch.ones(2, 3)),
            r"shape of the logits, \(2, 4\), got \(2, 3\)",
        ),
        (lambda x, t: losses.cross_entropy(x[0, 0], t[0]), r"dimension of classes, got shape \(\)"),
        (lambda x, t: categorical.expected_logsumexp(x[0, 0]), r"dimension of classes, got .* shape \(\)"),
    ],
)
def test_bad_input_says_what_allowed_and_got(call, says):
    with pytest.raises(ValueError, match=says):
        call(Moments(torch.zeros(2, 4), torch.ones(2, 4)), torch.tensor([0, 0]))
