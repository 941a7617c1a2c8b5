"""Published models: written, read, refused when damaged; and those that are there score what they say."""

import pytest
import torch

from fastdropout.errors import DataError, RunError
from fastdropout.music.data.canonical import CANONICAL, data_folder, find
from fastdropout.music.study.publish import card, command_of, publish
from fastdropout.music.training import evaluate_model, load_model, make_config, train
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
    assert found.about["test"] == run.result["test"]["nll_per_step"]
    assert evaluate_model(found.model, found.config).nll_per_step == pytest.approx(
        found.about["test"], abs=1e-9
    )
    assert (tmp_path / "README.md").read_text() == card(tmp_path)
    text = card(tmp_path)
    assert f"| `tiny` | bach | 8 | {found.about['valid']:.3f} | {found.about['test']:.3f} | – |" in text
    assert found.about["corpus_sha256"] in text
    assert "{" not in text


def test_the_command_of_a_model_trains_its_configuration(run):
    command = command_of(run.config)
    assert command.startswith("fastdropout train bach --preset ")
    assert command.endswith("--pieces 4 --chunk 30 --hidden 8 --nu 3 --epochs 2")
    best = make_config({"preset": "best", "corpus": "jsb-chorales"})
    assert command_of(best) == "fastdropout train jsb-chorales --preset best"


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
