"""From a run folder to a published model, and the card that describes all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fastdropout.errors import RunError
from fastdropout.files import write_atomic
from fastdropout.music.study.paper import class_of, described, figure_for
from fastdropout.music.study.table import train_command
from fastdropout.music.training.config import Config
from fastdropout.music.training.options import make_config
from fastdropout.music.training.presets import CLASSES
from fastdropout.music.training.published import load_model, models_folder, published_models, save_model
from fastdropout.music.training.run import Run


def publish(run: Run, name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Write the best network of a finished run as `name`, and the card anew."""
    folder = models_folder() if folder is None else Path(folder)
    if not name or Path(name).name != name or "." in name:
        raise RunError(f"name must be a word for a file, got {name!r}")
    result, about = run.result, run.about
    if result.scores is None:
        raise RunError(f"{run.path}: diverged before it had a network to publish")
    valid, test = result.scores
    config = run.config
    path = folder / f"{name}.safetensors"
    content = {
        "command": command_of(config),
        "corpus_sha256": about.corpus.sha256,
        "epochs": result.best_epoch,
        "seconds": result.seconds,
        "test": test.nll_per_step,
        "valid": valid.nll_per_step,
        "versions": about.versions,
    }
    save_model(path, run.model("best"), config, content)
    write_atomic(folder / "README.md", card(folder).encode())
    return path


def command_of(config: Config, presets: Sequence[str] = ("best", "paper", "default", *CLASSES)) -> str:
    """The shortest command that trains a configuration: over the preset that is nearest."""
    commands = []
    for preset in presets:
        base = dict(make_config({"preset": preset, "corpus": config.corpus}))
        changed = {
            name: value
            for name, value in config
            if value != base[name] and name not in ("corpus", "data", "threads")
        }
        commands.append(train_command(config.corpus, {"preset": preset, **changed}))
    return min(commands, key=len)


def units_of(config: Config) -> str:
    """The hidden units, and how they are dealt to members.

    >>> units_of(Config(hidden=600, members=2))
    '600 (2 members)'
    """
    return f"{config.hidden} ({config.members} members)" if config.members > 1 else str(config.hidden)


def card(folder: Path) -> str:
    """The card of the models in a folder."""
    rows, trained, hashes = [], [], []
    for name in published_models(folder):
        path = folder / f"{name}.safetensors"
        found = load_model(path)
        config, about = found.config, found.about
        paper = figure_for(class_of(config), config.corpus)
        cells = (
            f"`{name}`",
            config.corpus,
            units_of(config),
            described(config),
            f"{about['valid']:.3f}",
            f"{about['test']:.3f}",
            "–" if paper is None else f"{paper:.2f}",
            f"{about['epochs']} of {config.epochs}",
            f"{path.stat().st_size / 1e6:.1f} MB",
        )
        rows.append("| " + " | ".join(cells) + " |")
        versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
        trained.append(f"- `{name}`: `{about['command']}`, {about['seconds'] / 60:.1f} minutes ({versions})")
        hashes.append(f"- {config.corpus}: `{about['corpus_sha256']}`")
    template = (resources.files("fastdropout.music.study") / "templates" / "models.md").read_text()
    lists = {"rows": rows, "trained": trained, "hashes": dict.fromkeys(hashes)}
    return template.format(**{name: "\n".join(lines) for name, lines in lists.items()})
