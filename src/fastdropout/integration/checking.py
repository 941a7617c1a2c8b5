"""`check(model, x)`: both variances against sampled masks, module by module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastdropout.integration.modes import rates_passed_on
from fastdropout.integration.noise import Gains, Noise
from fastdropout.integration.sampled import Sampled
from fastdropout.moments import Moments
from fastdropout.serving import Refusal


@dataclass(frozen=True)
class Row:
    """One module's output: standard deviations over the true ones, averaged over the looked-at elements.

    diagonal and traced: mean predicted standard deviation / mean true one; None where there is no diagonal.
    correlation: of the traced standard deviations with the true ones. mean_error: mean absolute error of the
    mean, in true standard deviations.
    """

    module: str
    kind: str
    elements: int
    true_std: float
    diagonal: float | None
    traced: float
    correlation: float
    mean_error: float


@dataclass(frozen=True)
class Check:
    """What `check` found; `print` shows it as a table.

    >>> import torch, fastdropout as fd
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    >>> found = fd.check(net, torch.ones(4, 3), masks=100)
    >>> [(row.module, row.kind) for row in found.rows], found.masks
    ([('0', 'Dropout'), ('1', 'Linear'), ('Sequential', 'Sequential')], 100)
    """

    rows: tuple[Row, ...]
    masks: int

    def __str__(self) -> str:
        head = ("module", "kind", "true std", "diagonal", "traced", "corr", "mean error")
        lines = [head]
        for r in self.rows:
            diagonal = "-" if r.diagonal is None else f"{r.diagonal:.2f}"
            lines.append(
                (r.module, r.kind, f"{r.true_std:.3g}", diagonal, f"{r.traced:.2f}", f"{r.correlation:.2f}",
                 f"{r.mean_error:.2f}")
            )  # fmt: skip
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        rows = []
        for line in lines:
            cells = [
                c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ]
            rows.append("  ".join(cells).rstrip())
        note = (
            f"\nPredicted over true standard deviation, {self.masks} masks: diagonal takes units "
            "as independent, traced follows the noise to its sources."
        )
        return "\n".join(rows) + note


def check(
    model: nn.Module,
    *args: Any,
    masks: int = 1000,
    outputs: int = 8,
    gains: Gains = "moments",
    seed: int = 0,
    **kwargs: Any,
) -> Check:
    """Compare the diagonal and the traced variance of every module's output with sampled masks.

    Args:
        model, args, kwargs: the network and what it is called with.
        masks: how many times the network runs with drawn masks.
        outputs: how many elements of each module's output are looked at, for each example.
        gains: as in `integrate`.
        seed: of the masks and of the choice of elements; torch's own generator is left as it was.

    >>> net = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 2))
    >>> found = check(net, torch.ones(4, 3), masks=200)
    >>> [row.module for row in found.rows]
    ['2', '3', 'Sequential']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if masks < 2:
        raise ValueError(f"masks must be at least 2, got {masks}")
    picked: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(seed)
    chosen: dict[str, Tensor] = {}

    def keep(name: str, y: Any) -> None:
        picked[name] = y

    with (
        rates_passed_on(model),
        torch.enable_grad(),
        Noise(gains=gains, train_variance=False, predicts=True) as noise,
        _listening(model, keep),
    ):
        model(*args, **kwargs)
    found: dict[str, tuple[Tensor, Tensor | None, Tensor]] = {}
    for name, y in picked.items():
        mean = y._mean if isinstance(y, Moments) else y
        if not mean.requires_grad or mean.ndim == 0 or mean.numel() == 0:
            continue
        table = mean.flatten(1) if mean.ndim > 1 else mean[:, None]
        chosen[name] = torch.randperm(table.shape[1], generator=generator)[:outputs].to(table.device)
        some = table[:, chosen[name]]
        traced = noise.std(some)
        if not traced.any():
            continue
        diagonal = None
        if isinstance(y, Moments) and not isinstance(y._var, Refusal):
            diagonal = y.std.reshape(table.shape)[:, chosen[name]].detach()
        found[name] = some.detach(), diagonal, traced
    sums = _moments_of_draws(model, args, kwargs, masks, seed, {n: chosen[n] for n in found})
    kinds = {_name(n, model): type(m).__name__ for n, m in model.named_modules()}
    return Check(tuple(_row(n, kinds[n], *found[n], *sums[n]) for n in found), masks)


def _row(
    name: str,
    kind: str,
    mean: Tensor,
    diagonal: Tensor | None,
    traced: Tensor,
    true_mean: Tensor,
    true: Tensor,
) -> Row:
    size = true.mean().clamp(min=torch.finfo(true.dtype).tiny)
    together = torch.stack([traced.flatten(), true.flatten()])
    return Row(
        module=name,
        kind=kind,
        elements=true.numel(),
        true_std=true.mean().item(),
        diagonal=None if diagonal is None else (diagonal.mean() / size).item(),
        traced=(traced.mean() / size).item(),
        correlation=torch.corrcoef(together)[0, 1].item() if true.numel() > 1 else float("nan"),
        mean_error=((mean - true_mean).abs().mean() / size).item(),
    )


def _moments_of_draws(
    model: nn.Module, args: Any, kwargs: Any, masks: int, seed: int, chosen: dict[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of the chosen elements over masks, summed around the first draw."""
    first: dict[str, Tensor] = {}
    sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(name: str, y: Any) -> None:
        if name not in chosen:
            return
        mean = y._mean if isinstance(y, Moments) else y
        value = (mean.flatten(1) if mean.ndim > 1 else mean[:, None])[:, chosen[name]].double()
        if name not in first:
            first[name] = value
            sums[name] = torch.zeros_like(value), torch.zeros_like(value)
        shift = value - first[name]
        sums[name] = sums[name][0] + shift, sums[name][1] + shift**2

    devices = [d for d in {p.device for p in model.parameters()} if d.type != "cpu"]
    with torch.random.fork_rng(devices=devices), torch.no_grad(), rates_passed_on(model):
        torch.manual_seed(seed)
        for _ in range(masks):
            with Sampled(), _listening(model, add):
                model(*args, **kwargs)
    return {
        name: (first[name] + a / masks, ((b - a**2 / masks) / (masks - 1)).clamp(min=0).sqrt())
        for name, (a, b) in sums.items()
    }


@contextmanager
def _listening(model: nn.Module, heard: Callable[[str, Any], None]) -> Any:
    """Report the first floating-point output of every module, the last call of each last."""
    handles = []
    for path, module in model.named_modules():

        def hook(_: Any, __: Any, out: Any, name: str = _name(path, model)) -> None:
            y = _first(out)
            if y is not None:
                heard(name, y)

        handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _name(path: str, model: nn.Module) -> str:
    return path or type(model).__name__


def _first(out: Any) -> Any:
    if isinstance(out, Moments) or (isinstance(out, Tensor) and out.is_floating_point()):
        return out
    values = out.values() if hasattr(out, "values") and not isinstance(out, Tensor) else out
    if isinstance(values, list | tuple) or hasattr(out, "values"):
        return next((y for y in map(_first, values) if y is not None), None)
    return None
