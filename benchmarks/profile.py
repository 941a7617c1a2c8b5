"""Where the time of a training step goes: `python -m benchmarks.profile`, written to results/profile.json.

Each part is left out in turn (its results are then nonsense) and the difference taken, so that nothing is
slowed down by being watched; all variants are interleaved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

import fastdropout as fd
from benchmarks.record import save
from benchmarks.speed import DROPS, INPUTS, STEPS
from fastdropout.recurrent import backward, forward, kernel, products

BATCH, UNITS, ROUNDS = 64, 400, 21
PARTS = (
    "products of the steps",
    "gradient of the recurrent weights",
    "products with the input",
    "element-wise passes",
)


def nothing(*args: Any, **options: Any) -> None:
    """In the place of a part."""


@contextmanager
def without(part: str) -> Iterator[None]:
    """The layer with a part left out."""
    step = kernel.load("tanh", torch.float32)
    if step is None:
        raise SystemExit("no C compiler: there is no kernel to be profiled")

    def no_product(weights: torch.Tensor, steps: int, rows: int) -> products.Product:
        out = tuple(weights.new_zeros(len(weights), rows, weights.shape[1]))
        return lambda units: out

    def share(self: forward.Forward, rows: slice) -> torch.Tensor:
        x = self.inputs.x_mean
        return forward.buffers.empty(x, 2, rows.stop - rows.start, self.given + self.apart).zero_()

    patches: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
        "nothing": [],
        "products of the steps": [
            (forward, "step_product", no_product),
            (backward, "step_product", no_product),
        ],
        "gradient of the recurrent weights": [(torch.Tensor, "baddbmm_", nothing)],
        "products with the input": [
            (forward.Forward, "_input_share", share),
            (backward.Backward, "_add_input", nothing),
        ],
        "element-wise passes": [(step, "forward", nothing), (step, "backward", nothing)],
    }
    with ExitStack() as stack:
        for target, name, new in patches[part]:
            stack.enter_context(mock.patch.object(target, name, new))
        yield


def main() -> None:
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    x = (torch.rand(STEPS, BATCH, INPUTS) < 0.05).float()
    gradient = torch.randn(STEPS, BATCH, UNITS)
    rnn = fd.nn.RNN(INPUTS, UNITS, **DROPS)
    seconds: dict[str, list[float]] = {part: [] for part in ("nothing", *PARTS)}
    for i in range(ROUNDS + 2):
        for part, values in seconds.items():
            with without(part):
                start = time.perf_counter()
                y, _ = rnn(x)
                torch.autograd.backward([y.mean, y.var], [gradient, gradient])
                if i > 1:  # the first two warm up
                    values.append(time.perf_counter() - start)
    median = {part: 1000 * statistics.median(values) for part, values in seconds.items()}
    found = {part: median["nothing"] - median[part] for part in PARTS}
    found["everything else"] = median["nothing"] - sum(found.values())
    found["all"] = median["nothing"]
    for name, value in found.items():
        print(f"{value:8.1f} ms  {name}")
    config = {"batch": BATCH, "units": UNITS, "rounds": ROUNDS, "threads": torch.get_num_threads(), "seed": 0}
    print(f"wrote {save('profile', config, {'milliseconds': found})}")


if __name__ == "__main__":
    main()
