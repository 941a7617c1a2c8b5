"""`kill -9` at random moments loses nothing: the resumed run ends with the same bits."""

import os
import random
import subprocess
import sys
import time

import pytest
import torch

from fastdropout.music.training import Run, load_checkpoint

PROGRAM = """
import sys
from fastdropout.music.training import make_config, resume, train
from fastdropout.music.training.state import load_corpus

folder, out = sys.argv[1:3]
config = make_config(dict(
    corpus=folder, hidden=40, nu=4, chunk=20, batch=4, epochs=12, threads=1, carry=True, method="gaussian",
))
told = []

def tell(step):
    if not told:
        told.append(print("training", flush=True))

# Saved after every update, so that kills fall into saving and into the middle of epochs.
if len(sys.argv) == 3:
    train(config, out=out, save_every=0, watch=tell)
else:
    resume(out, save_every=0, watch=tell)
"""


def start(*words):
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(midis, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "r"
    with start(midis, out) as process:
        assert process.wait(600) == 0
    return Run(out)


def bits(path):
    state = load_checkpoint(path).state
    models = (state.model, state.averaged)
    tensors = [p.detach() for model in models for p in model.parameters()]
    for parameter in state.model.parameters():
        tensors += state.optimiser.state[parameter].values()
    return [*tensors, state.rng]


def kill_and_resume(midis, whole, out, kills, seed):
    rng = random.Random(seed)
    words, killed = (midis, out), 0
    while True:
        with start(*words) as process:
            # Nearly always once training goes on; now and then before, when the run folder may be half made.
            if killed >= kills or rng.random() < 0.9 or not killed:
                process.stdout.readline()
            if killed < kills:
                time.sleep(rng.random() * 0.4)
                process.kill()
            code = process.wait(600)
        if code == 0:
            break
        assert code == -9
        killed += 1
        words = (midis, out, "resume")
    run = Run(out)
    for name in ("last", "best"):
        ours, theirs = bits(out / f"{name}.safetensors"), bits(whole.path / f"{name}.safetensors")
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert [r.epoch for r in run.metrics] == list(range(1, 13))
    for key in ("train_nll_per_step", "valid_nll_per_step", "spectral_radius", "lr", "gradient_norm"):
        assert [getattr(r, key) for r in run.metrics] == [getattr(r, key) for r in whole.metrics]
    assert run.result.test == whole.result.test
    assert not [name for name in os.listdir(out) if name.endswith(".tmp")]
    return killed


def test_three_kills(midis, whole, tmp_path):
    assert kill_and_resume(midis, whole, tmp_path / "r", 3, 0) >= 1


@pytest.mark.slow
def test_fifty_kills(midis, whole, tmp_path):
    killed, seed = 0, 1
    while killed < 50:
        killed += kill_and_resume(midis, whole, tmp_path / f"r{seed}", 50 - killed, seed)
        seed += 1
