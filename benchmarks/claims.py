"""What the pages say about trained music networks, measured: `python -m benchmarks.claims WHAT`.

- `published`: the predicted variance of the published models against sampled masks.
- `settings`: the same for small networks by drop rate and loss. Where V[p] / (p (1 - p)) is nearly one
  number, the spread of a probability says nothing that the probability does not say.
- `masks`: sampled masks by rate and place on JSB Chorales, beside the same noise integrated out.

Each writes `results/claims-WHAT.json`. `published` and `masks` need the data sets.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fastdropout as fd
from benchmarks.record import save
from fastdropout import Moments
from fastdropout.music.data.rolls import Piece
from fastdropout.music.training import make_config
from fastdropout.music.training.build import build_model
from fastdropout.music.training.config import Config
from fastdropout.music.training.network import Network, NoteRNN
from fastdropout.music.training.published import load_model, published_models
from fastdropout.music.training.runner import train
from fastdropout.music.training.state import load_corpus

PIECES, STEPS = 8, 100
OPEN = 0.01 * 0.99
"""Of p (1 - p): probabilities closer to 0 or 1 are as good as certain."""


def frames(pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
    """The first frames of the first pieces that are long enough, and the frames after them."""
    some = [torch.from_numpy(p[: STEPS + 1]).float() for p in pieces if len(p) > STEPS // 2][:PIECES]
    length = min(map(len, some))
    whole = torch.stack([p[:length] for p in some], 1)
    return whole[:-1], whole[1:]


def logits(model: NoteRNN, x: Tensor) -> Moments:
    return model(x)[0].contexts[0]


@torch.no_grad()
def sampled(model: NoteRNN, config: Config, x: Tensor, masks: int) -> Tensor:
    """Logits under sampled masks, (masks, steps, pieces, notes)."""
    changes = {"method": "mask", "rule": "fast", "loss": "mean", "members": 1}
    changes["hidden"] = config.hidden // config.members
    twin = build_model(config.model_copy(update=changes), model.features)
    twin.load_state_dict(model.state_dict())
    twin.train()
    return torch.stack([logits(twin, x).mean for _ in range(masks)])


def against_masks(model: Network, config: Config, pieces: Sequence[Piece], masks: int) -> dict[str, Any]:
    """Diagonal and traced moments of the logits against masks; the members of an ensemble one by one."""
    x, y = frames(pieces)
    ratios, shares, offsets, stds, traced = [], [], [], [], []
    drawn_logits, predicted = [], []
    torch.manual_seed(0)
    for part in model.parts:
        part.eval()
        with torch.no_grad():
            found = logits(part, x)
        drawn = sampled(part, config, x, masks)
        mean, var = drawn.mean(0), drawn.var(0)
        ratios.append(found.var.mean() / var.mean())
        offsets.append((found.mean - mean).abs().mean())
        stds.append(var.sqrt().mean())
        p = fd.functional.sigmoid(found)
        rest = p.mean * (1 - p.mean)
        shares.append((p.var / rest)[rest > OPEN])
        last = x[:, :1]
        with fd.integrate() as noise:
            out = logits(part, last)
        traced.append(noise.std(out[-1, 0]).mean() / var[-1, 0].sqrt().mean())
        drawn_logits.append(drawn)
        predicted.append(found)
    together = Moments(
        sum(m.mean for m in predicted) / len(predicted), sum(m.var for m in predicted) / len(predicted)
    )
    p_masks = torch.sigmoid(torch.stack(drawn_logits).mean(0)).mean(0).clamp(1e-7, 1 - 1e-7)
    share = torch.cat(shares)
    quantiles = torch.quantile(share[:: max(1, len(share) // 10**6)], torch.tensor([0.05, 0.5, 0.95]))
    return {
        "variance_ratio": float(torch.stack(ratios).mean()),
        "traced_std_ratio_of_the_last_frame": float(torch.stack(traced).mean()),
        "offset_of_the_mean": float(torch.stack(offsets).mean()),
        "std_of_the_logits": float(torch.stack(stds).mean()),
        "var_of_p_over_p_q": dict(zip(("5%", "median", "95%"), quantiles.tolist(), strict=True)),
        "nll_of_the_pass": float(fd.losses.bernoulli_nll(together, y).sum(-1).mean()),
        "nll_of_averaged_masks": float(torch.nn.functional.binary_cross_entropy(p_masks, y) * y.shape[-1]),
    }


def published(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in published_models():
        found = load_model(name)
        if found.config.output not in (None, "notes") or found.model.remembers:
            continue
        pieces = load_corpus(found.config).test
        drops = {key: getattr(found.config, key) for key in ("drop_input", "drop_hidden", "drop_output")}
        yield {"model": name, **drops, **against_masks(found.model, found.config, pieces, args.masks)}


def trained(config: Config, folder: Path) -> tuple[Network, float, float]:
    """The best network of a training, and its scores."""
    run = train(config, out=folder)
    scores = run.result
    assert scores.valid is not None
    assert scores.test is not None
    return run.model("best"), scores.valid.nll_per_step, scores.test.nll_per_step


def settings(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for loss in ("mean", "expected"):
        for drops in ((0.05, 0.1, 0.1), (0.1, 0.2, 0.2), (0.2, 0.5, 0.5)):
            rates = dict(zip(("drop_input", "drop_hidden", "drop_output"), drops, strict=True))
            size = {"hidden": args.hidden, "epochs": args.epochs, "noise_hidden": 0.0, "threads": 1}
            config = make_config({"corpus": "bach", "loss": loss, **rates, **size})
            with tempfile.TemporaryDirectory() as folder:
                model, _, test = trained(config, Path(folder) / "run")
            pieces = load_corpus(config).test
            found = against_masks(model, config, pieces, args.masks)
            yield {"loss": loss, **rates, "test": test, **found}


def masks(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    alone = [(0.0, 0.0, 0.0), (0.0, 0.0, 0.25), (0.0, 0.0, 0.5), (0.0, 0.25, 0.0), (0.0, 0.5, 0.0)]
    both = [(0.1, 0.25, 0.5), (0.2, 0.5, 0.5)]
    rows = [("mask", rates) for rates in (*alone, *both)] + [("moments", rates) for rates in both]
    for method, drops in rows:
        rates = dict(zip(("drop_input", "drop_hidden", "drop_output"), drops, strict=True))
        size = {"hidden": args.hidden, "epochs": args.epochs, "noise_hidden": 0.0, "pad": "end", "threads": 1}
        steps = {"lr": 0.001, "momentum": 0.9}
        config = make_config({"corpus": "jsb-chorales", "method": method, **size, **rates, **steps})
        with tempfile.TemporaryDirectory() as folder:
            _, valid, test = trained(config, Path(folder) / "run")
        yield {"method": method, **rates, **steps, "valid": valid, "test": test}


def main() -> None:
    what = {"published": published, "settings": settings, "masks": masks}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("--masks", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    found = []
    for row in what[args.what](args):
        print(row, flush=True)
        found.append(row)
        print("wrote", save(f"claims-{args.what}", vars(args), found), flush=True)


if __name__ == "__main__":
    main()
