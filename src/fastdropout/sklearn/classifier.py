"""A classifier whose probabilities know what dropout says about the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from fastdropout.sklearn.base import Array, FastDropoutEstimator
from fastdropout.sklearn.heads import CategoricalHead
from fastdropout.sklearn.network import to_tensors
from fastdropout.sklearn.spread import predicted_covariance


class FastDropoutClassifier(ClassifierMixin, FastDropoutEstimator):
    """Classification by a network with its dropout noise integrated out.

    Probabilities are E[softmax(logits)] over the masks, from one pass: logits are Gaussian, with the
    covariance traced to the masks. Far from the training rows it is large, and the probabilities are modest.

    Args:
        loss: `"mean"`, the cross entropy of the expected probabilities, or `"expected"`, the expected cross
            entropy over the masks, which ordinary dropout minimises by sampling.
        hidden_layer_sizes, activation, drop_input, drop_hidden, learning_rate, schedule, weight_decay,
        batch_size, max_iter, early_stopping, validation_fraction, n_iter_no_change, tol, ensemble_size,
        progress, random_state: as in `FastDropoutRegressor`.

    Attributes:
        classes_: the classes, in the order of the columns of `predict_proba`.
        n_iter_, best_iter_, loss_curve_, validation_loss_curve_: as in `FastDropoutRegressor`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FastDropoutClassifier(max_iter=50, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape, model.score(X, y) > 0.9
    ((150, 3), True)
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        *,
        activation: str = "relu",
        drop_input: float = 0.05,
        drop_hidden: float | Sequence[float] = 0.2,
        loss: Literal["mean", "expected"] = "mean",
        learning_rate: float = 0.003,
        schedule: Literal["cosine", "constant"] = "cosine",
        weight_decay: float = 0.0,
        batch_size: int | Literal["auto"] = "auto",
        max_iter: int | Literal["auto"] = "auto",
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 40,
        tol: float = 0.0,
        ensemble_size: int = 1,
        progress: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.drop_input = drop_input
        self.drop_hidden = drop_hidden
        self.loss = loss
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.ensemble_size = ensemble_size
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FastDropoutClassifier:
        """Train anew on the rows of `X` and their classes."""
        self._check_parameters()
        x, y, weight = self._checked_rows(X, y, sample_weight, reset=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        rng = self._begin(x, weight)
        self._train(x, codes.astype(np.int64), weight, rng, stratify=codes)
        self._rng = rng
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> FastDropoutClassifier:
        """Train one epoch on these rows; the first call needs all `classes` and fixes the scale of inputs."""
        self._check_parameters()
        first = not hasattr(self, "_state")
        x, y, weight = self._checked_rows(X, y, sample_weight, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ValueError("classes must be given at the first call of partial_fit")
            self.classes_ = np.unique(classes)
            self._rng = self._begin(x, weight)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y must hold the classes {self.classes_.tolist()}, got {unknown.tolist()} too")
        self._train_on(x, np.searchsorted(self.classes_, y).astype(np.int64), weight, self._rng)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (rows, classes)."""
        x = self._checked_inputs(X)
        weights, head = to_tensors(self._state.weights), self._head()
        mean, covariance = predicted_covariance(self._architecture().build(), weights, self._tensor(x))
        parts = [head.probabilities(m, c) for m, c in zip(mean, covariance, strict=True)]
        p = torch.stack(parts).mean(0).double().numpy()
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of `predict_proba`, finite where a probability is too small for a number."""
        p = self.predict_proba(X)
        return np.log(np.maximum(p, np.finfo(p.dtype).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def _head(self) -> CategoricalHead:
        return CategoricalHead(len(self.classes_))
