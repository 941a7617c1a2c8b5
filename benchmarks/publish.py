"""Publishes the best network of a run: `python -m benchmarks.publish RUN NAME`.

Writes `src/fastdropout/music/models/NAME.safetensors` and its card; without arguments only the card.
"""

from __future__ import annotations

import sys

from fastdropout.files import write_atomic
from fastdropout.music.study.publish import card, publish
from fastdropout.music.training.published import models_folder
from fastdropout.music.training.run import Run


def main() -> None:
    if len(sys.argv) not in (1, 3):
        sys.exit("usage: python -m benchmarks.publish [RUN NAME]")
    if len(sys.argv) == 3:
        print("wrote", publish(Run(sys.argv[1]), sys.argv[2]))
    folder = models_folder()
    write_atomic(folder / "README.md", card(folder).encode())


if __name__ == "__main__":
    main()
