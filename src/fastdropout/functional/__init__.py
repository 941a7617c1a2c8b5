"""Pure maths: tensors and moments in, tensors and moments out; no parameters, no state.

Plain tensors are accepted for `Moments`, as certain values: of zero variance.

>>> import torch, fastdropout as fd
>>> x = fd.functional.dropout(torch.ones(3), 0.5)
>>> a = fd.functional.linear(x, torch.ones(1, 3))
>>> a.mean.item(), a.var.item()
(1.5, 0.75)
>>> fd.functional.relu(a).std.shape
torch.Size([1])
"""

from fastdropout.functional import losses, quadrature
from fastdropout.functional.categorical import expected_logsumexp, log_expected_softmax
from fastdropout.functional.elementwise import Kink, elementwise
from fastdropout.functional.extremes import adaptive_max_pool, amax, amin, max_pool, maximum, minimum
from fastdropout.functional.norms import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from fastdropout.functional.piecewise import (
    abs,
    clamp,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    piecewise,
    prelu,
    relu6,
    softshrink,
    square,
    threshold,
)
from fastdropout.functional.propagate import (
    add_independent,
    dropout,
    dropout_of_mean,
    linear,
    mix_independent,
    multiply_independent,
    noisy_linear,
    recurring_covariance,
    sampled_dropout,
)
from fastdropout.functional.smooth import (
    celu,
    elu,
    exp,
    gelu,
    glu,
    log_sigmoid,
    mish,
    selu,
    silu,
    softplus,
    softsign,
    tanhshrink,
)
from fastdropout.functional.softmax import log_softmax, logsumexp, softmax
from fastdropout.functional.transfer import (
    RULES,
    Rule,
    expected_softplus,
    identity,
    logit_of_expected,
    relu,
    sigmoid,
    tanh,
)
from fastdropout.renaming import renamed

__all__ = [
    "RULES",
    "Kink",
    "Rule",
    "abs",
    "adaptive_max_pool",
    "add_independent",
    "amax",
    "amin",
    "batch_norm",
    "celu",
    "clamp",
    "dropout",
    "dropout_of_mean",
    "elementwise",
    "elu",
    "exp",
    "expected_logsumexp",
    "expected_softplus",
    "gelu",
    "glu",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "identity",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_expected_softmax",
    "log_sigmoid",
    "log_softmax",
    "logit_of_expected",
    "logsumexp",
    "losses",
    "max_pool",
    "maximum",
    "minimum",
    "mish",
    "mix_independent",
    "multiply_independent",
    "noisy_linear",
    "piecewise",
    "prelu",
    "quadrature",
    "recurring_covariance",
    "relu",
    "relu6",
    "rms_norm",
    "sampled_dropout",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softshrink",
    "softsign",
    "square",
    "tanh",
    "tanhshrink",
    "threshold",
]

__getattr__ = renamed(__name__, {"expected_logit": "logit_of_expected", "mask": "sampled_dropout"})
