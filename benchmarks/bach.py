"""The README's comparison: the default training with and without dropout, by the real commands.

Writes `results/train-bach.json` and `results/train-bach-plain.json`; about ten minutes on two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from benchmarks.record import save

COMMANDS = {"train-bach": [], "train-bach-plain": ["--drop", "0"]}


def main() -> None:
    import json

    for name, flags in COMMANDS.items():
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
                "corpus_sha256": about.get("corpus_sha256", about.get("sha256")),
            }
        print("wrote", save(name, config, figures))


if __name__ == "__main__":
    main()
