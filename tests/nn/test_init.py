import pytest
import torch

from fastdropout.nn import init


def test_gaussian_has_the_variance_asked_for():
    w = init.gaussian_(torch.empty(500, 400), 0.01, torch.Generator().manual_seed(0))
    assert abs(w.var().item() / 0.01 - 1) < 0.02
    assert abs(w.mean().item()) < 1e-3


def test_sparse_keeps_nu_incoming_weights_a_unit():
    w = init.sparse_(torch.ones(30, 50), 15, torch.Generator().manual_seed(0))
    assert w.sum(1).tolist() == [15.0] * 30  # a row holds the incoming weights of a unit
    assert len({tuple(row.nonzero().flatten().tolist()) for row in w}) == 30
    assert (init.sparse_(torch.ones(3, 5), 9) == 1).all()


@pytest.mark.parametrize("radius", [0.0, 0.9, 1.2])
def test_spectral_radius_is_set(radius):
    w = init.spectral_radius_(torch.randn(40, 40), radius)
    assert abs(init.spectral_radius(w) - radius) < 1e-5


def test_spectral_radius_by_powers_of_the_matrix():
    torch.manual_seed(0)
    w = torch.randn(20, 20).double()
    power = torch.linalg.matrix_norm(torch.linalg.matrix_power(w / 5, 400)) ** (1 / 400) * 5
    assert abs(init.spectral_radius(w) / power.item() - 1) < 0.02


def test_variance_radius_decides_what_becomes_of_the_variance():
    """The linear recurrence of the variance, run: it grows above 1 and dies below."""
    torch.manual_seed(0)
    drop = 0.3
    for target, grows in ((0.95, False), (1.05, True)):
        w = torch.randn(30, 30).double()
        w *= (target / init.variance_radius(w, drop)) ** 0.5
        assert abs(init.variance_radius(w, drop) - target) < 1e-9
        v = torch.ones(30).double()
        for _ in range(300):
            v = (1 - drop) * (w**2) @ v
        assert (v.sum() > 1e3) == grows
        assert (v.sum() < 1e-3) != grows


def test_the_papers_bound_does_not_hold():
    w = torch.tensor([[1.0, 1.1], [-1.0, -1.0]], dtype=torch.float64)  # of full rank, as the paper assumes
    assert torch.linalg.matrix_rank(w) == 2
    assert init.spectral_radius(w) ** 2 == pytest.approx(0.1)
    assert init.spectral_radius(w**2) == pytest.approx(2.1)
    w = torch.randn(3000, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squared, of_squares, bound = (torch.linalg.eigvals(m).abs().amax(-1) for m in (w, w**2, w.abs()))
    assert (of_squares > squared**2).double().mean() > 1 / 3
    assert (of_squares <= bound**2 * (1 + 1e-9)).all()  # what does hold


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: init.spectral_radius_(torch.full((2, 2), float("nan")), 1.0), "finite weights, got NaN"),
        (lambda: init.spectral_radius(torch.zeros(2, 3)), r"square matrix, got shape \(2, 3\)"),
        (lambda: init.spectral_radius(torch.zeros(0, 0)), "got an empty one"),
        (lambda: init.spectral_radius_(torch.zeros(2, 2), 1.0), "spectral radius 0 cannot be scaled"),
        (
            lambda: init.spectral_radius_(torch.eye(2), float("nan")),
            "radius must be finite and at least 0, got nan",
        ),
        (lambda: init.gaussian_(torch.zeros(2), float("nan")), "var must be finite and at least 0, got nan"),
        (lambda: init.gaussian_(torch.zeros(2), -1.0), "var must be finite and at least 0, got -1.0"),
        (lambda: init.sparse_(torch.zeros(2, 2), 0), "nu must be a whole number of at least 1, got 0"),
        (lambda: init.sparse_(torch.zeros(2), 1), r"weight must be a matrix, got shape \(2,\)"),
        (lambda: init.variance_radius(torch.eye(2), 1.0), r"drop must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_refused_matrix_is_left_alone():
    w = torch.tensor([[1.0, float("inf")], [0.0, 1.0]])
    before = w.clone()
    with pytest.raises(ValueError, match="finite"):
        init.spectral_radius_(w, 1.0)
    assert torch.equal(w, before)
