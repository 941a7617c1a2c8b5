"""Publishes the figures of the paper's analysis: `python -m docs.figures [FOLDER | --check]`.

FOLDER is where `fastdropout figures -o FOLDER` wrote: its numbers are taken to `results/figures`. From these
the pictures in `docs/images` are drawn, and the captions in `docs/analysis.md` written between
`<!-- figure: name -->` and `<!-- end -->`. `--check` says whether the captions are those of the numbers.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from fastdropout.files import write_atomic
from fastdropout.music.study.gallery import THEMES, Exhibit, exhibits, load, render

ROOT = Path(__file__).parents[1]
NUMBERS, PICTURES, PAGE = (
    ROOT / "results" / "figures",
    ROOT / "docs" / "images",
    ROOT / "docs" / "analysis.md",
)
PATTERN = re.compile(r"(<!-- figure: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def entry(exhibit: Exhibit) -> str:
    """The picture, its caption and its table."""
    text = exhibit.text(load(NUMBERS / f"{exhibit.name}.npz"))
    return f"![{exhibit.title}](images/{exhibit.name}.png)\n\n{text}"


def filled(text: str) -> str:
    """The page with its captions made anew."""
    known = {exhibit.name: exhibit for exhibit in exhibits()}
    return PATTERN.sub(lambda match: f"{match[1]}{entry(known[match[2]])}{match[3]}", text)


def publish(folder: Path) -> None:
    """Take the numbers over and draw them."""
    NUMBERS.mkdir(parents=True, exist_ok=True)
    for exhibit in exhibits():
        numbers = NUMBERS / f"{exhibit.name}.npz"
        if folder != NUMBERS:
            shutil.copyfile(folder / numbers.name, numbers)
        write_atomic(PICTURES / f"{exhibit.name}.png", render(exhibit, load(numbers), THEMES[0], "png"))


def main() -> None:
    """Publish, or with `--check` only compare."""
    check = "--check" in sys.argv
    if not check:
        publish(Path(sys.argv[1]) if len(sys.argv) > 1 else NUMBERS)
    text = PAGE.read_text()
    new = filled(text)
    if new != text and not check:
        write_atomic(PAGE, new.encode())
    print("the captions are stale" if new != text and check else "the captions are those of the numbers")
    sys.exit(1 if new != text and check else 0)


if __name__ == "__main__":
    main()
