"""Every figure, made small: drawn from what is saved beside it, for light and dark."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from fastdropout.errors import FastdropoutError
from fastdropout.moments import unchecked_moments
from fastdropout.music.cli import main
from fastdropout.music.study import gallery, loss_fields, mask_accuracy, radii, weight_noise_equivalence
from fastdropout.music.study.problems import TwoWeights, problems
from fastdropout.music.training.build import NoteRNN
from fastdropout.nn import RNN, Linear, NoisyLinear

NAMES = [e.name for e in gallery.exhibits()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("figures")
    heard = []
    before = torch.get_rng_state()
    written = gallery.make_all(place, lambda done, text: heard.append((done, text)), quick=True)
    assert torch.equal(torch.get_rng_state(), before)
    return place, written, heard


def test_every_figure_is_there_in_both_colours(made):
    place, written, _ = made
    for name in NAMES:
        for suffix in (".npz", ".svg", ".png", "-dark.svg", "-dark.png"):
            assert place / f"{name}{suffix}" in written
            assert (place / f"{name}{suffix}").stat().st_size > 500
        ET.fromstring((place / f"{name}.svg").read_bytes())
        assert (place / f"{name}.png").read_bytes() != (place / f"{name}-dark.png").read_bytes()
    text = (place / "captions.md").read_text()
    assert text.count("## ") == len(NAMES)
    assert "nan" not in text.lower().split()


def test_progress_only_grows(made):
    heard = [done for done, _ in made[2]]
    assert heard[0] == 0
    assert heard[-1] == 1
    assert heard == sorted(heard)


@pytest.mark.parametrize("exhibit", gallery.exhibits(), ids=lambda e: e.name)
def test_figures_are_drawn_from_the_saved_numbers_alone(made, exhibit):
    place = made[0]
    values = gallery.load(place / f"{exhibit.name}.npz")
    again = gallery.render(exhibit, values, gallery.THEMES[0], "svg")
    assert again == (place / f"{exhibit.name}.svg").read_bytes()


def test_the_command_makes_the_chosen_ones(tmp_path, capsys):
    assert main(["figures", "fields", "weight-noise", "-o", str(tmp_path / "new" / "here"), "--quick"]) == 0
    assert {p.stem for p in (tmp_path / "new" / "here").glob("*.npz")} == {"fields", "weight-noise"}
    assert "captions.md" in capsys.readouterr().out
    assert main(["figures", "fielts", "-o", str(tmp_path)]) == 2
    assert "figures must be among fields, " in capsys.readouterr().err
    with pytest.raises(FastdropoutError, match="got nothing"):
        gallery.make_all(tmp_path, only=["nothing"])


def test_the_fields_have_their_known_optima():
    values = loss_fields.measure(gallery.Workshop(False, lambda done, text: None))
    assert not values["squared_by_var"].any()
    mean, var = np.meshgrid(values["mean"], values["var"])
    # Gaussian: delta = (1 - error^2 / V) / (2 V)
    by_hand = (1 - (mean - 0.2) ** 2 / var) / (2 * var)
    np.testing.assert_allclose(values["gaussian_by_var"], by_hand, rtol=1e-4, atol=1e-6)
    # Bernoulli: with little variance the optimum is the logit of the target, and moves left with more.
    assert values["bernoulli_best_mean"][0] == pytest.approx(np.log(0.2 / 0.8), abs=0.06)
    assert values["bernoulli_best_mean"][-1] < -2


def test_the_verdict_on_radii_follows_the_numbers():
    fast, plain, gentle = radii.KINDS
    others = {plain: (9, 30, 9, 0.1), gentle: (40, 30, 40, 30.0)}
    rising = radii.verdict({fast: radii.shape(np.linspace(1.2, 12, 30)[None]), **others}, 1.2)
    assert "does not fall" in rising
    assert "has not settled" in rising
    assert "plain: stuck, at 0.75 times" in rising
    assert "plain, gentle steps: not stuck" in rising
    bump = np.concatenate([np.linspace(1.2, 12, 10), np.linspace(12, 9, 10), np.full(20, 9.0)])
    text = radii.verdict({fast: radii.shape(bump[None]), **others}, 1.2)
    assert "it does fall" in text
    assert "and it settles" in text
    near = radii.verdict(
        {fast: radii.shape(bump[None]), plain: (1.5, 40, 1.5, 12.0), gentle: others[plain]}, 1.2
    )
    assert "plain: stuck, at 0.17 times" in near


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.7])
def test_fast_dropout_is_a_weight_noise_for_all_inputs(drop):
    """E[w'] = keep w, V[w'] = keep drop w^2: against the paper, the same for every input."""
    torch.manual_seed(0)
    x = unchecked_moments(torch.randn(50, 6, dtype=torch.float64), torch.rand(50, 6, dtype=torch.float64))
    keep = 1 - drop
    needed = weight_noise_equivalence.needed_variance(x, drop, keep)
    torch.testing.assert_close(needed, torch.full_like(needed, keep * drop))
    fast = Linear(6, 4, drop=drop, dtype=torch.float64)
    noisy = NoisyLinear(6, 4, dtype=torch.float64)
    with torch.no_grad():
        noisy.weight.copy_(keep * fast.weight)
        noisy.weight_log_std.copy_(0.5 * torch.log(keep * drop * fast.weight**2))
        noisy.bias.copy_(fast.bias)
        noisy.bias_log_std.fill_(-40.0)
    torch.testing.assert_close(fast(x).mean, noisy(x).mean)
    torch.testing.assert_close(fast(x).var, noisy(x).var)


def test_with_the_printed_scale_no_weight_noise_fits():
    torch.manual_seed(0)
    x = unchecked_moments(torch.randn(200, 6, dtype=torch.float64), torch.rand(200, 6, dtype=torch.float64))
    w = torch.randn(6, dtype=torch.float64)
    for drop in (0.2, 0.8):
        wanted, found = weight_noise_equivalence.fit(x, w, drop, scale=drop)
        assert ((wanted - found).abs().mean() / wanted.mean()) > 0.02
        wanted, found = weight_noise_equivalence.fit(x, w, drop, scale=1 - drop)
        torch.testing.assert_close(wanted, found)
    assert weight_noise_equivalence.needed_variance(x, 0.8, 0.8).min() < 0


def test_a_recurrent_network_under_fast_dropout_is_one_of_weight_noise():
    torch.manual_seed(1)
    options = {"dtype": torch.float64}
    fast = RNN(3, 4, drop_input=0.2, drop_hidden=0.4, **options)
    noisy = RNN(3, 4, weight_noise=True, **options)
    with torch.no_grad():
        for name, drop in (("weight_ih_l0", 0.2), ("weight_hh_l0", 0.4)):
            w = getattr(fast, name)
            getattr(noisy, name).copy_((1 - drop) * w)
            getattr(noisy, f"{name}_log_std").copy_(0.5 * torch.log((1 - drop) * drop * w**2))
        for name in ("bias_ih_l0", "bias_hh_l0"):
            getattr(noisy, name).copy_(getattr(fast, name))
            getattr(noisy, f"{name}_log_std").fill_(-40.0)
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    for one, other in zip(fast(x), noisy(x), strict=True):
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.var, other.var)


def test_the_two_weights_end_where_they_should():
    net = TwoWeights(decay=0.05, drop=0.3)
    starts = torch.tensor([[2.0, 2.0], [-0.5, -1.0]], dtype=torch.float64)
    ends = {m: net.descend(m, starts, 700, 700)[0][-1] for m in ("plain", "weight decay")}
    path, far, left = net.descend("fast dropout", starts, 100, 100, most=500)
    assert left < 1e-6
    assert (far.norm(dim=1) > 2 * path[-1].norm(dim=1)).all()  # the optimum lies at the end of a long valley
    torch.testing.assert_close(
        ends["plain"], torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64), atol=0.05, rtol=0
    )
    assert (ends["weight decay"].norm(dim=1) < 1.5).all()


def test_the_first_step_over_all_masks_is_that_over_drawn_ones():
    torch.manual_seed(0)
    model = NoteRNN(88, 6, drop_input=0.3, drop_hidden=0.5, drop_output=0.5)
    model.rnn.get_parameter("weight_ih_l0").data.normal_(0, 1)
    frame = torch.zeros(88)
    frame[[3, 40, 44]] = 1
    exact, gaussian = mask_accuracy.first_step(model, frame)
    with torch.no_grad():
        drawn = mask_accuracy.masked_steps(model, frame[None], 20_000)[1][:, 0].double()
    error = (drawn - drawn.mean(0)).pow(2).std(0) / len(drawn) ** 0.5
    assert ((drawn.var(0) - exact.var).abs() < 4 * error).all()
    assert ((drawn.var(0) - gaussian.var).abs() > 4 * error).any()  # three notes are not Gaussian


def test_the_separable_problem_is_separable():
    separable = problems()[0]
    assert "separable" in separable.name
    x, z = separable.inputs, separable.targets
    w = torch.linalg.lstsq(x, 2 * z - 1).solution
    for _ in range(2000):  # the perceptron converges on separable points
        wrong = ((x @ w > 0).double() != z).flatten()
        if not wrong.any():
            break
        w = w + (x[wrong] * (2 * z[wrong] - 1)).sum(0)[:, None] * 0.1
    assert not wrong.any()
