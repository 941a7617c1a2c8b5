"""The Laplace approximation by `laplace-torch` of a network that was trained here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fastdropout.sklearn.network import Weights

Array = npt.NDArray[Any]
# It asks for torchvision, which it does not need here: install it and what it imports without dependencies.
# pip install --no-deps laplace-torch==0.3 asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch \
#     einconv einops jaxtyping lightning-utilities linear-operator opt-einsum torchmetrics unfoldNd \
#     wadler-lindig
AVAILABLE = find_spec("laplace") is not None
PLAIN = {"relu": nn.ReLU, "tanh": nn.Tanh}


def plain_network(weights: Weights, activation: str) -> nn.Sequential:
    """The same network of torch's modules; weights of one network, (1, ...)."""
    layers: list[nn.Module] = []
    names = sorted({name.split(".")[0] for name in weights if name[0].isdigit()}, key=int)
    for name in names:
        w, b = weights[f"{name}.weight"][0], weights[f"{name}.bias"][0]
        linear = nn.Linear(w.shape[1], w.shape[0])
        linear.load_state_dict({"weight": w.detach(), "bias": b.detach()})
        layers += [linear, PLAIN[activation]()]
    return nn.Sequential(*layers[:-1])


def _fitted(
    network: nn.Module, likelihood: str, x: Tensor, y: Tensor, subset: str, hessian: str, **kw: Any
) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from laplace import Laplace

        la = Laplace(network, likelihood, subset_of_weights=subset, hessian_structure=hessian, **kw)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=256))
        la.optimize_prior_precision(method="marglik")
    return la


def regression_laplace(
    weights: Weights, activation: str, x: Array, y: Array, x_test: Array, noise: float
) -> tuple[Array, Array]:
    """Mean and variance of the function at the test rows: all weights, Kronecker factors, linearised."""
    network = plain_network(weights, activation)
    la = _fitted(
        network, "regression", torch.from_numpy(x), torch.from_numpy(y), "all", "kron", sigma_noise=noise**0.5
    )
    mean, var = la(torch.from_numpy(x_test))
    return mean[:, 0].detach().double().numpy(), var[:, 0, 0].detach().double().numpy()


def last_layer(network: nn.Module, x: Array, y: Array, x_test: Array, noise: float) -> tuple[Array, Array]:
    """Mean and variance of what a network with several outputs adds to the last value of a window."""
    target = torch.from_numpy(y) - torch.from_numpy(x)[:, -1:]
    la = _fitted(
        network, "regression", torch.from_numpy(x), target, "last_layer", "kron", sigma_noise=noise**0.5
    )
    mean, var = la(torch.from_numpy(x_test))
    return mean.detach().double().numpy(), var.diagonal(dim1=1, dim2=2).detach().double().numpy()


def class_laplace(weights: Weights, activation: str, x: Array, y: Array) -> Callable[[Array], Array]:
    """Gives the probabilities of rows: last layer, Kronecker factors, probit approximation."""
    network = plain_network(weights, activation)
    la = _fitted(network, "classification", torch.from_numpy(x), torch.from_numpy(y), "last_layer", "kron")
    return lambda rows: la(torch.from_numpy(rows), link_approx="probit").detach().double().numpy()
