import copy

import pytest
import torch

from fastdropout.optim import RMSprop, clip_grad_norm_

TARGET = torch.tensor([3.0, -1.0], dtype=torch.float64)
SCALE = torch.tensor([1.0, 10.0], dtype=torch.float64)


def loss_of(w):
    return (SCALE * (w - TARGET) ** 4).sum()


def reference(w, updates, lr, alpha, momentum, eps=1e-8):
    """The recursion written out, with the derivative by hand."""
    step, r = torch.zeros_like(w), torch.ones_like(w)
    for _ in range(updates):
        ahead = momentum * step
        g = 4 * SCALE * (w + ahead - TARGET) ** 3
        r = alpha * r + (1 - alpha) * g**2
        step = ahead - lr * g / (r + eps).sqrt()
        w = w + step
    return w


def make(groups=False, **options):
    w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = RMSprop([{"params": [w]}] if groups else [w], **options)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(w)
        loss.backward()
        return loss

    return w, optimizer, closure


@pytest.mark.parametrize(
    "options", [{"lr": 0.01, "alpha": 0.8, "momentum": 0.9}, {"lr": 0.05, "alpha": 0.9, "momentum": 0.0}]
)
@pytest.mark.parametrize("way", ["closure", "context"])
def test_is_the_recursion(options, way):
    w, optimizer, closure = make(**options)
    for _ in range(50):
        if way == "closure":
            assert optimizer.step(closure) is not None
        else:
            with optimizer.look_ahead():
                closure()
            optimizer.step()
    torch.testing.assert_close(w.detach(), reference(torch.zeros(2).double(), 50, **options))


def test_the_look_ahead_does_not_leak():
    w, optimizer, closure = make(lr=0.01, momentum=0.99)
    seen = []
    for _ in range(3):
        optimizer.step(closure)
    before = w.detach().clone()

    def spy():
        seen.append(w.detach().clone())
        return closure()

    with optimizer.look_ahead():
        spy()
    assert not torch.equal(seen[0], before)  # the gradient was taken ahead
    assert torch.equal(w, before)  # and the parameters are back, to the bit

    def broken():
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        optimizer.step(broken)
    assert torch.equal(w, before)


def test_a_gradient_taken_elsewhere_is_refused():
    _, optimizer, closure = make(lr=0.01, momentum=0.9)
    closure()
    with pytest.raises(RuntimeError, match="must be taken at the look-ahead point"):
        optimizer.step()
    optimizer.step(closure)
    with pytest.raises(RuntimeError, match="look-ahead"):  # one look-ahead is good for one step
        optimizer.step()


def test_without_momentum_a_plain_loop_works():
    w, optimizer, closure = make(lr=0.05, alpha=0.9, momentum=0.0)
    for _ in range(20):
        closure()
        optimizer.step()
    torch.testing.assert_close(w.detach(), reference(torch.zeros(2).double(), 20, 0.05, 0.9, 0.0))


def test_resumes_from_its_state_dict_to_the_bit():
    options = {"lr": 0.01, "momentum": 0.9, "groups": True}
    w, optimizer, closure = make(**options)
    for _ in range(5):
        optimizer.step(closure)
    saved, state = w.detach().clone(), copy.deepcopy(optimizer.state_dict())
    other, other_optimizer, other_closure = make(**options)
    with torch.no_grad():
        other.copy_(saved)
    other_optimizer.load_state_dict(state)
    for _ in range(5):
        optimizer.step(closure)
        other_optimizer.step(other_closure)
    assert torch.equal(w, other)


def test_groups_have_their_own_rates_and_schedulers_work():
    a, b = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    frozen = torch.nn.Parameter(torch.ones(1))
    optimizer = RMSprop([{"params": [a], "lr": 0.1}, {"params": [b, frozen], "lr": 0.0}], momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (a**2 + b**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    schedule.step()
    assert a != 1
    assert b == 1
    assert frozen == 1
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_minimises_an_ill_conditioned_valley():
    w, optimizer, closure = make(lr=0.02, alpha=0.9, momentum=0.9)
    for _ in range(400):
        optimizer.step(closure)
    assert (w - TARGET).abs().max() < 0.15


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": -1.0}, r"lr must lie in \[0, inf\), got -1.0"),
        ({"alpha": 1.0}, r"alpha must lie in \[0, 1\), got 1.0"),
        ({"momentum": 1.5}, r"momentum must lie in \[0, 1\), got 1.5"),
        ({"eps": float("nan")}, r"eps must lie in \[0, inf\), got nan"),
    ],
)
def test_bad_arguments_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        make(**options)


def test_clipping_bounds_the_norm_of_all_gradients():
    a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    a.grad, b.grad = torch.full((2,), 300.0), torch.full((3,), -400.0)
    norm = clip_grad_norm_([a, b], 225.0)
    assert norm.item() == pytest.approx((2 * 300**2 + 3 * 400**2) ** 0.5)
    assert torch.cat([a.grad, b.grad]).norm().item() == pytest.approx(225.0)
    assert (a.grad[0] / b.grad[0]).item() == pytest.approx(-0.75)
