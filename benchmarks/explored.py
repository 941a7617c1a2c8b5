"""Writes down trainings that a setting was chosen from: `python -m benchmarks.explored RUN...`.

Finished run folders become lines of `results/explored.json`, beside what is there. Numbers tell them apart:
the same configuration keeps its number.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fastdropout.music.study.publish import command_of
from fastdropout.music.study.reproduce import result_of
from fastdropout.music.study.results import merge_results, read_results
from fastdropout.music.study.table import Cell
from fastdropout.music.training.run import Run

PATH = Path(__file__).parents[1] / "results" / "explored.json"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.explored RUN...")
    numbers = {result.command: result.candidate for result in read_results(PATH)}
    found = {}
    for run in map(Run, sys.argv[1:]):
        command = command_of(run.config, ["default"])  # Which changes least.
        number = numbers.setdefault(command, len(numbers) + 1)
        cell = Cell(run.config.corpus, "explored", number, run.config.seed, {})
        found[command] = replace(result_of(cell, run), command=command)
    merge_results(PATH, found.values())
    print("wrote", len(found), "to", PATH)


if __name__ == "__main__":
    main()
