"""Beside other packages that propagate moments: `python -m benchmarks.integrate others`.

`suq` (streamlined uncertainty quantification, Li et al.) and `fastbnns` (FastBNNs, LANL) have Gaussian
weights, no dropout. So all get the same: the trained table network, each weight with a variance of 1/9 of
its square, which is the noise of a dropout of .1 of each connection. The truth is in draws of the weights.
Both packages are optional: `pip install --no-deps suq fastbnns`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

import fastdropout as fd
from benchmarks.integrate import training
from benchmarks.integrate.cache import FOLDER as CACHE
from benchmarks.integrate.cache import cached
from benchmarks.integrate.measure import Truth, correlation
from benchmarks.integrate.networks import NETWORKS
from benchmarks.record import RESULTS, write

RATIO = 1 / 9
EXAMPLES = 40


def by_suq(model: nn.Sequential, variances: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by `suq`, whose activations go by the delta method."""
    # The package of version 0.1.0 lacks its module of utilities, which prediction does not use.
    missing = types.ModuleType("suq.utils.utils")
    missing.torch_dataset = None  # type: ignore[attr-defined]
    sys.modules.setdefault("suq.utils", types.ModuleType("suq.utils"))
    sys.modules.setdefault("suq.utils.utils", missing)
    from suq import streamline_mlp

    flat = torch.cat([v.flatten() for v in variances.values()])
    return streamline_mlp(model, flat, "diag", "regression").forward_latent(x)


def by_fastbnns(model: nn.Sequential, variances: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by `fastbnns`, with its default propagators."""
    from fastbnns.bnn.base import BNN
    from fastbnns.bnn.types import MuVar

    bnn = BNN(nn=model)
    state = bnn.bnn.state_dict()
    for name, parameter in model.named_parameters():
        module, _, last = name.rpartition(".")
        state[f"{module}._module_params.{last}_mean"] = parameter.detach()
        std = variances[name].sqrt().clamp(min=1e-12)
        # The inverse of softplus, in float64: variances are small.
        state[f"{module}._module_params.{last}_rho"] = torch.log(torch.expm1(std.double())).float()
    bnn.bnn.load_state_dict(state, assign=True)  # its parameters are views of one number
    y = bnn(MuVar(x, torch.zeros_like(x)))
    return y.mu, y.var


def ours(traced: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(model: nn.Sequential, variances: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        noisy = {p: variances[n] for n, p in model.named_parameters() if variances[n].any()}
        with fd.integrate(weight_var=noisy, train_variance=False) as noise:
            y = model(x)
        return y.mean, noise.var(y) if traced else y.var

    return run


CONTESTANTS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "fastdropout, traced": ours(True),
    "fastdropout, diagonal": ours(False),
    "suq": by_suq,
    "fastbnns": by_fastbnns,
}


@torch.no_grad()
def drawn(model: nn.Sequential, variances: dict[str, Tensor], x: Tensor, draws: int, seed: int) -> Truth:
    """The truth, one draw of all weights after the other."""
    torch.manual_seed(seed)
    parameters = dict(model.named_parameters())
    values = []
    for _ in range(draws):
        noisy = {n: p + variances[n].sqrt() * torch.randn_like(p) for n, p in parameters.items()}
        values.append(torch.func.functional_call(model, noisy, (x,)).double())
    return Truth.of(torch.stack(values))


def main(draws: int, seed: int) -> None:
    """Measure and write `results/integrate/others.json`."""
    network = NETWORKS["table MLP"]
    learn, held_out = network.data().split()

    def train() -> dict[str, Tensor]:
        torch.manual_seed(seed)
        model = network.make()
        training.train(model, network, learn, network.updates, seed)
        return model.state_dict()

    with_dropout = network.make()
    with_dropout.load_state_dict(
        cached("table-MLP-others", {"seed": seed, "updates": network.updates}, train, CACHE)
    )
    model = nn.Sequential(*[m for m in with_dropout if not isinstance(m, nn.Dropout)]).eval()
    variances = {
        n: RATIO * p.detach() ** 2 if n.endswith("weight") else torch.zeros_like(p)
        for n, p in model.named_parameters()
    }
    x = held_out.inputs["input"][:EXAMPLES]
    truth = drawn(model, variances, x, draws, seed)
    rows: list[dict[str, Any]] = []
    for name, run in CONTESTANTS.items():
        try:
            mean, var = run(model, variances, x)
        except ImportError as error:
            print(f"{name} is not installed: {error}")
            continue
        std = var.detach().clamp(min=0).sqrt()
        row = {
            "package": name,
            "ratio": (std.mean() / truth.std.mean()).item(),
            "correlation": correlation(std, truth.std),
            "mean_error": ((mean.detach() - truth.mean).abs().mean() / truth.std.mean()).item(),
        }
        rows.append(row)
        print("  ".join(f"{v:.3f}" if isinstance(v, float) else f"{v:22}" for v in row.values()), flush=True)
    config = {"draws": draws, "seed": seed, "weight_variance": RATIO, "examples": EXAMPLES}
    path = RESULTS / "integrate" / "others.json"
    found = {"best_correlation": truth.best_correlation, "rows": rows}
    print("wrote", write(path, "python -m benchmarks.integrate others", {**config, **_versions()}, found))


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("suq", "fastbnns"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
