"""RMSprop with Nesterov's look-ahead, as the paper's experiments used it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class RMSprop(Optimizer):
    """RMSprop whose gradient is taken at the point that the momentum is about to reach.

        ahead = momentum * last step;  gradient g at parameters + ahead
        r     = alpha r + (1 - alpha) g^2           (r starts at 1)
        step  = ahead - lr g / sqrt(r + eps)

    `torch.optim.RMSprop` takes the gradient where the parameters are. Here the parameters are at the
    look-ahead point only while the closure runs, or inside `with optimizer.look_ahead():`; outside of it,
    also after an error, they are the true ones, so evaluation and checkpoints never see the look-ahead.

    >>> w = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = RMSprop([w], lr=0.1, momentum=0.9)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (w**2).sum()
    ...     loss.backward()
    ...     return loss
    >>> _ = optimizer.step(closure)
    >>> w.item() < 1
    True

    Without a closure:

    >>> with optimizer.look_ahead():
    ...     _ = closure()
    >>> optimizer.step()
    """

    def __init__(
        self, params: Any, lr: float = 0.001, alpha: float = 0.9, eps: float = 1e-8, momentum: float = 0.9
    ) -> None:
        for name, value, low, high in (
            ("lr", lr, 0, math.inf),
            ("alpha", alpha, 0, 1),
            ("momentum", momentum, 0, 1),
            ("eps", eps, 0, math.inf),
        ):
            if not low <= value < high:
                raise ValueError(f"{name} must lie in [{low}, {high}), got {value}")
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})
        self._at_look_ahead = False  # the gradients that are there were taken at the look-ahead point

    @contextmanager
    def look_ahead(self) -> Iterator[None]:
        """Move to the look-ahead point: run the forward and the backward pass in here, then `step()`."""
        saved = self._move_ahead()
        try:
            yield
            self._at_look_ahead = True
        finally:
            with torch.no_grad():
                for p, value in saved:
                    p.copy_(value)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update, with the gradients of `closure` or of the last `look_ahead`; returns the loss."""
        loss = None
        if closure is not None:
            with self.look_ahead(), torch.enable_grad():
                loss = closure()
        elif not self._at_look_ahead and any(group["momentum"] for group in self.param_groups):
            raise RuntimeError(
                "the gradient must be taken at the look-ahead point: call step(closure), "
                "or run the backward pass inside `with optimizer.look_ahead():`"
            )
        self._at_look_ahead = False
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params)
        return loss

    @torch.no_grad()
    def _move_ahead(self) -> list[tuple[Tensor, Tensor]]:
        saved = []
        for group in self.param_groups:
            # A parameter that has not been stepped has no momentum to follow.
            params = [p for p in group["params"] if p in self.state and group["momentum"]]
            if params:
                saved += [(p, p.clone()) for p in params]
                torch._foreach_add_(
                    params, [self.state[p]["last_step"] for p in params], alpha=group["momentum"]
                )
        return saved

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if p.grad is not None and p.grad.is_sparse:
                raise RuntimeError("RMSprop does not support sparse gradients")
            if p not in self.state:
                self.state[p] = {"last_step": torch.zeros_like(p), "square": torch.ones_like(p)}
        grads = [p.grad for p in params if p.grad is not None]
        steps = [self.state[p]["last_step"] for p in params]
        squares = [self.state[p]["square"] for p in params]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, grads, grads, value=1 - group["alpha"])
        denominator = torch._foreach_add(squares, group["eps"])
        torch._foreach_sqrt_(denominator)
        torch._foreach_mul_(steps, group["momentum"])
        torch._foreach_addcdiv_(steps, grads, denominator, value=-group["lr"])
        torch._foreach_add_(params, steps)
