"""2,000 random layers: the fast path against the reference, outputs and all gradients."""

import random

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import fastdropout as fd
from fastdropout import Moments

SEED, CASES = 17, 2000
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9}
# Smaller gradients count as zero: a saturated unit's slope ends at 1e-37 in the kernel, inputs are up to 1e7.
LEAST = 1e-23
KINDS = ("RNN", "RNN", "relu", "LSTM", "GRU")


def drop(rng):
    """None, an ordinary one, or one near 1."""
    return rng.choice((0.0, rng.random(), rng.random(), 1 - 10 ** rng.uniform(-6, -1)))


def draw(rng):
    """What a case is made of, in plain values."""
    inputs, units, batch, steps = (rng.randint(1, n) for n in (6, 9, 4, 7))
    method = rng.choice(("moments",) * 8 + ("mask", "gaussian"))
    noisy = rng.random() < 0.2 and method == "moments"
    # Where nothing is left to draw the reference draws nothing: with more layers the draws would be others.
    alone = method != "moments"
    return {
        "kind": rng.choice(KINDS),
        "sizes": (inputs, units, batch, steps),
        "options": {
            "num_layers": min(rng.choice((1, 1, 1, 2)), 1 if alone else 2),
            "bidirectional": rng.random() < 0.2 and not alone,
            "bias": rng.random() < 0.8,
            "drop_input": drop(rng),
            "drop_hidden": drop(rng),
            "rule": rng.choice(fd.functional.RULES),
            "method": method,
            "noise_hidden": rng.choice((0.0, 0.0, 10 ** rng.uniform(-4, 0))),
            "weight_noise": noisy,
            "learn_initial": rng.random() < 0.2,
            "recompute": rng.random() < 0.3,
        },
        "scale": 10 ** rng.uniform(-8, 7),
        "weights": 10 ** rng.uniform(-1, 0.3),
        "uncertain": rng.random() < 0.3,
        "state": rng.random() < 0.3,
        "lengths": sorted((rng.randint(1, steps) for _ in range(batch)), reverse=True)
        if rng.random() < 0.3
        else None,
        "dtype": rng.choice((torch.float32, torch.float64)),
        "seed": rng.randrange(2**31),
    }


def layer_of(case, fused):
    """The layer in the case's own precision; its weights are numbers of float32."""
    torch.manual_seed(case["seed"])
    inputs, units, *_ = case["sizes"]
    kind, options = case["kind"], {**case["options"], "fused": fused}
    if kind == "relu":
        kind, options = "RNN", {**options, "nonlinearity": "relu"}
    layer = getattr(fd.nn, kind)(inputs, units, **options)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if name.startswith("weight") and "log" not in name:
                p.mul_(case["weights"])
    return layer


def outcome(case, fused, dtype):
    """Outputs, last states and the gradients of input and weights."""
    layer = layer_of(case, fused).to(dtype)
    generator = torch.Generator().manual_seed(case["seed"])
    inputs, units, batch, steps = case["sizes"]

    def tensor(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    x, spread = tensor(steps, batch, inputs) * case["scale"], tensor(steps, batch, inputs) * case["scale"]
    leaves = [x.requires_grad_()]
    given = x
    if case["uncertain"] and case["lengths"] is None:
        leaves.append((spread**2).requires_grad_())
        given = Moments(*leaves)
    state = None
    if case["state"]:
        depth = layer.num_layers * (1 + layer.bidirectional)
        parts = [
            (
                tensor(depth, batch, units).requires_grad_(),
                tensor(depth, batch, units).square().requires_grad_(),
            )
            for _ in range(2 if case["kind"] == "LSTM" else 1)
        ]
        leaves += [t for pair in parts for t in pair]
        state = tuple(Moments(*pair) for pair in parts)
        state = state if case["kind"] == "LSTM" else state[0]
    if case["lengths"] is not None:
        given = pack_padded_sequence(x, case["lengths"])
    torch.manual_seed(case["seed"])  # of what a method draws
    out, last = layer(given, state)
    out = out.data if case["lengths"] is not None else out
    made = [t for m in (out, *(last if isinstance(last, tuple) else (last,))) for t in (m.mean, m.var)]
    total = sum((t * tensor(*t.shape)).sum() for t in made)
    leaves += list(layer.parameters())
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*made, *(torch.zeros_like(p) if g is None else g for g, p in zip(grads, leaves, strict=True))]


def distance(got, expected):
    """The largest difference, relative to the largest element, over all tensors."""
    worst = 0.0
    for a, b in zip(got, expected, strict=True):
        largest = max(b.abs().max().item(), LEAST)
        worst = max(worst, (a.double() - b.double()).abs().max().item() / largest)
        if not a.isfinite().all():
            worst = float("inf")
    return worst


def apart(case):
    """How far the fast path is from the reference, and the reference in float32 from that in float64."""
    dtype, drawn = case["dtype"], case["options"]["method"] != "moments"
    got = outcome(case, True, dtype)
    if drawn or dtype == torch.float64:  # draws differ from one precision to the other
        return distance(got, outcome(case, False, dtype)), 0.0
    exact = outcome(case, False, torch.float64)
    off = distance(got, exact)
    return off, distance(outcome(case, False, dtype), exact) if off > LIMIT[dtype] else 0.0


@pytest.mark.slow
def test_fast_path_and_reference_agree():
    """Relative to the largest element; in float64 without an exception.

    In float32 some 15 of the 2,000 cases are further than 1e-4 from float64, on both paths, because a float32
    cannot do better than its own rounding: a saturated unit has a slope of exp(-2 |a|), which multiplies the
    rounding of a sum a of terms up to 1e7; beyond |a| = 9 the slope of `torch.tanh`, 1 - y^2, is 0; the tail
    of a relu is 1e-16; the variance of tanh(a) by the rule `paper` does not vanish with V[a], so that slopes
    of 1 / V[a] cancel in an LSTM. There, and only there, the error of the reference itself is the measure.
    """
    rng, exceptions = random.Random(SEED), 0
    for number in range(CASES):
        case = draw(rng)
        off, rounding = apart(case)
        if off > LIMIT[case["dtype"]]:
            exceptions += 1
            assert off <= 4 * rounding, (number, off, rounding, case)
    assert exceptions <= CASES // 100
