"""What the estimators share: parameters, checks, the training with early stopping."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from fastdropout.functional.propagate import check_drop
from fastdropout.moments import Moments
from fastdropout.sklearn.heads import Head
from fastdropout.sklearn.network import (
    ACTIVATIONS,
    Architecture,
    Weights,
    check_layers,
    outputs,
    to_arrays,
    to_tensors,
)
from fastdropout.sklearn.scaling import Scaling
from fastdropout.sklearn.spread import predicted
from fastdropout.sklearn.training import Best, RowLoss, Rows, Settings, State, Trainer

Array = npt.NDArray[Any]
LOSSES = ("mean", "expected")
# With fewer rows a validation share says too little to stop by.
ROWS_TO_STOP_EARLY = 200


class FastDropoutEstimator(BaseEstimator):
    """Base of the estimators; see `FastDropoutRegressor` for the parameters."""

    def _head(self) -> Head:
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Refuse what cannot be, before any work is done."""
        at_least: dict[str, tuple[float, Any]] = {
            "n_iter_no_change": (1, Integral),
            "ensemble_size": (1, Integral),
            "weight_decay": (0, Real),
            "tol": (0, Real),
        }
        for name, (least, kind) in at_least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
                what = "a whole number" if kind is Integral else "a number"
                raise ValueError(f"{name} must be {what} of at least {least}, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate!r}")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie in (0, 1), got {self.validation_fraction!r}")
        for name in ("batch_size", "max_iter"):
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if value != "auto" and not (whole and value >= 1):
                raise ValueError(f'{name} must be "auto" or a whole number of at least 1, got {value!r}')
        choices: dict[str, tuple[Any, ...]] = {
            "activation": tuple(ACTIVATIONS),
            "loss": LOSSES,
            "early_stopping": (True, False, "auto"),
            "schedule": ("cosine", "constant"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}"
                )
        check_drop(self.drop_input, "drop_input")
        for drop in check_layers(self.hidden_layer_sizes, self.drop_hidden)[1]:
            check_drop(drop, "drop_hidden")

    def _architecture(self) -> Architecture:
        hidden, drops = check_layers(self.hidden_layer_sizes, self.drop_hidden)
        sizes = (self.n_features_in_, *hidden, self._head().outputs)
        return Architecture(sizes, (float(self.drop_input), *drops), self.activation)

    def _checked_rows(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Inputs, targets and weights as arrays, without rows of zero weight."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=reset, **kwargs)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = weight > 0
        if not used.any():
            raise ValueError("sample_weight must be positive for at least one row, got zeros only")
        return X[used], y[used], weight[used]

    def _rows(self, x: Array, target: Array, weight: Array, index: Any = slice(None)) -> Rows:
        """Standardised rows as tensors; weights have mean 1."""
        weight = weight[index]
        parts = (self._input_scaling.apply(x[index]), target[index], (weight / weight.mean()).astype(x.dtype))
        return Rows.shared(self.ensemble_size, *(torch.from_numpy(np.ascontiguousarray(p)) for p in parts))

    def _begin(self, x: Array, weight: Array) -> np.random.RandomState:
        """Scale of the inputs, first weights."""
        rng = check_random_state(self.random_state)
        self._input_scaling = Scaling.of(x, weight)
        self._state = State(self._first_weights(x.dtype, rng))
        return rng

    def _first_weights(self, dtype: npt.DTypeLike, rng: np.random.RandomState) -> dict[str, Array]:
        k = self.ensemble_size
        return self._architecture().draw(k, rng, dtype) | self._head().draw(k, dtype)

    def _settings(self, rows: int, constant: bool = False) -> Settings:
        size = auto_batch_size(rows) if self.batch_size == "auto" else self.batch_size
        total = None if constant or self.schedule == "constant" else self._epochs(rows)
        return Settings(self.learning_rate, min(size, rows), self.weight_decay, total)

    def _row_loss(self, training: bool) -> RowLoss:
        """What training minimises, or what the validation rows are judged by."""
        network, head, expected = self._architecture().build(), self._head(), self.loss == "expected"
        of = head.objective if training else head.loss
        return lambda weights, x, y: of(weights, outputs(network, weights, x), y, expected)

    def _train(
        self, x: Array, target: Array, weight: Array, rng: np.random.RandomState, stratify: Array | None
    ) -> Array | None:
        """Train from the first weights; returns the indices of the validation rows, if there are any."""
        held = self._held_out(len(x), rng, stratify)
        used = np.setdiff1d(np.arange(len(x)), held) if held is not None else slice(None)
        rows = self._rows(x, target, weight, used)
        valid = None if held is None else self._rows(x, target, weight, held)
        loss = self._row_loss(training=False)
        trainer = Trainer(self._state, self._row_loss(training=True), rows, self._settings(len(rows)), rng)
        best = Best(self.tol)
        self.loss_curve_: list[float] = []
        self.validation_loss_curve_: list[float] = []
        for _ in self._progress(range(self._epochs(len(rows)))):
            seen = trainer.epoch()
            self.loss_curve_.append(float(seen.mean()))
            if valid is not None:
                seen = _mean_loss(loss, trainer.weights, valid)
                self.validation_loss_curve_.append(float(seen.mean()))
            best.see(trainer.weights, seen)
            if best.waited >= self.n_iter_no_change and valid is not None:
                break
        self.n_iter_ = best.epoch
        self.best_iter_ = [int(e) for e in best.epochs] if best.epochs is not None else []
        final = best.weights if valid is not None else trainer.weights
        if not all(bool(w.isfinite().all()) for w in final.values()):
            raise ValueError(f"the training diverged: try a learning_rate below {self.learning_rate}")
        self._state = State(to_arrays(final))
        return held

    def _epochs(self, rows: int) -> int:
        return auto_max_iter(rows) if self.max_iter == "auto" else self.max_iter

    def _held_out(self, n: int, rng: np.random.RandomState, stratify: Array | None) -> Array | None:
        """Indices of the validation rows, drawn before anything else is."""
        stop = n >= ROWS_TO_STOP_EARLY if self.early_stopping == "auto" else self.early_stopping
        if not stop:
            return None
        if stratify is not None and np.bincount(stratify).min() < 2:
            stratify = None
        if n < 2:
            raise ValueError(f"early stopping needs at least 2 rows, got n_samples = {n}")
        _, held = train_test_split(
            np.arange(n), test_size=self.validation_fraction, random_state=rng, stratify=stratify
        )
        return np.sort(held)

    def _train_on(self, x: Array, target: Array, weight: Array, rng: np.random.RandomState) -> None:
        """One more epoch, at a constant learning rate."""
        rows = self._rows(x, target, weight)
        settings = self._settings(len(rows), constant=True)
        trainer = Trainer(self._state, self._row_loss(training=True), rows, settings, rng)
        self.loss_curve_ = [*getattr(self, "loss_curve_", []), float(trainer.epoch().mean())]
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        self._state = trainer.state()

    def _outputs(self, x: Array, trace: bool) -> tuple[Weights, Moments]:
        """The weights, and moments of the outputs of each network, (k, rows, outputs)."""
        weights = to_tensors(self._state.weights)
        return weights, predicted(self._architecture().build(), weights, self._tensor(x), trace)

    def _tensor(self, x: Array) -> Tensor:
        """Standardised inputs, in the dtype of the weights."""
        scaled = self._input_scaling.apply(x).astype(self._state.weights["0.weight"].dtype, copy=False)
        return torch.from_numpy(np.ascontiguousarray(scaled))

    def _checked_inputs(self, X: Any) -> Array:
        check_is_fitted(self)
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=False)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state")

    def _progress(self, epochs: range) -> Any:
        if not self.progress:
            return epochs
        from tqdm.auto import tqdm

        return tqdm(epochs, desc=type(self).__name__, unit="epoch")


def auto_batch_size(rows: int) -> int:
    """A sixteenth of the rows, between 32 and 256; of many rows a hundredth, up to 1,024.

    >>> [auto_batch_size(rows) for rows in (100, 1_000, 20_000, 90_000, 1_000_000)]
    [32, 62, 256, 900, 1024]
    """
    return max(32, min(256, rows // 16), min(1024, rows // 100))


def auto_max_iter(rows: int) -> int:
    """200 epochs of up to 40,000 rows; of more rows fewer, since each of them has more updates.

    >>> [auto_max_iter(rows) for rows in (100, 40_000, 90_000, 1_000_000)]
    [200, 200, 88, 20]
    """
    return max(20, min(200, 8_000_000 // rows))


@torch.no_grad()
def _mean_loss(loss: RowLoss, weights: Weights, rows: Rows) -> Tensor:
    """Weighted mean over the rows, in chunks, for each network."""
    total = torch.zeros(rows.weight.shape[0], dtype=rows.x.dtype)
    for index in torch.arange(len(rows)).split(4096):
        part = rows.part(index)
        total += (loss(weights, part.x, part.y) * part.weight).sum(1)
    return total / rows.weight.sum(1)
