"""A whole training in a run folder: begun, resumed and finished."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from fastdropout.errors import RunError
from fastdropout.music.data.corpora import NAMES, absolute
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.training.build import torch_settings, usable_threads
from fastdropout.music.training.config import Config
from fastdropout.music.training.evaluation import Evaluation, evaluate
from fastdropout.music.training.fitting import Progress, fit
from fastdropout.music.training.network import Network
from fastdropout.music.training.records import Result, Scores
from fastdropout.music.training.run import CHECKPOINTS, Run, create_run
from fastdropout.music.training.state import Data, State, load_corpus, new_state, prepare, settle
from fastdropout.recurrent import kernel

Watch = Callable[[Progress], object]
Stop = Callable[[], bool]


def train(
    config: Config,
    *,
    corpus: Corpus | None = None,
    out: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    command: Sequence[str] = (),
    watch: Watch | None = None,
    stop: Stop | None = None,
    began: Callable[[Run], object] | None = None,
    save_every: float = 30.0,
    tensorboard: bool = False,
) -> Run:
    """Train in a new run folder, test the best network, and return the folder.

    `began` is called with the folder as soon as it is there, `watch` with each `Progress`. Where `stop`
    answers True after an update, the state is saved and the run left unfinished, to be resumed. Within an
    epoch the state is saved every `save_every` seconds.
    """
    with torch_settings(config):
        config = _settled(config)
        data = prepare(config, corpus)
        config = settle(config, data.corpus)
        state = new_state(config, data)
        run = create_run(config, data.corpus, out=out, root=root, command=command)
        with run.lock():
            if began is not None:
                began(run)
            run.save(state, data.corpus)
            _go(run, state, data, watch, stop, save_every, tensorboard)
    return run


def resume(
    path: str | os.PathLike[str] | Run,
    *,
    corpus: Corpus | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
    save_every: float = 30.0,
    tensorboard: bool = False,
) -> Run:
    """Resume a run from its last checkpoint; the outcome is bit-identical to an uninterrupted run's."""
    run = path if isinstance(path, Run) else Run(path)
    if run.finished:
        return run
    config = run.config
    with torch_settings(config), run.lock():
        run.sweep()
        which, checkpoint = run.latest() or ("last", None)
        if checkpoint is not None and checkpoint.state.config != config:
            changed = [name for name, value in checkpoint.state.config if getattr(config, name) != value]
            raise RunError(
                f"{run.path}: {', '.join(changed)} in config.toml was changed after the run began; "
                "change it back, or start a new run with --config"
            )
        data = prepare(config, corpus)
        known = checkpoint.corpus_sha256 if checkpoint else run.about.corpus.sha256
        expected = known or data.corpus.sha256
        if data.corpus.sha256 != expected:
            raise RunError(
                f"{run.path}: was trained on other pieces, {config.corpus} had the sha256 {expected[:16]}…, "
                f"now {data.corpus.sha256[:16]}…; restore the corpus, or start a new run"
            )
        _compare_kernels(run)
        state = checkpoint.state if checkpoint else new_state(config, data)
        for damaged in CHECKPOINTS[: CHECKPOINTS.index(which)]:
            run.set_aside(damaged)
        _recover_best(run, state, data)
        run.forget_after(state.counters.epoch)
        _go(run, state, data, watch, stop, save_every, tensorboard)
    return run


def _compare_kernels(run: Run) -> None:
    """Warn where the run began with the compiled kernel and continues without it, or the other way round."""
    before = run.about.versions.get("kernel")
    now = kernel.status()
    if before is not None and before.startswith("built") != now.startswith("built"):
        warnings.warn(
            f"{run.path}: the run began with kernel {before!r} and continues with kernel {now!r}: "
            "it will not be bit-identical to an uninterrupted one",
            RuntimeWarning,
            stacklevel=3,
        )


def _recover_best(run: Run, state: State, data: Data) -> None:
    """Replace a best checkpoint that is missing or damaged: a run must be able to end without it."""
    done = state.counters
    if done.best is None:
        return
    try:
        run.model("best")
        return
    except RunError as error:
        fault = run.fault("best", error)
    run.set_aside("best")
    for which, found in (("last", state), ("previous", _readable(run, "previous"))):
        if found and (found.counters.epoch, found.counters.update) == (done.best_epoch, 0):
            run.save_best(found, data.corpus.sha256)
            told = f"made again from the checkpoint {which}"
            break
    else:
        if done.diverged or not state.finished:
            # Its score must not keep out a later network; patience begins anew.
            lost, done.best, done.best_epoch = done.best_epoch, None, done.epoch
            told = f"the network of epoch {lost} is lost, the best one from here on counts"
        else:
            run.save_best(state, data.corpus.sha256)
            told = f"the network of epoch {done.best_epoch} is lost, that of epoch {done.epoch} replaces it"
    warnings.warn(f"{fault}; {told}", RuntimeWarning, stacklevel=3)


def _readable(run: Run, which: str) -> State | None:
    try:
        return run.checkpoint(which).state
    except RunError:
        return None


def evaluate_run(
    path: str | os.PathLike[str] | Run,
    split: str = "test",
    *,
    which: str = "best",
    score_first: bool | None = None,
    corpus: Corpus | None = None,
) -> Evaluation:
    """Evaluate a checkpoint of a run on the whole pieces of a split of its corpus, or of another."""
    run = path if isinstance(path, Run) else Run(path)
    return evaluate_model(run.model(which), run.config, split, score_first=score_first, corpus=corpus)


def evaluate_model(
    model: Network,
    config: Config,
    split: str = "test",
    *,
    score_first: bool | None = None,
    corpus: Corpus | None = None,
) -> Evaluation:
    """Evaluate a network on the whole pieces of a split of its configuration's corpus, or of another."""
    corpus = load_corpus(config) if corpus is None else corpus
    if split not in corpus.splits:
        raise RunError(f"split must be one of {', '.join(corpus.splits)}, got {split!r}")
    first = config.score_first if score_first is None else score_first
    with torch_settings(config):
        return evaluate(model, corpus.splits[split], score_first=first)


def _go(
    run: Run,
    state: State,
    data: Data,
    watch: Watch | None,
    stop: Stop | None,
    save_every: float,
    tensorboard: bool,
) -> None:
    writer = _writer(run, state) if tensorboard else None
    saved = time.monotonic()
    try:
        for progress in fit(state, data):
            due = time.monotonic() - saved >= save_every
            stopped = stop is not None and stop()
            if progress.record is not None or due or stopped:
                run.save(state, data.corpus, progress.record)
                saved = time.monotonic()
            if writer is not None and progress.record is not None:
                for name, value in progress.record.to_json().items():
                    if isinstance(value, float):
                        writer.add_scalar(name, value, progress.record.epoch)
            if watch is not None:
                watch(progress)
            if stopped and not state.finished:
                return
    finally:
        if writer is not None:
            writer.close()
    run.save_result(_result(run, state, data))


def _result(run: Run, state: State, data: Data) -> Result:
    """The final figures, of the best network on whole pieces; a run may diverge before it has one."""
    done, best_epoch, scores = state.counters, 0, dict[str, Any]()
    if done.best is not None:
        best = run.checkpoint("best").state
        best_epoch, model = best.counters.epoch, best.evaluated.eval()
        for split in ("valid", "test"):
            scored = evaluate(model, data.corpus.splits[split], score_first=state.config.score_first)
            scores[split] = Scores.model_validate(scored.to_json())
    return Result(
        epochs=done.epoch,
        updates=done.updates,
        best_epoch=best_epoch,
        diverged=done.diverged,
        seconds=done.total_seconds,
        parameters=sum(p.numel() for p in state.model.parameters()),
        **scores,
    )


def _writer(run: Run, state: State) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RunError("tensorboard is not installed: pip install 'fastdropout[tensorboard]'") from error
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=state.counters.epoch + 1)


def _settled(config: Config) -> Config:
    """With paths that hold wherever the run is resumed, and the number of threads it began with."""
    change: dict[str, Any] = {"threads": usable_threads(config)}
    if config.threads > change["threads"]:
        told = f"threads {config.threads} is more than this machine can use: {change['threads']} are used"
        warnings.warn(told, RuntimeWarning, stacklevel=3)
    if config.corpus not in NAMES and os.path.exists(os.path.expanduser(config.corpus)):
        change["corpus"] = absolute(config.corpus)
    if config.data is not None:
        change["data"] = absolute(config.data)
    return config.model_copy(update=change)
