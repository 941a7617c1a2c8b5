import errno
import json
import os
import random
import stat

import pytest
import torch
from safetensors.torch import load, save

from fastdropout.errors import RunError
from fastdropout.music.training import checkpoint as module
from fastdropout.music.training import fit, load_checkpoint, new_state, prepare, save_checkpoint


@pytest.fixture
def state(config, corpus):
    settings = config(carry=True, hidden=5, nu=2)
    data = prepare(settings, corpus)
    state = new_state(settings, data)
    steps = fit(state, data)
    next(steps), next(steps)
    return state


@pytest.fixture
def good(state, tmp_path):
    path = tmp_path / "good.safetensors"
    save_checkpoint(state, path, "abc")
    return path


def parts(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return load(data), json.loads(data[8 : 8 + size])["__metadata__"]


def rewrite(path, tensors, content):
    """A checkpoint with a right hash of whatever it holds."""
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(save(tensors, {"fastdropout": text, "sha256": module.sha256(text, tensors)}))


def test_everything_comes_back(state, good):
    read = load_checkpoint(good)
    assert read.corpus_sha256 == "abc"
    assert read.state.config == state.config
    assert read.state.counters == state.counters
    assert torch.equal(read.state.rng, state.rng)
    assert torch.equal(read.state.carried.mean, state.carried.mean)
    assert torch.equal(read.state.carried.var, state.carried.var)
    for ours, theirs in ((state.model, read.state.model), (state.averaged, read.state.averaged)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a.requires_grad == b.requires_grad
    for a, b in zip(state.model.parameters(), read.state.model.parameters(), strict=True):
        for slot in ("last_step", "square"):
            assert torch.equal(state.optimiser.state[a][slot], read.state.optimiser.state[b][slot])


def test_permissions_are_what_the_umask_says(state, tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(state, tmp_path / "c.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "c.safetensors").stat().st_mode) == 0o640


def test_a_full_disk_leaves_the_old_checkpoint(state, good, monkeypatch):
    before = good.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: "):
        save_checkpoint(state, good)
    assert good.read_bytes() == before
    assert os.listdir(good.parent) == [good.name]


def change(path):
    """Ways to damage a checkpoint that its hash does not find."""
    tensors, metadata = parts(path)
    content = json.loads(metadata["fastdropout"])
    name = "model.rnn.weight_hh_l0"
    yield "version", tensors, content | {"version": 7}, "has layout version 7, this program reads 1"
    yield "no version", tensors, {}, "not a checkpoint of fastdropout"
    yield "no json", tensors, "{", "not a checkpoint of fastdropout"
    yield "a list", tensors, [1], "not a checkpoint of fastdropout"
    yield "config", tensors, content | {"config": {"hiden": 3}}, "hiden is unknown, did you mean hidden"
    yield "counters", tensors, content | {"counters": {}}, "the counters must be epoch, update"
    wrong = content["counters"] | {"epoch": -1}
    yield "negative", tensors, content | {"counters": wrong}, "the counter epoch must be a int of at least 0"
    wrong = content["counters"] | {"epoch": True}
    yield "bool", tensors, content | {"counters": wrong}, "the counter epoch must be a int"
    larger = content["config"] | {"hidden": 6}
    yield "sizes", tensors, content | {"config": larger}, "must be torch.float32"
    yield "missing", {k: v for k, v in tensors.items() if k != name}, content, f"it lacks {name}"
    yield "extra", tensors | {"x": torch.zeros(1)}, content, "it has x, which does not belong there"
    yield "dtype", tensors | {name: tensors[name].double()}, content, f"{name} must be torch.float32 [5, 5]"
    yield "carried", tensors | {"carried.mean": torch.zeros(2)}, content, "its carried state does not fit"
    yield "rng", tensors | {"rng": torch.zeros_like(tensors["rng"])}, content, "its random state"


def test_what_does_not_fit_is_refused(good, tmp_path):
    bad = tmp_path / "bad.safetensors"
    for what, tensors, content, part in change(good):
        rewrite(bad, tensors, content)
        with pytest.raises(RunError) as caught:
            load_checkpoint(bad)
        assert part in str(caught.value), what
        assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_found(good, tmp_path):
    data = bytearray(good.read_bytes())
    data[-100] ^= 1
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(RunError, match="damaged, its content does not have its sha256"):
        load_checkpoint(tmp_path / "bad")


def test_missing_and_strange_files(tmp_path):
    with pytest.raises(RunError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "x")
    with pytest.raises(RunError, match="cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(RunError, match="not a readable safetensors file"):
        load_checkpoint(tmp_path / "empty")
    (tmp_path / "other").write_bytes(save({"a": torch.zeros(2)}))
    with pytest.raises(RunError, match="not a checkpoint of fastdropout"):
        load_checkpoint(tmp_path / "other")


def reader(tmp_path):
    path = tmp_path / "bad.safetensors"

    def read(data):
        path.write_bytes(data)
        return load_checkpoint(path)

    return read


def behind_the_hash(mutations, tmp_path):
    """Damage the metadata and write a right hash, so that all that lies behind it is reached."""
    path = tmp_path / "rehashed.safetensors"

    def damage(data: bytes, rng: random.Random) -> bytes:
        path.write_bytes(data)
        tensors, metadata = parts(path)
        text = mutations.mutate(metadata["fastdropout"].encode(), rng).decode("utf-8", "replace")
        rewrite(path, tensors, text)
        return path.read_bytes()

    return damage


def fuzz(good, tmp_path, mutations, count, seed):
    samples = [good.read_bytes()]
    outcomes = mutations.survive(samples, reader(tmp_path), RunError, count, seed=seed)
    assert outcomes["refused"] > 0.9 * count
    inside = behind_the_hash(mutations, tmp_path)
    mutations.survive(samples, reader(tmp_path), RunError, count, seed=seed, damage=inside)


def test_damaged_checkpoints_give_only_our_errors(good, tmp_path, mutations):
    fuzz(good, tmp_path, mutations, 200, 0)


@pytest.mark.slow
def test_ten_thousand_damaged_checkpoints(good, tmp_path, mutations):
    fuzz(good, tmp_path, mutations, 10_000, 1)
