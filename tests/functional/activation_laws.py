"""The rows of the activations in the table of laws: exact ones, and those by quadrature."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from laws import Transfer
from torch.nn import functional as F

from fastdropout import functional as fd

# A kink is seen by the reference to 1e-5, a jump to 1e-3.
kinked = functools.partial(Transfer, mean_error=1e-5, var_error=1e-4, step=0.002)
jumping = functools.partial(Transfer, mean_error=2e-3, var_error=2e-2, step=0.002, jumps=True)
SLOPE = 0.25

PIECEWISE = [
    kinked("leaky relu", lambda x: fd.leaky_relu(x, 0.1), lambda a: F.leaky_relu(a, 0.1)),
    kinked(
        "prelu",
        lambda x: fd.prelu(x, torch.tensor([SLOPE], dtype=x.dtype)),
        lambda a: F.prelu(a, torch.tensor([SLOPE], dtype=a.dtype)),
    ),
    kinked("relu6", fd.relu6, F.relu6),
    kinked("hardtanh", lambda x: fd.hardtanh(x, -0.6, 2.0), lambda a: F.hardtanh(a, -0.6, 2.0)),
    kinked("hardsigmoid", fd.hardsigmoid, F.hardsigmoid),
    kinked("hardswish", fd.hardswish, F.hardswish),
    kinked("abs", fd.abs, torch.abs),
    kinked("clamp from below", lambda x: fd.clamp(x, min=-0.3), lambda a: a.clamp(min=-0.3)),
    kinked("clamp from above", lambda x: fd.clamp(x, max=0.3), lambda a: a.clamp(max=0.3)),
    kinked("softshrink", lambda x: fd.softshrink(x, 0.6), lambda a: F.softshrink(a, 0.6)),
    jumping("threshold", lambda x: fd.threshold(x, 0.6, -1.0), lambda a: F.threshold(a, 0.6, -1.0)),
    jumping("hardshrink", lambda x: fd.hardshrink(x, 0.6), lambda a: F.hardshrink(a, 0.6)),
    Transfer("square", fd.square, torch.square, 1e-10, 1e-8),
]

CURVED = [
    Transfer("gelu", fd.gelu, F.gelu, 1e-12, 4e-3, to_four=(1e-12, 1e-4), slope_error=1e-6),
    Transfer(
        "gelu by tanh",
        lambda x: fd.gelu(x, "tanh"),
        lambda a: F.gelu(a, approximate="tanh"),
        2e-4,
        4e-3,
        to_four=(2e-4, 4e-4),
        slope_error=3e-3,
    ),
    Transfer("softplus", fd.softplus, F.softplus, 9e-3, 0.2, to_four=(6e-9, 6e-8)),
    Transfer(
        "softplus, beta 2",
        lambda x: fd.softplus(x, 2.0),
        lambda a: F.softplus(a, 2.0),
        0.04,
        0.6,
        to_four=(2e-5, 2e-4),
    ),
    Transfer("log sigmoid", fd.log_sigmoid, F.logsigmoid, 9e-3, 0.2, to_four=(6e-9, 6e-8)),
    Transfer("silu", fd.silu, F.silu, 0.04, 0.5, to_four=(1e-7, 2e-6)),
    Transfer("mish", fd.mish, F.mish, 0.05, 0.7, to_four=(4e-6, 4e-5)),
    Transfer("elu", fd.elu, F.elu, 0.03, 0.4, step=0.002, to_four=(5e-4, 2e-3)),
    Transfer("elu, alpha .5", lambda x: fd.elu(x, 0.5), lambda a: F.elu(a, 0.5), 0.03, 0.4, step=0.002),
    Transfer("celu", lambda x: fd.celu(x, 0.7), lambda a: F.celu(a, 0.7), 0.05, 0.6, to_four=(8e-4, 3e-3)),
    Transfer("selu", fd.selu, F.selu, 0.05, 0.6, step=0.002, to_four=(8e-4, 5e-3)),
    Transfer("softsign", fd.softsign, F.softsign, 0.05, 0.06, step=0.002, to_four=(6e-3, 4e-3)),
    Transfer("tanhshrink", fd.tanhshrink, F.tanhshrink, 0.08, 0.9, to_four=(2e-4, 5e-4)),
    Transfer("exp", fd.exp, torch.exp, 1e-9, 1e-7, limit=2.5),
    Transfer(
        "elementwise sin", lambda x: fd.elementwise(torch.sin, x), torch.sin, 0.9, 0.6, to_four=(1e-7, 1e-7)
    ),
]

ACTIVATIONS = PIECEWISE + CURVED
