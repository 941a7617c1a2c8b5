import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fastdropout.sklearn import FastDropoutRegressor


@pytest.fixture(scope="module")
def friedman():
    X, y = make_friedman1(400, 6, noise=1.0, random_state=0)
    return train_test_split(X, y, test_size=0.25, random_state=0)


def quick(**kwargs):
    return FastDropoutRegressor(**({"max_iter": 40, "random_state": 0} | kwargs))


def test_predicts_better_than_the_mean_with_intervals_that_cover(friedman):
    X, X_test, y, y_test = friedman
    model = FastDropoutRegressor(random_state=0, max_iter=150).fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    assert model.score(X_test, y_test) > 0.8
    assert 0.8 <= np.mean(np.abs(y_test - mean) < 1.645 * std) <= 0.99
    np.testing.assert_array_equal(mean, model.predict(X_test))


def test_total_variance_is_noise_plus_model(friedman):
    X, X_test, y, _ = friedman
    for head in ("homoscedastic", "heteroscedastic"):
        model = quick(head=head).fit(X, y)
        noise, spread = model.predict_variance(X_test)
        _, std = model.predict(X_test, return_std=True)
        np.testing.assert_allclose(std**2, noise + spread)
        assert (noise > 0).all()
        assert (spread > 0).all()
        assert (np.ptp(noise) > 0) == (head == "heteroscedastic")


def test_heteroscedastic_head_finds_where_the_noise_is():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (1500, 1))
    true = 0.05 + 0.5 * (X[:, 0] > 0)
    y = X[:, 0] + true * rng.standard_normal(1500)
    model = FastDropoutRegressor(head="heteroscedastic", max_iter=60, random_state=0).fit(X, y)
    noise, _ = model.predict_variance(np.array([[-0.6], [0.6]]))
    assert np.sqrt(noise[0]) < 0.15
    assert 0.35 < np.sqrt(noise[1]) < 0.75


def test_model_variance_is_that_of_the_masks(friedman):
    """The traced variance against drawn masks, in a trained network of two layers."""
    import torch

    X, X_test, y, _ = friedman
    model = quick(hidden_layer_sizes=(40, 40), drop_input=0.1, drop_hidden=0.2, max_iter=100).fit(X, y)
    _, spread = model.predict_variance(X_test)
    network = model._architecture().build()
    for layer in network:
        if hasattr(layer, "method"):
            layer.method = "mask"
    weights = {n: torch.tensor(w[0]) for n, w in model._state.weights.items() if n[0].isdigit()}
    x = torch.tensor(model._input_scaling.apply(X_test))
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([torch.func.functional_call(network, weights, (x,)).mean for _ in range(4000)])
    true = draws[..., 0].std(0).numpy() * model._target_scaling.scale
    ratio = np.sqrt(spread) / true
    assert 0.9 < ratio.mean() < 1.1
    assert np.corrcoef(np.sqrt(spread), true)[0, 1] > 0.9


def test_random_state_is_bit_for_bit(friedman):
    X, X_test, y, _ = friedman
    one, two = (quick().fit(X, y).predict(X_test, return_std=True) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one[0], quick(random_state=1).fit(X, y).predict(X_test))


def test_global_random_numbers_are_left_alone(friedman):
    import torch

    X, _, y, _ = friedman
    torch.manual_seed(0)
    before = torch.get_rng_state()
    quick(max_iter=2).fit(X, y).predict(X)
    assert torch.equal(before, torch.get_rng_state())


def test_pickle_holds_no_torch_objects(friedman):
    X, X_test, y, _ = friedman
    model = quick().fit(X, y)
    text = pickle.dumps(model)
    assert b"torch" not in text
    again = pickle.loads(text)
    np.testing.assert_array_equal(model.predict(X_test), again.predict(X_test))
    # Also the state of the optimiser is there: both go on alike.
    for m in (model, again):
        m.partial_fit(X, y)
        m.partial_fit(X, y)
    np.testing.assert_array_equal(model.predict(X_test), again.predict(X_test))


def test_clone_has_parameters_but_no_weights(friedman):
    X, _, y, _ = friedman
    copy = clone(quick(drop_input=0.3).fit(X, y))
    assert copy.drop_input == 0.3
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_early_stopping_restores_the_best_weights(friedman):
    """A network that overfits: the kept weights are those of the best epoch, not the last ones."""
    X, X_test, y, _ = friedman
    settings = {"drop_input": 0.0, "drop_hidden": 0.0, "learning_rate": 0.03, "schedule": "constant"}
    model = quick(max_iter=150, n_iter_no_change=30, early_stopping=True, **settings).fit(X, y)
    curve = model.validation_loss_curve_
    assert model.best_iter_[0] == int(np.argmin(curve)) + 1
    assert model.n_iter_ == len(curve) == model.best_iter_[0] + 30 < 150
    # Trained for so many epochs without a look at the validation loss, it is the same network.
    same = quick(max_iter=model.best_iter_[0], n_iter_no_change=1000, early_stopping=True, **settings).fit(
        X, y
    )
    np.testing.assert_array_equal(same.predict(X_test), model.predict(X_test))


def test_partial_fit_learns_batch_by_batch(friedman):
    X, X_test, y, y_test = friedman
    model = quick(learning_rate=0.01)
    for _ in range(60):
        model.partial_fit(X, y)
    assert model.score(X_test, y_test) > 0.7
    assert model.n_iter_ == 60
    with pytest.raises(ValueError, match="must have 1 columns as before, got 2"):
        model.partial_fit(X, np.stack([y, y], 1))


def test_weight_zero_is_a_row_that_is_not_there(friedman):
    X, X_test, y, _ = friedman
    weight = np.ones(len(X))
    weight[:100] = 0
    wild = np.where(weight == 0, 1e6, y)
    one = quick().fit(X, wild, sample_weight=weight)
    two = quick().fit(X[100:], y[100:])
    np.testing.assert_array_equal(one.predict(X_test), two.predict(X_test))


def test_scale_and_shift_of_the_data_do_not_matter(friedman):
    X, X_test, y, _ = friedman
    mean, std = quick().fit(X, y).predict(X_test, return_std=True)
    far, far_std = quick().fit(X * 1e3 - 7, y * 1e4 + 5).predict(X_test * 1e3 - 7, return_std=True)
    np.testing.assert_allclose(far, mean * 1e4 + 5, rtol=1e-5)
    np.testing.assert_allclose(far_std, std * 1e4, rtol=1e-5)


def test_ensemble_is_the_mixture_of_its_networks(friedman):
    X, X_test, y, _ = friedman
    model = quick(ensemble_size=3).fit(X, y)
    means, noise, spread = model._scaled(model._checked_inputs(X_test), trace=True)
    assert means.shape == (3, len(X_test), 1)
    assert np.abs(means[0] - means[1]).max() > 0.01
    mean, std = model.predict(X_test, return_std=True)
    scale = model._target_scaling.scale
    total = (noise * model.noise_scale_ + spread).mean(0) + means.var(0)
    np.testing.assert_allclose(std, (np.sqrt(total) * scale)[:, 0])
    np.testing.assert_allclose(mean, (means.mean(0) * scale + model._target_scaling.mean)[:, 0])


def test_several_targets(friedman):
    X, X_test, y, _ = friedman
    model = quick(drop_hidden=0.05).fit(X, np.stack([y, -10 * y], 1))
    mean, std = model.predict(X_test, return_std=True)
    assert mean.shape == std.shape == (len(X_test), 2)
    assert np.corrcoef(mean.T)[0, 1] < -0.9
    assert 5 < (std[:, 1] / std[:, 0]).mean() < 20


def test_pipeline_grid_search_and_data_frames():
    table = load_diabetes(as_frame=True)
    frame = table.data.assign(sex=np.where(table.data.sex > 0, "f", "m"))
    numbers = [c for c in frame if c != "sex"]
    columns = ColumnTransformer([("one", OneHotEncoder(), ["sex"]), ("rest", StandardScaler(), numbers)])
    grid = GridSearchCV(
        make_pipeline(columns, quick(max_iter=10)), {"fastdropoutregressor__drop_input": [0.0, 0.2]}, cv=2
    ).fit(frame, table.target)
    assert grid.best_score_ > 0
    mean, std = grid.predict(frame), grid.best_estimator_.predict(frame, return_std=True)[1]
    assert mean.shape == std.shape == (len(frame),)
    model = quick(max_iter=5).fit(frame[numbers], table.target)
    assert list(model.feature_names_in_) == numbers
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(pd.DataFrame(frame[numbers].to_numpy(), columns=[f"x{i}" for i in range(9)]))


def test_progress_bar(friedman, capsys):
    X, _, y, _ = friedman
    quick(max_iter=2, progress=True).fit(X, y)
    assert "FastDropoutRegressor" in capsys.readouterr().err
    quick(max_iter=2).fit(X, y)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"drop_input": 1.0}, r"drop_input must lie in \[0, 1\), got 1.0"),
        ({"drop_hidden": (0.1, 0.2)}, "drop_hidden must be one rate or one for each of 1 layers"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be whole numbers of at least 1"),
        ({"loss": "huber"}, "loss must be one of mean, expected, got 'huber'"),
        ({"head": "poisson"}, "head must be one of homoscedastic, heteroscedastic, got 'poisson'"),
        ({"activation": "swish"}, "activation must be one of relu"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"validation_fraction": 1.5}, r"validation_fraction must lie in \(0, 1\), got 1.5"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_iter": 2.5}, 'max_iter must be "auto" or a whole number of at least 1, got 2.5'),
        ({"ensemble_size": 0}, "ensemble_size must be a whole number of at least 1, got 0"),
        ({"early_stopping": "yes"}, "early_stopping must be one of True, False, auto, got 'yes'"),
    ],
)
def test_errors_say_what_is_allowed(friedman, wrong, message):
    X, _, y, _ = friedman
    with pytest.raises(ValueError, match=message):
        FastDropoutRegressor(**wrong).fit(X, y)


def test_targets_that_do_not_change_are_predicted():
    X = np.random.RandomState(0).standard_normal((50, 2))
    mean, std = quick().fit(X, np.full(50, 3.0)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 3, atol=0.2)
    assert np.isfinite(std).all()


def test_far_from_the_data_everything_is_finite(friedman):
    X, _, y, _ = friedman
    for head in ("homoscedastic", "heteroscedastic"):
        model = quick(head=head).fit(X.astype(np.float32), y)
        mean, std = model.predict(np.full((1, 6), 1e6, np.float32), return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
