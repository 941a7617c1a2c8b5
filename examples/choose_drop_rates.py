"""
Drop rates by cross-validation
==============================

Rates are hyperparameters: `GridSearchCV` chooses them, here by the log-likelihood of held-out rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from fastdropout.sklearn import FastDropoutRegressor


def log_likelihood(model, X, y):
    """Mean log density of the targets under the predicted Gaussians."""
    mean, std = model.predict(X, return_std=True)
    return np.mean(-0.5 * ((y - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi)))


X, y = make_friedman1(400, 10, noise=1.0, random_state=0)
search = GridSearchCV(
    make_pipeline(PowerTransformer(), FastDropoutRegressor(max_iter=40, random_state=0)),
    {"fastdropoutregressor__drop_input": [0.0, 0.05], "fastdropoutregressor__drop_hidden": [0.05, 0.2]},
    scoring=log_likelihood,
    cv=3,
).fit(X, y)
scores = {}
for rates, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    drop_hidden, drop_input = rates.values()
    scores[f"{drop_input} / {drop_hidden}"] = score
    print(f"drop_input={drop_input}, drop_hidden={drop_hidden}: {score:.3f}")
plt.plot(list(scores), list(scores.values()), "o")
plt.xlabel("drop_input / drop_hidden")
plt.ylabel("log-likelihood of held-out rows")
plt.show()
