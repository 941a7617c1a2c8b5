"""Damaged and missing checkpoints: a run goes on with a warning, and never begins anew without one."""

import os
import shutil
import warnings

import pytest
import torch

from fastdropout.errors import RunError
from fastdropout.music.training import Run, load_checkpoint, resume, save_checkpoint, train
from fastdropout.music.training.run import CHECKPOINTS


def weights(run):
    return list(load_checkpoint(run.path / "last.safetensors").state.model.parameters())


def equal(run, other):
    return all(torch.equal(a, b) for a, b in zip(weights(run), weights(other), strict=True))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-20])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-50] ^= 8
    path.write_bytes(data)


def missing(path):
    path.unlink()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (truncated, flipped, missing, pipe, folder)


@pytest.fixture(scope="module")
def make_config():
    from fastdropout.music.training import make_config

    small = {"hidden": 6, "nu": 2, "chunk": 10, "batch": 4, "epochs": 4, "threads": 1, "lr": 0.003}
    return lambda **options: make_config(
        {**small, "momentum": 0.5, "output_bias": -0.8, "transpose": 0, **options}
    )


def stop_after(updates):
    calls = iter(range(1, 10_000))
    return lambda: next(calls) >= updates


@pytest.fixture(scope="module")
def whole(make_config, corpus, tmp_path_factory):
    return train(make_config(), corpus=corpus, out=tmp_path_factory.mktemp("whole") / "r")


@pytest.fixture(scope="module")
def stopped(make_config, corpus, tmp_path_factory):
    """A run in the middle of its third epoch; its best network is that of the second."""
    run = train(
        make_config(), corpus=corpus, out=tmp_path_factory.mktemp("stopped") / "r", stop=stop_after(14)
    )
    assert run.checkpoint("last").state.counters.epoch == run.checkpoint("best").state.counters.epoch == 2
    return run


@pytest.fixture
def half(stopped, tmp_path):
    return Run(shutil.copytree(stopped.path, tmp_path / "half"))


def test_the_last_two_are_kept(half):
    updates = [half.checkpoint(which).state.counters.updates for which in ("previous", "last")]
    assert updates[0] < updates[1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_is_replaced_by_the_one_before(half, whole, corpus, damage):
    damage(half.path / "last.safetensors")
    with pytest.warns(RuntimeWarning, match="resumes from the checkpoint previous, after epoch 2") as caught:
        run = resume(half.path, corpus=corpus)
    assert len(caught) == 1
    assert equal(run, whole)
    assert run.result.test == whole.result.test
    assert [r.epoch for r in run.metrics] == [1, 2, 3, 4]
    # Set aside, so that it never took the place of the one that could be read.
    assert os.path.lexists(run.path / "last.safetensors.damaged") == (damage is not missing)


def test_a_damaged_previous_too(half, whole, corpus):
    truncated(half.path / "last.safetensors")
    flipped(half.path / "previous.safetensors")
    with pytest.warns(RuntimeWarning, match="resumes from the checkpoint best"):
        run = resume(half.path, corpus=corpus)
    assert equal(run, whole)


@pytest.mark.parametrize("damage", [flipped, missing])
def test_never_anew_in_silence(half, corpus, damage):
    for which in CHECKPOINTS:
        damage(half.path / f"{which}.safetensors")
    before = (half.path / "metrics.jsonl").read_bytes()
    with pytest.raises(
        RunError, match="no other to resume from; start a new run: fastdropout train --config"
    ):
        resume(half.path, corpus=corpus)
    assert (half.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_best_that_is_still_the_last(whole, corpus, tmp_path, damage):
    """All epochs are done, there are no final figures, and the best network is lost: it is the last one's."""
    run = Run(shutil.copytree(whole.path, tmp_path / "r"))
    assert run.result.best_epoch == 4
    (run.path / "result.json").unlink()
    damage(run.path / "best.safetensors")
    with pytest.warns(RuntimeWarning, match="made again from the checkpoint last"):
        run = resume(run.path, corpus=corpus)
    assert run.result.test == whole.result.test
    assert run.checkpoint("best").state.counters.epoch == 4


@pytest.mark.parametrize("patience", [0, 2])
def test_a_lost_best_of_a_run_that_is_done(make_config, corpus, tmp_path, patience):
    """The best network was of an earlier epoch: the last one takes its place, and that is said."""
    settings = make_config(patience=patience, epochs=9 if patience else 4)
    run = train(settings, corpus=corpus, out=tmp_path / "r", stop=stop_after(24))
    state = run.checkpoint("last").state
    assert (state.counters.epoch, state.counters.update) == (4, 0)
    state.counters.best_epoch = 1
    assert state.finished
    save_checkpoint(state, run.path / "last.safetensors", corpus.sha256)
    (run.path / "result.json").unlink(missing_ok=True)
    missing(run.path / "best.safetensors")
    with pytest.warns(RuntimeWarning, match="network of epoch 1 is lost, that of epoch 4 replaces it"):
        run = resume(run.path, corpus=corpus)
    assert (run.result.epochs, run.result.best_epoch) == (4, 4)
    assert run.result.test.nll_per_step > 0
    assert len(run.metrics) == 4


def test_a_lost_best_of_a_run_that_goes_on(make_config, corpus, tmp_path):
    """What is lost must not keep out what comes: the best from here on counts."""
    run = train(make_config(epochs=6), corpus=corpus, out=tmp_path / "r", stop=stop_after(27))
    done = run.checkpoint("last").state.counters
    assert (done.epoch, done.update) == (4, 3)
    state = run.checkpoint("last").state
    state.counters.best, state.counters.best_epoch = 0.001, 2  # Which no later network reaches.
    save_checkpoint(state, run.path / "last.safetensors", corpus.sha256)
    flipped(run.path / "best.safetensors")
    with pytest.warns(
        RuntimeWarning, match="the network of epoch 2 is lost, the best one from here on counts"
    ):
        run = resume(run.path, corpus=corpus)
    assert run.result.best_epoch in (5, 6)
    assert run.checkpoint("best").state.counters.epoch == run.result.best_epoch


def test_a_lost_best_of_a_run_that_diverged(half, corpus):
    state = half.checkpoint("last").state
    state.counters.diverged = True
    save_checkpoint(state, half.path / "last.safetensors", corpus.sha256)
    missing(half.path / "best.safetensors")
    missing(half.path / "previous.safetensors")
    with pytest.warns(RuntimeWarning, match="is lost"):
        run = resume(half.path, corpus=corpus)
    assert run.result.diverged
    assert run.result.test is None


def test_a_network_with_weights_that_are_no_numbers_is_refused(half, corpus):
    state = half.checkpoint("best").state
    with torch.no_grad():
        next(state.evaluated.parameters())[0, 0] = float("nan")
    save_checkpoint(state, half.path / "best.safetensors", corpus.sha256)
    with pytest.raises(RunError, match=r"best\.safetensors: .* holds infinite weights or NaN"):
        half.model("best")


def test_a_sparse_file_in_place_of_a_checkpoint_takes_no_memory(half):
    path = half.path / "last.safetensors"
    with open(path, "wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(RunError, match="its header does not fit"):
        half.checkpoint("last")
    with open(path, "wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(RunError, match="larger than 4096 MB"):
        half.checkpoint("last")


def test_old_runs_without_a_previous_checkpoint_go_on(half, whole, corpus):
    missing(half.path / "previous.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = resume(half.path, corpus=corpus)
    assert equal(run, whole)
    assert run.checkpoint("previous").state.counters.updates > 0
