"""The README's comparison: the default training with and without dropout, by the real commands.

The third gives the plain network gentler steps, since it does not stand those of fast dropout. Writes
`results/train-bach*.json`; a few minutes. `python -m benchmarks.bach NAME` runs one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from benchmarks.record import save

COMMANDS = {
    "train-bach": [],
    "train-bach-plain": ["--drop", "0"],
    "train-bach-plain-gentle": ["--drop", "0", "--lr", "0.0003", "--momentum", "0.9"],
}


def main() -> None:
    for name, flags in COMMANDS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            start = time.perf_counter()
            command = [sys.executable, "-m", "fastdropout", "train", *flags, "--out", str(run)]
            subprocess.run(command, check=True)
            seconds = time.perf_counter() - start
            result = json.loads((run / "result.json").read_text())
            about = json.loads((run / "run.json").read_text())
            config = tomllib.loads((run / "config.toml").read_text())
            figures = {
                "command": " ".join(["fastdropout", "train", *flags]),
                "valid": result["valid"]["nll_per_step"],
                "test": result["test"]["nll_per_step"],
                "seconds": seconds,
                "corpus_sha256": about["corpus"]["sha256"],
            }
        print("wrote", save(name, config, figures))


if __name__ == "__main__":
    main()
