"""
Digits, and pictures that are none
==================================

The probabilities of `FastDropoutClassifier` are means over all dropout masks, from one pass. They are
modest where the masks disagree.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fastdropout.sklearn import FastDropoutClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y, random_state=0)
model = FastDropoutClassifier(drop_hidden=0.5, max_iter=30, random_state=0).fit(X_train, y_train)
noise = np.random.default_rng(0).uniform(0, 16, X_test.shape)
print(f"accuracy {model.score(X_test, y_test):.3f}")
print(f"mean confidence: digits {model.predict_proba(X_test).max(1).mean():.2f}, ", end="")
print(f"random pixels {model.predict_proba(noise).max(1).mean():.2f}")
