"""Published models: written, read, refused when damaged; and those that are there score what they say."""

import json
import os

import pytest
import torch

from fastdropout.errors import DataError, RunError
from fastdropout.music.cli import main
from fastdropout.music.data.canonical import CANONICAL, data_folder, find
from fastdropout.music.study.publish import card, command_of, publish
from fastdropout.music.training import evaluate_model, load_model, make_config, published, train
from fastdropout.music.training.build import cores, usable_threads
from fastdropout.music.training.checkpoint import read_tensors, write_tensors
from fastdropout.music.training.published import models_folder, published_models

SMALL = {"hidden": 8, "nu": 3, "pieces": 4, "epochs": 2, "threads": 1, "chunk": 30}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(make_config(SMALL), out=tmp_path_factory.mktemp("publish") / "run")


def test_a_published_model_is_the_best_network_of_its_run(run, tmp_path):
    path = publish(run, "tiny", tmp_path)
    found = load_model(path)
    assert path.stat().st_mode & 0o044
    for name, value in run.model("best").state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    assert not found.model.training
    assert found.about["test"] == run.result.test.nll_per_step
    assert evaluate_model(found.model, found.config).nll_per_step == pytest.approx(
        found.about["test"], abs=1e-9
    )
    assert (tmp_path / "README.md").read_text() == card(tmp_path)
    text = card(tmp_path)
    scores = " | ".join(f"{found.about[split]:.3f}" for split in ("valid", "test"))
    assert f"| `tiny` | bach | 8 | one layer with independent notes | {scores} | – |" in text
    assert found.about["corpus_sha256"] in text
    assert "{" not in text


def test_the_command_of_a_model_trains_its_configuration(run):
    command = command_of(run.config)
    assert command.startswith("fastdropout train bach --preset ")
    assert command.endswith("--pieces 4 --chunk 30 --hidden 8 --nu 3 --epochs 2")
    best = make_config({"preset": "best", "corpus": "jsb-chorales"})
    assert command_of(best) == "fastdropout train jsb-chorales --preset best"


EVERY_CLASS = {
    "tiny-deep": ({"layers": 2, "drop_between": 0.2}, "2 layers with independent notes"),
    "tiny-gru": ({"cell": "gru"}, "one layer of GRU with independent notes"),
    "tiny-lstm": ({"cell": "lstm", "members": 2}, "one layer of LSTM with independent notes"),
    "tiny-memory": (
        {"memory": True, "skip": True, "drop_memory": 0.2},
        "one layer with independent notes, and a memory of the piece",
    ),
    "tiny-nade": (
        {"output": "nade", "nade_hidden": 6, "drop_nade_hidden": 0.3},
        "one layer with notes that depend on those below them (NADE)",
    ),
    "tiny-nade-memory": (
        {"output": "nade", "nade_hidden": 6, "memory": True, "skip": True},
        "one layer with notes that depend on those below them (NADE), and a memory of the piece",
    ),
}


@pytest.mark.parametrize("name", EVERY_CLASS)
def test_models_of_every_class_are_published_scored_and_played(name, tmp_path, monkeypatch, capsys):
    options, words = EVERY_CLASS[name]
    run = train(make_config(SMALL | {"pieces": 2} | options), out=tmp_path / "run")
    publish(run, name, tmp_path / "models")
    monkeypatch.setattr(published, "models_folder", lambda: tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    line = next(x for x in card(tmp_path / "models").splitlines() if x.startswith(f"| `{name}`"))
    assert f"| {words} |" in line
    test = f"{run.result.test.nll_per_step:.3f}"
    assert f"| {test} |" in line
    assert main(["evaluate", "--model", name]) == 0
    out = capsys.readouterr().out
    assert f"test NLL {test} nats" in out
    assert f"its card says {test}" in out
    assert main(["generate", "--model", name, "--frames", "5", "-o", "song.mid"]) == 0
    assert (tmp_path / "song.wav").stat().st_size > 10_000
    assert main(["listen", "--model", name, "--frames", "5"]) == 0
    assert (tmp_path / "listen.html").read_text("utf-8").count("<audio") == 3


@pytest.mark.parametrize("name", ["", "a/b", "../up", "x.safetensors"])
def test_names_are_words(run, tmp_path, name):
    with pytest.raises(RunError, match="name must be a word"):
        publish(run, name, tmp_path)


def test_unknown_names_say_which_there_are():
    with pytest.raises(RunError, match="'beethoven' is no published model, there"):
        load_model("beethoven")


def test_damage_is_told(run, tmp_path):
    path = publish(run, "tiny", tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match="damaged"):
        load_model(path)
    path.write_bytes(data[:100])
    with pytest.raises(RunError, match="not a readable safetensors file"):
        load_model(path)
    with pytest.raises(RunError, match="no such model"):
        load_model(tmp_path / "none.safetensors")
    with pytest.raises(RunError, match="not a published model of fastdropout"):
        load_model(run.path / "best.safetensors")


def rewritten(run, path, change_tensors=lambda tensors: tensors, **change):
    """A model with a right hash of whatever it holds."""
    published = publish(run, "tiny", path.parent)
    tensors, metadata = read_tensors(published, "model")
    content = json.loads(metadata["fastdropout"])
    for key, values in change.items():
        content[key] |= values
    write_tensors(path, change_tensors(tensors), json.dumps(content))
    return path


def test_weights_that_are_no_numbers_are_refused(run, tmp_path):
    def spoil(tensors):
        tensors["out.weight"][0, 0] = float("nan")
        return tensors

    path = rewritten(run, tmp_path / "bad.safetensors", spoil)
    with pytest.raises(RunError, match=r"out\.weight holds infinite weights or NaN"):
        load_model(path)


def test_weights_of_another_type_are_refused(run, tmp_path):
    path = rewritten(
        run, tmp_path / "bad.safetensors", lambda ts: {n: t.to(torch.int32) for n, t in ts.items()}
    )
    with pytest.raises(RunError, match=r"must be torch\.float32, got torch\.int32"):
        load_model(path)


@pytest.mark.parametrize("about", [{"test": float("nan")}, {"test": "low"}, {"epochs": 2.5}])
def test_what_is_said_of_a_model_is_checked(run, tmp_path, about):
    path = rewritten(run, tmp_path / "bad.safetensors", about=about)
    with pytest.raises(RunError, match="must be"):
        load_model(path)


def test_threads_are_not_a_matter_of_a_model(run, tmp_path):
    path = rewritten(run, tmp_path / "many.safetensors", config={"threads": 1024})
    assert load_model(path).config.threads == 0
    many = make_config({"threads": 1024})
    assert usable_threads(many) == max(cores(), 16)
    before = torch.get_num_threads()
    evaluate_model(load_model(path).model, many.model_copy(update={"pieces": 1}))
    assert torch.get_num_threads() == before


def test_a_pipe_in_place_of_a_model(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(RunError, match="not a regular file"):
        load_model(tmp_path / "pipe.safetensors")


@pytest.mark.parametrize("name", published_models())
def test_published_models_score_what_their_card_says(name):
    found = load_model(name)
    corpus = found.config.corpus
    if corpus in CANONICAL:
        folder = data_folder() or models_folder().parents[4] / "shared" / "data"
        try:
            find(corpus, folder)
        except DataError as error:
            pytest.skip(str(error))
        config = found.config.model_copy(update={"data": str(folder)})
    else:
        config = found.config
    assert evaluate_model(found.model, config).nll_per_step == pytest.approx(found.about["test"], abs=2e-3)


def test_the_card_is_that_of_the_models():
    if published_models():
        assert (models_folder() / "README.md").read_text() == card(models_folder())
