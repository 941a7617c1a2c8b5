"""
Error bars for a CSV file
=========================

`FastDropoutRegressor` has the interface of scikit-learn, and `predict(..., return_std=True)`. The standard
deviation is that of a new observation: noise of the data and uncertainty of the model.
"""

import pathlib
import tempfile

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_diabetes

from fastdropout.sklearn import FastDropoutRegressor

path = pathlib.Path(tempfile.mkdtemp()) / "diabetes.csv"
load_diabetes(as_frame=True).frame.to_csv(path, index=False)

table = pd.read_csv(path)
X, y = table.drop(columns="target"), table["target"]
model = FastDropoutRegressor(random_state=0).fit(X[:400], y[:400])
mean, std = model.predict(X[400:], return_std=True)

inside = (abs(y[400:] - mean) < 1.645 * std).mean()
print(
    pd.DataFrame({"target": y[400:], "predicted": mean.round(), "+-": std.round()})
    .head()
    .to_string(index=False)
)
print(f"{inside:.0%} of {len(mean)} new patients lie inside of their 90 % intervals")

# %%
# The 42 patients in the order of their predictions, with two standard deviations.

order = mean.argsort()
plt.errorbar(range(len(mean)), mean[order], 2 * std[order], fmt=".", alpha=0.6, label="predicted")
plt.plot(range(len(mean)), y[400:].to_numpy()[order], "x", label="measured")
plt.xlabel("patient")
plt.ylabel("progression of the disease")
plt.legend()
plt.show()
