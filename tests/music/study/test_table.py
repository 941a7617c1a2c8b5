"""The table of the paper: settings, choice, folders, files."""

import shlex
from dataclasses import replace
from threading import Thread

import pytest

from fastdropout.errors import ConfigError, RunError
from fastdropout.music.cli import build_app
from fastdropout.music.cli.flags import given_options
from fastdropout.music.study import table
from fastdropout.music.study.reproduce import folder_of, reproduce
from fastdropout.music.study.results import Result, merge_results, read_results, write_results
from fastdropout.music.study.search.executors import make_executor
from fastdropout.music.study.search.job import Outcome
from fastdropout.music.training import make_config
from fastdropout.music.training.config import Config
from fastdropout.music.training.run import Run

COMPARED = ("plain", "output-dropout", "weight-noise", "weight-decay")
ALL = (*table.CORPORA, "bach")
TINY = {"hidden": 6, "nu": 2, "epochs": 1, "pieces": 3, "chunk": 20, "batch": 4, "patience": 0, "threads": 1}


def result(model="plain", candidate=1, seed=0, valid=1.0, test=1.0, corpus="bach"):
    about = {"budget": 1.0, "command": "fastdropout train", "corpus_sha256": "0", "versions": {"torch": "2"}}
    ended = {"epochs": 3, "best_epoch": 2, "diverged": False, "seconds": 1.5, "parameters": 7}
    return Result(corpus, model, candidate, seed, valid, test, **ended, **about, platform="here", config={})


def test_valid_chooses_though_test_disagrees():
    runs = [result(candidate=1, valid=8.2, test=7.0), result(candidate=2, valid=8.1, test=9.0)]
    assert table.chosen(runs) is runs[1]
    assert table.chosen(reversed(runs)) is runs[1]


def test_what_diverged_is_not_chosen():
    runs = [result(valid=None, test=None), result(candidate=2, valid=80.0)]
    assert table.chosen(runs) is runs[1]
    assert table.chosen(runs[:1]) is None


@pytest.mark.parametrize("corpus", ALL)
@pytest.mark.parametrize("model", COMPARED)
def test_compared_models_have_the_size_and_budget_of_best(model, corpus):
    best = dict(make_config({"preset": "best", "corpus": corpus}))
    best |= {"hidden": best["hidden"] // best["members"], "members": 1}
    settings = table.candidates(model, corpus)
    assert len(settings) == 3
    configs = [dict(make_config({**options, "corpus": corpus})) for options in settings]
    assert len({tuple(config.items()) for config in configs}) == 3
    for config in configs:
        changed = {name for name in config if config[name] != best[name]}
        assert changed <= {*table.NO_REGULARISER, "lr", "momentum", "epochs"}
        assert config["epochs"] in (best["epochs"], round(0.3 * best["epochs"]))


@pytest.mark.parametrize("corpus", ALL)
def test_the_average_of_plain_networks_is_the_twin_of_best(corpus):
    best = dict(make_config({"preset": "best", "corpus": corpus}))
    for options in table.candidates("plain-average", corpus):
        config = dict(make_config({**options, "corpus": corpus}))
        changed = {name for name in config if config[name] != best[name]}
        assert changed <= {*table.NO_REGULARISER, "lr", "momentum", "epochs"}
        assert {name: config[name] for name in table.NO_REGULARISER} == table.NO_REGULARISER
        assert config["members"] == best["members"] > 1


@pytest.mark.parametrize("corpus", ALL)
@pytest.mark.parametrize("name", table.CLASSES)
def test_twins_differ_from_their_model_in_the_noise_and_the_steps(name, corpus):
    (options,) = table.candidates(name, corpus)
    own = dict(make_config({**options, "corpus": corpus}))
    assert own["method"] == "moments"
    assert own["drop_hidden"] > 0
    for kind in ("plain", "masks"):
        settings = table.candidates(f"{name}-{kind}", corpus)
        configs = [dict(make_config({**options, "corpus": corpus})) for options in settings]
        assert len({tuple(config.items()) for config in configs}) == len(configs) == 3
        for config in configs:
            changed = {option for option in config if config[option] != own[option]}
            assert changed <= {*table.NO_REGULARISER, "lr", "momentum", "epochs"}
            if kind == "plain":
                assert {key: config[key] for key in table.NO_REGULARISER} == table.NO_REGULARISER
            else:
                assert config["method"] == "mask"
        if kind == "masks":
            drops = {option for option in own if option.startswith("drop_") and own[option]}
            for config, share in zip(configs, (0.5, 0.5, 1.0), strict=True):
                assert {name: config[name] for name in drops} == pytest.approx(
                    {name: share * own[name] for name in drops}
                )
                changed = {option for option in config if config[option] != own[option]}
                assert changed <= {"method", "rule", "lr", "momentum", *drops}


def test_plain_has_no_regulariser():
    for options in table.candidates("plain", "jsb-chorales"):
        config = dict(make_config({**options, "corpus": "jsb-chorales"}))
        assert {name: config[name] for name in table.NO_REGULARISER} == table.NO_REGULARISER


def test_output_dropout_draws_masks_on_the_output_only():
    for options in table.candidates("output-dropout", "nottingham"):
        config = make_config({**options, "corpus": "nottingham"})
        assert (config.method, config.drop_input, config.drop_hidden) == ("mask", 0, 0)
        assert config.drop_output > 0


def test_every_option_is_a_regulariser_or_belongs_to_size_and_budget():
    """A new option of a configuration wants a decision: has the plain RNN it, or not?"""
    kept = {"corpus", "data", "steps_per_quarter", "pieces", "chunk", "pad", "carry", "score_first", "batch"}
    kept |= {
        "transpose",
        "valid",
        "hidden",
        "members",
        "layers",
        "cell",
        "skip",
        "memory",
        "similar",
        "output",
        "nade_hidden",
        "nade_nonlinearity",
        "init_var",
        "init_var_input",
        "output_bias",
        "spectral_radius",
        "nu",
    }
    kept |= {
        "lr",
        "momentum",
        "alpha",
        "clip",
        "schedule",
        "averaging",
        "epochs",
        "patience",
        "seed",
        "threads",
    }
    assert kept | table.NO_REGULARISER.keys() == Config.model_fields.keys()


@pytest.mark.parametrize("corpus", ALL)
def test_every_setting_is_valid(corpus):
    for model in (*table.MODELS, *table.ABLATIONS):
        for scale in ({}, {"quick": True}, {"budget": 0.1}):
            for options in table.candidates(model, corpus, **scale):
                assert make_config({**options, "corpus": corpus})


def test_the_command_of_a_cell_trains_it():
    app = build_app()
    for model in (*table.MODELS, *table.ABLATIONS):
        for number, options in enumerate(table.candidates(model, "piano-midi"), 1):
            cell = table.Cell("piano-midi", model, number, 3, options)
            words = shlex.split(cell.command)
            assert words.pop(0) == "fastdropout"
            _, bound, _ = app.parse_args(words, exit_on_error=False)
            given = dict(bound.arguments)
            flags = given.pop("flags", {}) | {k: v for k, v in given.items() if k not in ("corpus", "preset")}
            made = given_options(flags) | {"corpus": given["corpus"]}
            assert make_config(made, preset_name=given["preset"]) == cell.config


def test_ablations_change_one_thing():
    best = dict(make_config({"preset": "best", "corpus": "jsb-chorales"}))
    single = best | {"members": 1, "hidden": best["hidden"] // best["members"]}
    there = 0
    for name in table.ABLATIONS:
        for options in table.candidates(name, "jsb-chorales"):
            config = dict(make_config({**options, "corpus": "jsb-chorales"}))
            base = best if "members" in table.ABLATIONS[name] else single
            changed = {option for option in config if config[option] != base[option]}
            assert changed
            assert changed <= table.ABLATIONS[name].keys()
            there += 1
    assert there >= 3


def test_budget_multiplies_epochs():
    full = table.candidates("paper", "musedata")[0]
    less = table.candidates("paper", "musedata", budget=0.1)[0]
    assert make_config({**full, "corpus": "musedata"}).epochs == 10 * less["epochs"]
    quick = table.candidates("paper", "musedata", budget=0.1, quick=True)[0]
    assert table.QUICK["epochs"] == 10 * quick["epochs"]


def test_unknown_model():
    with pytest.raises(ConfigError, match=r"plain, paper, single, best, .* got 'vae'"):
        table.candidates("vae", "bach")


def test_more_seeds_for_what_was_chosen():
    first = table.plan(["bach"], ["plain", "best"], 3, [])
    assert [(c.model, c.candidate, c.seed) for c in first] == [
        ("plain", 1, 0), ("plain", 2, 0), ("plain", 3, 0), ("best", 1, 0)
    ]  # fmt: skip
    some = [result(candidate=1, valid=2.0), result(candidate=2, valid=1.0)]
    assert table.plan(["bach"], ["plain"], 3, some) == first[:3]  # One is not there yet.
    known = [*some, result(candidate=3, valid=3.0)]
    more = table.plan(["bach"], ["plain"], 3, known)[3:]
    assert [(c.candidate, c.seed) for c in more] == [(2, 1), (2, 2)]
    lucky = [*known, result(candidate=2, seed=1, valid=0.1)]
    assert table.plan(["bach"], ["plain"], 3, lucky)[3:] == more


def test_results_are_a_line_each_and_replaced_by_key(tmp_path):
    path = tmp_path / "deep" / "bach.json"
    assert read_results(path) == []
    old, other = result(valid=5.0), result(model="best")
    write_results(path, [old, other])
    assert len(path.read_text().splitlines()) == 4
    assert read_results(path) == [other, old]
    new = replace(old, valid=4.0)
    merge_results(path, [new])
    assert read_results(path) == [other, new]


def test_results_of_two_commands_at_a_time_are_all_kept(tmp_path):
    """Each of them reads, adds its line and writes, as `fastdropout reproduce` does."""
    path = tmp_path / "bach.json"

    def command(seeds):
        for seed in seeds:
            merge_results(path, [result(seed=seed)])

    threads = [Thread(target=command, args=[range(n, 60, 3)]) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.seed for found in read_results(path)] == list(range(60))


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"corpus": "x"}]', "{}x"])
def test_other_files_are_no_results(tmp_path, text):
    path = tmp_path / "bach.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"must be|is missing|not a JSON file"):
        read_results(path)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(table, "QUICK", TINY)


def make(models, out, seeds=1, executor=None, **options):
    executor = executor or make_executor("serial")
    *_, board = reproduce(["bach"], models, executor, out=out, seeds=seeds, quick=True, **options)
    return board


def test_reproduce_trains_once_and_takes_up_what_is_there(small, tmp_path):
    board = make(["plain", "best"], tmp_path, seeds=2)
    assert len(board.results) == len(board.cells) == 4
    assert not board.failed
    times = {path: (path / "result.json").stat().st_mtime_ns for path in board.folders.values()}
    again = make(["plain", "best"], tmp_path, seeds=2)
    assert again.results == board.results
    assert {p: (p / "result.json").stat().st_mtime_ns for p in again.folders.values()} == times
    one = next(iter(board.results.values()))
    assert one.config["hidden"] == 6
    assert one.versions["torch"]
    assert "data" not in one.config


def test_a_stopped_table_goes_on(small, tmp_path):
    asked = iter([False] * 3)  # By the table, once more by the table, by the training after its first update.

    def stop():
        return next(asked, True)

    board = make(["best"], tmp_path, executor=make_executor("serial", stop=stop), stop=stop)
    assert not board.results
    folder = tmp_path / "bach" / "best-1-seed0"
    assert not Run(folder).finished
    assert len(make(["best"], tmp_path).results) == 1
    assert Run(folder).finished


def test_a_changed_setting_gets_a_folder_of_its_own(small, tmp_path, monkeypatch):
    make(["best"], tmp_path)
    monkeypatch.setattr(table, "QUICK", TINY | {"hidden": 7})
    board = make(["best"], tmp_path)
    assert [path.name for path in board.folders.values()] == ["best-1-seed0.2"]
    monkeypatch.setattr(table, "QUICK", TINY)
    cell = table.plan(["bach"], ["best"], 1, [], quick=True)[0]
    assert folder_of(cell, tmp_path).name == "best-1-seed0"


class Failing:
    slots = 2

    def __init__(self, state):
        self.state, self.keys = state, []

    def submit(self, key, job):
        assert len(self.keys) < self.slots
        self.keys.append(key)

    def wait(self, timeout):
        return [(self.keys.pop(), Outcome(self.state, reason="no luck"))]


def test_one_failure_does_not_stop_the_others(small, tmp_path):
    board = make(["plain", "best"], tmp_path, executor=Failing("failed"))
    assert len(board.failed) == 2
    assert set(board.failed.values()) == {"no luck"}


def test_a_full_disk_stops_all(small, tmp_path):
    with pytest.raises(RunError, match="no luck; fix this and run the same command again to continue"):
        make(["plain"], tmp_path, executor=Failing("halted"))
