"""
A series of your own
====================

Yearly sunspots: from an ``.npz`` file to a network, its error bars and a forecast. The same from the command
line: ``fastdropout train sunspots.npz --hidden 30 ...``, ``fastdropout generate RUN``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

from fastdropout.music.data.corpora import load
from fastdropout.music.training import evaluate_run, generate, make_config, train
from fastdropout.music.training.evaluation import expected_frames

sunspots = sm.datasets.sunspots.load_pandas().data["SUNACTIVITY"].to_numpy()
with tempfile.TemporaryDirectory() as folder:
    # One series is cut in time: 70 % train, 15 % valid, 15 % test.
    np.savez(Path(folder, "sunspots.npz"), sunspots)
    options = {
        "hidden": 30,
        "nu": 10,
        "chunk": 50,
        "batch": 4,
        "skip": True,
        "noise_hidden": 0.0,
        "drop": 0.1,
    }
    steps = {"skip": True, "lr": 0.003, "momentum": 0.9, "epochs": 60}
    config = make_config({"corpus": str(Path(folder, "sunspots.npz")), **options, **steps})
    run = train(config, out=Path(folder, "run"))
    test = load(config.corpus).test[0]
    found, model = evaluate_run(run, "test"), run.model()

expected = expected_frames(model, test)
error = np.abs(expected.mean[:, 0].numpy() - test[1:, 0])
inside = (error < 2 * expected.std[:, 0].numpy()).mean()
print(f"{found.nll_per_step:.2f} nats a year; {inside:.0%} of the years within two standard deviations")

# What an autoregressive model of nine years, fitted by least squares on the same years, gets.
lags = np.array([[1, *sunspots[t - 9 : t]] for t in range(9, len(sunspots))])
known = len(sunspots) - len(test) - round(0.15 * len(sunspots)) - 9
weights = np.linalg.lstsq(lags[:known], sunspots[9:][:known], rcond=None)[0]
residual = sunspots[9:] - lags @ weights
var = np.mean(residual[:known] ** 2)
nll = np.mean(0.5 * np.log(2 * np.pi * var) + residual[-len(test) + 1 :] ** 2 / (2 * var))
print(f"{nll:.2f} nats a year for AR(9)")

future = generate(model, len(test) + 20, prime=test, temperature=0)[len(test) :, 0]
print("the next twenty years:", *np.round(future).astype(int))
mean, std = expected.mean[:, 0].numpy(), expected.std[:, 0].numpy()
years = np.arange(1, len(test))
plt.fill_between(years, mean - 2 * std, mean + 2 * std, alpha=0.3, label="a year ahead, 2 std")
plt.plot(years, test[1:, 0], "k.", label="sunspots")
plt.plot(len(test) + np.arange(20), future, "C1", label="forecast")
plt.xlabel("year of the test")
plt.legend()
assert found.nll_per_step < 4.6
