import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fastdropout.sklearn import FastDropoutClassifier


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X.astype(np.float32), y, train_size=600, random_state=0)


def quick(**kwargs):
    return FastDropoutClassifier(**({"max_iter": 15, "random_state": 0} | kwargs))


def test_learns_digits(digits):
    X, X_test, y, y_test = digits
    for loss in ("mean", "expected"):
        model = quick(loss=loss).fit(X, y)
        assert model.score(X_test, y_test) > 0.9
        p = model.predict_proba(X_test)
        assert p.shape == (len(X_test), 10)
        np.testing.assert_allclose(p.sum(1), 1)
        np.testing.assert_array_equal(model.classes_[p.argmax(1)], model.predict(X_test))
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X_test)), p)


def test_is_less_sure_of_noise_than_of_digits(digits):
    X, X_test, y, _ = digits
    model = quick(drop_hidden=0.5).fit(X, y)
    noise = np.random.RandomState(0).uniform(0, 16, X_test.shape)
    assert model.predict_proba(noise).max(1).mean() < model.predict_proba(X_test).max(1).mean() - 0.1


def test_probabilities_are_those_of_the_masks(digits):
    import torch

    X, X_test, y, _ = digits
    model = quick(drop_input=0.1, drop_hidden=0.4).fit(X, y)
    p = model.predict_proba(X_test[:200])
    network = model._architecture().build()
    for layer in network:
        if hasattr(layer, "method"):
            layer.method = "mask"
    weights = {n: torch.tensor(w[0]) for n, w in model._state.weights.items()}
    x = model._tensor(X_test[:200])
    torch.manual_seed(0)
    total = torch.zeros(200, 10)
    with torch.no_grad():
        for _ in range(1000):
            total += torch.func.functional_call(network, weights, (x,)).mean.softmax(-1)
        plain = torch.func.functional_call(network.eval(), weights, (x,)).mean.softmax(-1)
    true = (total / 1000).numpy()
    assert np.abs(p - true).mean() < 0.01
    assert np.abs(p - true).mean() < np.abs(plain.numpy() - true).mean() / 3


def test_two_classes_with_names():
    X, y = load_breast_cancer(return_X_y=True)
    names = np.array(["bad", "good"])[y]
    model = quick(max_iter=20).fit(X, names)
    assert list(model.classes_) == ["bad", "good"]
    assert model.score(X, names) > 0.95
    assert model._state.weights["2.weight"].shape == (1, 1, 100)


def test_random_state_is_bit_for_bit_and_pickles(digits):
    X, X_test, y, _ = digits
    one, two = (quick(max_iter=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(X_test), two.predict_proba(X_test))
    text = pickle.dumps(one)
    assert b"torch" not in text
    np.testing.assert_array_equal(pickle.loads(text).predict_proba(X_test), two.predict_proba(X_test))
    with pytest.raises(NotFittedError):
        clone(one).predict(X)


def test_partial_fit_needs_the_classes_once(digits):
    X, X_test, y, y_test = digits
    with pytest.raises(ValueError, match="classes must be given at the first call"):
        quick().partial_fit(X, y)
    model = quick().partial_fit(X[:50], y[:50], classes=range(10))
    for _ in range(15):
        model.partial_fit(X, y)
    assert model.score(X_test, y_test) > 0.85
    with pytest.raises(ValueError, match=r"y must hold the classes .* got \[11\] too"):
        model.partial_fit(X[:1], [11])


def test_sample_weight_moves_the_prior():
    X, y = make_classification(300, random_state=0, flip_y=0.3)
    weight = np.where(y == 1, 10.0, 1.0)
    plain, heavy = quick().fit(X, y), quick().fit(X, y, sample_weight=weight)
    assert heavy.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.2


def test_ensemble_averages_probabilities(digits):
    X, X_test, y, y_test = digits
    model = quick(ensemble_size=2, max_iter=5).fit(X, y)
    assert model._state.weights["0.weight"].shape[0] == 2
    assert model.score(X_test, y_test) > 0.85


def test_grid_search_in_a_pipeline(digits):
    X, X_test, y, y_test = digits
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), quick(max_iter=5)),
        {"fastdropoutclassifier__drop_hidden": [0.1, 0.5]},
        cv=2,
        scoring="neg_log_loss",
    ).fit(X, y)
    assert grid.best_estimator_.score(X_test, y_test) > 0.8


def test_validation_rows_keep_the_shares_of_the_classes():
    rng = np.random.RandomState(0)
    held = quick(early_stopping=True)._held_out(100, rng, np.repeat([0, 1], [90, 10]))
    assert np.bincount(np.repeat([0, 1], [90, 10])[held]).tolist() == [9, 1]


def test_logarithms_of_probabilities_are_finite_far_out():
    x = np.linspace(-1, 1, 60)[:, None]
    model = FastDropoutClassifier(
        10, drop_input=0, drop_hidden=0, max_iter=30, learning_rate=0.1, random_state=0
    )
    model.fit(x, np.digitize(x[:, 0], [-0.3, 0.3]))
    assert (model.predict_proba(1e4 * x) == 0).any()
    assert np.isfinite(model.predict_log_proba(1e4 * x)).all()
    near = model.predict_proba(x)
    np.testing.assert_allclose(model.predict_log_proba(x), np.log(near))
