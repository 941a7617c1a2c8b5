"""Pure maths: tensors and moments in, tensors and moments out; no parameters, no state.

Plain tensors are accepted for `Moments`, as certain values: of zero variance.
"""

from fastdropout.functional import losses, quadrature
from fastdropout.functional.categorical import expected_logsumexp, log_expected_softmax
from fastdropout.functional.propagate import (
    add_independent,
    dropout,
    dropout_of_mean,
    linear,
    mask,
    mix_independent,
    multiply_independent,
    noisy_linear,
)
from fastdropout.functional.softmax import log_softmax, softmax
from fastdropout.functional.transfer import (
    RULES,
    Rule,
    expected_logit,
    expected_softplus,
    identity,
    relu,
    sigmoid,
    tanh,
)

__all__ = [
    "RULES",
    "Rule",
    "add_independent",
    "dropout",
    "dropout_of_mean",
    "expected_logit",
    "expected_logsumexp",
    "expected_softplus",
    "identity",
    "linear",
    "log_expected_softmax",
    "log_softmax",
    "losses",
    "mask",
    "mix_independent",
    "multiply_independent",
    "noisy_linear",
    "quadrature",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]
