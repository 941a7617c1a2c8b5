"""Edited and damaged run and search folders: codes 0, 1 or 2, one line on stderr, no traceback, no hang."""

import importlib.util
import json
import os
import random
import shutil
import signal
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from fastdropout.music import cli
from fastdropout.music.data.midi import write_midi
from fastdropout.music.study.search import executors
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.folder import Settings, create_folder
from fastdropout.music.study.search.job import Outcome
from fastdropout.music.study.search.loop import Search

_spec = importlib.util.spec_from_file_location("_mutations", Path(__file__).parent / "data" / "mutations.py")
mutations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutations)

TINY = ("--hidden", "6", "--nu", "2", "--chunk", "20", "--batch", "4", "--threads", "1", "--epochs", "2")
SECONDS = 60
"""A command takes one or two, on a busy machine ten."""
# What may stand in the place of a value.
ODD = [
    *(None, True, False, -1, 0, 1, 2.5, 10**30, 10**400, -1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "\ud800",
        "\x1b[2J",
        "[/x]",
        "$\\frac$",
        "1",
        [],
        {},
        [[]],
        {"a": {}},
        "a" * 5000,
        ["x"] * 300,
    ),
]


@contextmanager
def stopping(after):
    """A Ctrl-C that is pressed after so many looks."""
    looks = iter(range(10**9))
    yield lambda: next(looks) >= after


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A finished run, one that was stopped, and a search."""
    place = tmp_path_factory.mktemp("originals")
    for number in range(8):
        roll = (np.random.default_rng(number).random((24, 88)) < 0.05).astype(np.uint8)
        write_midi(roll, place / "songs" / f"{number}.mid")
    songs = str(place / "songs")
    assert cli.main(["train", songs, *TINY, "-o", str(place / "finished")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastdropout.music.cli.train.ctrl_c", lambda: stopping(3))
        assert cli.main(["train", songs, *TINY, "-o", str(place / "stopped")]) == 130
    options = {"hidden": 6, "nu": 2, "chunk": 20, "batch": 4, "epochs": 1}
    with closing(
        Search(create_folder(Settings(corpus=songs, trials=2, options=options), place / "search"))
    ) as s:
        s.run(make_executor("serial"))
    return place


COMMANDS = {
    "finished": ("report {}", "compare {}", "evaluate {}", "resume {}", "generate {} --frames 3 -o {}/s.mid"),
    "stopped": ("resume {}", "resume {}", "evaluate {}", "report {}"),
    "search": ("search --executor serial --resume {}", "search --executor serial --trials 3 --resume {}"),
}


def edit(folder, rng):
    """Damage one file of a folder; say how."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (".lock", "report.html"))
    weights = [1 if p.suffix in (".safetensors", ".db") else 4 for p in files]
    path = rng.choices(files, weights)[0]
    kind = rng.choice(("bytes", "values", "values", "values", "place"))
    if kind == "values" and path.suffix in (".json", ".jsonl"):
        how = edit_values(path, rng)
    elif kind == "place":
        how = rng.choice(list(PLACES))
        path.unlink()
        PLACES[how](path)
    else:
        how = "bytes"
        path.write_bytes(mutations.mutate(path.read_bytes(), rng))
    return f"{path.relative_to(folder)}: {how}"


def edit_values(path, rng):
    """Replace, remove or add a value somewhere inside a JSON file, or inside one of its lines."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    content = json.loads(lines[number])
    at = content
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.6:
            at = at[key]
            continue
        break
    what, value = rng.choice(("replace", "replace", "remove", "add", "whole")), rng.choice(ODD)
    if what == "remove":
        del at[key]
    elif what == "add" and isinstance(at, dict):
        at["more"] = value
    elif what == "whole":
        content = value
    else:
        at[key] = value
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")
    return f"{what} {key} {str(value)[:40]!r}"


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(600 << 20)


PLACES = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path.name),
    "sparse": sparse,
    "brackets": lambda path: path.write_bytes(b"[" * 100_000),
    "another": lambda path: (
        shutil.copy(path.parent / "config.toml", path) if (path.parent / "config.toml").exists() else None
    ),
}


class Hung(BaseException):
    """A command took too long."""


def alarm(number, frame):
    raise Hung


def survive(originals, place, rng, capfd):
    """One edit and one command: the exit code, and what was wrong."""
    kind = rng.choice(("finished", "finished", "stopped", "search"))
    folder = Path(shutil.copytree(originals / kind, place / "f"))
    how = f"{kind}: {edit(folder, rng)}"
    words = rng.choice(COMMANDS[kind]).replace("{}", str(folder)).split()
    capfd.readouterr()
    signal.alarm(SECONDS)
    try:
        code = cli.main(words)
    except Hung:
        code = "it hangs"
    finally:
        signal.alarm(0)
    error = capfd.readouterr().err
    shutil.rmtree(folder)
    lines = error.splitlines()
    faults = [line for line in lines if not line.startswith("fastdropout: warning: ")]
    fine = code in (0, 1, 2) or (kind == "search" and code == 130)
    fine = fine and len(faults) == (code == 2) and all(line.startswith("fastdropout: ") for line in lines)
    return code, "" if fine and error.replace("\n", "").isprintable() else f"{how}\n{words}\n{code}\n{error}"


def fuzz(originals, place, capfd, monkeypatch, count, seed):
    # A search that was edited to have thousands of trials is asked to stop after some; they take no time.
    monkeypatch.setattr(executors, "run_job", lambda job, stop: Outcome("finished", 5.0, 1, 1.0))
    monkeypatch.setattr("fastdropout.music.cli.train.ctrl_c", lambda: stopping(40))
    signal.signal(signal.SIGALRM, alarm)
    codes, wrong = Counter(), []
    for number in range(count):
        code, told = survive(originals, place, random.Random(f"{seed} {number}"), capfd)
        codes[code] += 1
        if told:
            wrong.append(f"edit {number} of seed {seed}: {told}")
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong[:20])
    return codes


@pytest.mark.filterwarnings("always")
def test_some_edits_are_survived(originals, tmp_path, capfd, monkeypatch):
    codes = fuzz(originals, tmp_path, capfd, monkeypatch, 30, 0)
    assert codes[2] > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("always")
def test_a_thousand_edits_are_survived(originals, tmp_path, capfd, monkeypatch):
    codes = fuzz(originals, tmp_path, capfd, monkeypatch, 1000, 1)
    assert codes[2] > 250
