"""
Digits, and images without digits
=================================

The probabilities of `FastDropoutClassifier` are expectations over dropout masks, from one pass. Where masks
disagree, they are closer to uniform.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fastdropout.sklearn import FastDropoutClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y, random_state=0)
model = FastDropoutClassifier(drop_hidden=0.5, max_iter=30, random_state=0).fit(X_train, y_train)
noise = np.random.default_rng(0).uniform(0, 16, X_test.shape)
digits, pixels = model.predict_proba(X_test).max(1), model.predict_proba(noise).max(1)
print(f"accuracy {model.score(X_test, y_test):.3f}")
print(f"mean confidence: digits {digits.mean():.2f}, random pixels {pixels.mean():.2f}")
plt.hist([digits, pixels], np.linspace(0, 1, 21), label=["digits", "random pixels"])
plt.xlabel("largest probability")
plt.ylabel("images")
plt.legend()
plt.show()
