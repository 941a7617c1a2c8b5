"""A regressor with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import RegressorMixin

from fastdropout.functional.losses import gaussian_nll
from fastdropout.moments import unchecked_moments
from fastdropout.sklearn.base import Array, FastDropoutEstimator
from fastdropout.sklearn.heads import FLOOR, GaussianHead
from fastdropout.sklearn.scaling import Scaling


class FastDropoutRegressor(RegressorMixin, FastDropoutEstimator):
    """Regression with error bars from one pass: a network with its dropout noise integrated out.

        y = f(x) + noise,   V[y] = V[f(x)] (model: dropout) + E[noise^2] (of the data)

    Inputs and targets are standardised inside. Training is in the dtype of `X`: float32 is faster.

    Args:
        hidden_layer_sizes: units of each hidden layer.
        activation: `"relu"`, `"tanh"`, `"logistic"` or `"identity"`.
        drop_input: probability that an input is zeroed.
        drop_hidden: probability that a hidden unit is zeroed, one for all layers or one for each.
        loss: `"mean"`, the negative log-likelihood of the prediction with its total variance, or
            `"expected"`, the expected one over the masks, which ordinary dropout minimises by sampling.
        head: `"homoscedastic"`: one variance of the noise for all rows; `"heteroscedastic"`: one for
            each row, which is learnt beside the mean.
        learning_rate: of Adam.
        schedule: `"cosine"`: the learning rate falls to 0 over `max_iter` epochs; or `"constant"`.
        weight_decay: decoupled from the gradient (AdamW).
        batch_size: rows of an update; `"auto"` is a sixteenth of the rows, between 32 and 256,
            and of more than 25,600 rows a hundredth, up to 1,024.
        max_iter: largest number of epochs; `"auto"` is 200 for up to 40,000 rows, and fewer for more rows,
            at least 20.
        early_stopping: keep the weights that are best on `validation_fraction` of the rows, and stop when
            nothing got better for `n_iter_no_change` epochs. `"auto"`: from 200 rows on.
        validation_fraction: share of the rows that is held out for that, and for the variance of the noise.
        n_iter_no_change: epochs to wait for something better.
        tol: by how much the loss must fall to count as better.
        ensemble_size: networks that are trained together from different first weights, and averaged.
        progress: show a progress bar.
        random_state: seed; the same seed and data give the same weights, bit for bit.

    Attributes:
        n_iter_: epochs trained.
        best_iter_: the epoch whose weights were kept, for each network.
        loss_curve_, validation_loss_curve_: loss after each epoch.
        noise_scale_: factor on the variance of the noise, found on the validation rows.
        n_features_in_, feature_names_in_: as everywhere.

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 300)[:, None]
    >>> model = FastDropoutRegressor(max_iter=50, random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((300,), True)
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        activation: str = "relu",
        drop_input: float = 0.05,
        drop_hidden: float | Sequence[float] = 0.1,
        loss: Literal["mean", "expected"] = "mean",
        head: Literal["homoscedastic", "heteroscedastic"] = "homoscedastic",
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
        self.head = head
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FastDropoutRegressor:
        """Train anew on the rows of `X` and their targets, (rows,) or (rows, targets)."""
        x, target, weight = self._prepare(X, y, sample_weight, first=True)
        rng = self._begin(x, weight)
        held = self._train(x, target, weight, rng, stratify=None)
        rows = slice(None) if held is None else held
        self.noise_scale_ = self._fit_noise(x[rows], target[rows], weight[rows])
        self._rng = rng
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> FastDropoutRegressor:
        """Train one epoch on these rows; the first call also fixes the scale of inputs and targets."""
        first = not hasattr(self, "_state")
        x, target, weight = self._prepare(X, y, sample_weight, first)
        if first:
            self._rng = self._begin(x, weight)
            self.noise_scale_ = np.ones(self._target_scaling.mean.shape)
        self._train_on(x, target, weight, self._rng)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of each row; with `return_std` also the standard deviation of `y` around it."""
        x = self._checked_inputs(X)
        mean, noise, model = self._moments(x, trace=return_std)
        return (mean, np.sqrt(noise + model)) if return_std else mean

    def predict_variance(self, X: Any) -> tuple[Array, Array]:
        """The two parts of the variance of `y`: noise of the data, and the model's, due to the masks."""
        _, noise, model = self._moments(self._checked_inputs(X), trace=True)
        return noise, model

    def _head(self) -> GaussianHead:
        return GaussianHead(len(self._target_scaling.mean), self.head == "heteroscedastic")

    def _prepare(self, X: Any, y: Any, sample_weight: Any, first: bool) -> tuple[Array, Array, Array]:
        self._check_parameters()
        if self.head not in ("homoscedastic", "heteroscedastic"):
            raise ValueError(f"head must be one of homoscedastic, heteroscedastic, got {self.head!r}")
        x, y, weight = self._checked_rows(X, y, sample_weight, first, multi_output=True, y_numeric=True)
        columns = y.reshape(len(y), -1).astype(x.dtype)
        if first:
            self._target_scaling = Scaling.of(columns, weight)
            self._flat = y.ndim == 1
        elif columns.shape[1] != len(self._target_scaling.mean):
            raise ValueError(
                f"y must have {len(self._target_scaling.mean)} columns as before, got {columns.shape[1]}"
            )
        return x, self._target_scaling.apply(columns), weight

    def _scaled(self, x: Array, trace: bool) -> tuple[Array, Array, Array]:
        """Means, noise and model variance of each network, (k, rows, targets), of standardised targets."""
        weights, out = self._outputs(x, trace)
        head = self._head()
        f, a = head.split(weights, out)
        return tuple(t.numpy().astype(np.float64) for t in (f.mean, head.noise(a), f.var))  # type: ignore[return-value]

    def _moments(self, x: Array, trace: bool) -> tuple[Array, Array, Array]:
        """Mean, noise and model variance over the ensemble, in the units of the targets."""
        means, noise, model = self._scaled(x, trace)
        noise = (noise * self.noise_scale_).mean(0)
        # The spread between networks is uncertainty of the model, too.
        model = model.mean(0) + means.var(0)
        scale = self._target_scaling.scale
        parts = means.mean(0) * scale + self._target_scaling.mean, noise * scale**2, model * scale**2
        return tuple(p[:, 0] if self._flat else p for p in parts)

    def _fit_noise(self, x: Array, target: Array, weight: Array) -> Array:
        """Factor on the noise of each target under which the rows are most probable.

        The expected loss puts the model's variance into the noise; the loss of the mean leaves it too small
        where the network overfits.
        """
        means, noise, model = self._scaled(x, trace=True)
        mean, noise, model = means.mean(0), noise.mean(0), model.mean(0) + means.var(0)
        scales = []
        for j in range(target.shape[1]):

            def nll(log_scale: float, j: int = j) -> float:
                var = model[:, j] + np.exp(log_scale) * noise[:, j]
                y = unchecked_moments(torch.from_numpy(mean[:, j]), torch.from_numpy(var))
                each = gaussian_nll(y, torch.from_numpy(target[:, j].astype(np.float64)), FLOOR)
                return float(np.average(each.numpy(), weights=weight))

            scales.append(np.exp(minimize_scalar(nll, bounds=(-6, 6), method="bounded").x))
        return np.array(scales)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
