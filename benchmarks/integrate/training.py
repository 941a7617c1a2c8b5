"""Training as a user would: ordinary dropout, Adam, the usual losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.integrate.data import Data
from benchmarks.integrate.networks import Network, outputs


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of classes, squared error of values."""
    if target.is_floating_point():
        return F.mse_loss(y, target)
    return F.cross_entropy(y.flatten(0, -2), target.flatten())


def train(model: nn.Module, network: Network, data: Data, updates: int, seed: int) -> None:
    """Adam with a linear decay of the learning rate to a tenth; clipped gradients."""
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), network.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, updates)
    for _ in range(updates):
        inputs, target = data.rows(torch.randint(len(data.target), (network.batch,)))
        loss = loss_of(outputs(model, inputs), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def test(model: nn.Module, data: Data) -> dict[str, float]:
    """The loss on examples that were not trained on, and the accuracy where there are classes."""
    inputs, target = data.rows(torch.arange(min(500, len(data.target))))
    y = outputs(model.eval(), inputs)
    found = {"test_loss": loss_of(y, target).item()}
    if not target.is_floating_point():
        found["test_accuracy"] = (y.argmax(-1) == target).double().mean().item()
    return found
