import tomllib

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdropout.errors import ConfigError
from fastdropout.music.training.config import Config
from fastdropout.music.training.options import from_text, make_config, read_config, read_toml, to_toml
from fastdropout.music.training.presets import PRESETS

# The table of chosen hyperparameters in the paper's appendix.
PAPER = {
    "piano-midi": (600, 0.1, 0.3, 0.0, False, 0.005, 0.995, 0.8, 0.1, 0.0001, 25),
    "nottingham": (400, 0.1, 0.4, 0.0, True, 0.001, 0.99, 0.9, 0.001, 0.1, 0),
    "musedata": (600, 0.2, 0.3, 0.0, True, 0.0005, 0.995, 0.9, 0.1, 0.0001, 0),
    "jsb-chorales": (400, 0.1, 0.2, 0.5, True, 0.001, 0.99, 0.8, 0.0001, 0.01, 15),
}
COLUMNS = (
    "hidden drop_input drop_hidden drop_output propagate_output lr momentum alpha init_var init_var_input nu"
)


@pytest.mark.parametrize("corpus", PAPER)
def test_preset_paper_is_the_papers_table(corpus):
    config = make_config({"corpus": corpus}, preset_name="paper")
    assert tuple(getattr(config, name) for name in COLUMNS.split()) == PAPER[corpus]
    assert (config.spectral_radius, config.output_bias, config.clip) == (1.2, -0.8, 225)
    assert (config.rule, config.output_rule) == ("paper", "paper")
    assert (config.averaging, config.schedule, config.noise_hidden) == (0, "none", 0)


def test_bach_takes_the_column_of_jsb():
    bach, jsb = (make_config({"corpus": c}, preset_name="paper") for c in ("bach", "jsb-chorales"))
    assert bach.model_copy(update={"corpus": "jsb-chorales"}) == jsb


def test_flags_go_over_the_preset():
    config = make_config({"hidden": 50, "corpus": "nottingham"}, preset_name="paper")
    assert (config.hidden, config.drop_hidden) == (50, 0.4)


def test_all_faults_are_named_at_once():
    options = {
        "hidden": 0,
        "drop_hiden": 0.5,
        "lr": float("nan"),
        "carry": "yes",
        "batch": True,
        "drop_output": 0.5,
        "propagate_output": False,
        "preset": "papers",
    }
    with pytest.raises(ConfigError) as caught:
        make_config(options)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "hidden must be greater than or equal to 1, got 0",
        "drop_hiden is unknown, did you mean drop_hidden?",
        "lr must be a finite number, got nan",
        "carry must be a valid boolean, got 'yes'",
        "batch must be a valid integer, got True",
        "drop_output must be 0 where propagate_output is false",
        "preset must be one of default, paper, best, deep, gru, lstm, memory, nade, nade-memory, "
        "nade-similar, got",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"drop_output": 0.2, "propagate_output": False}, "drop_output must be 0"),
        ({"nu": 200, "hidden": 200}, "nu must be below hidden / members (200 / 1)"),
        ({"nu": 15, "hidden": 30, "members": 2}, "nu must be below hidden / members (30 / 2)"),
        ({"hidden": 200, "members": 3}, "hidden must be a multiple of members (3), got 200"),
        ({"weight_std": 0.1}, "weight_std is not used"),
        ({"steps_per_quarter": 4}, "steps_per_quarter is for folders"),
        ({"corpus": "nottingham", "steps_per_quarter": 4}, "steps_per_quarter is for folders"),
        ({"data": "x"}, "data is for the canonical"),
        ({"rule": "paper", "method": "mask"}, "rule is not used by method mask"),
        ({"loss": "expected", "method": "mask"}, "loss expected is loss mean"),
        ({"loss": "expected", "propagate_output": False, "drop_output": 0.0}, "loss expected is loss mean"),
        ({"drop_memory": 0.2}, "drop_memory is not used without memory"),
        ({"drop_between": 0.2}, "drop_between is not used by one layer"),
        ({"nade_hidden": 100}, "nade_hidden is for output nade: leave it out, got 100"),
        ({"output": "notes", "drop_nade_input": 0.1}, "drop_nade_input is for output nade"),
        ({"output": "nade", "weight_noise": True}, "weight_noise is for the cells tanh and relu"),
        ({"output": "gaussian", "memory": True}, "memory and similar are for zeros and ones"),
        ({"output": "gaussian", "similar": True}, "memory and similar are for zeros and ones"),
        ({"output": "categorical"}, "output must be 'notes', 'nade' or 'gaussian', got 'categorical'"),
        ({"drop": 0.5, "drop_hidden": 0.2}, "give it or drop_hidden, not both"),
        ({"drop": 1.0}, "drop_input must be less than 1, got 1.0"),
        ({"output_bias": "often"}, "output_bias must be a number or 'frequencies', got 'often'"),
        ({"corpus": 3}, "corpus must be a valid string, got 3"),
    ],
)
def test_contradictory_and_unused_options_are_errors(options, part):
    with pytest.raises(ConfigError, match="configuration: ") as caught:
        make_config(options)
    assert part in str(caught.value)


def test_python_users_are_told_too():
    with pytest.raises(pydantic.ValidationError, match="nu must be below hidden"):
        Config(hidden=10, nu=10)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Config().hidden = 3


def test_drop_sets_all_three_and_0_is_the_plain_network():
    config = make_config({"drop": 0.3})
    assert (config.drop_input, config.drop_hidden, config.drop_output) == (0.3, 0.3, 0.3)
    assert config.noise_hidden == Config().noise_hidden
    plain = make_config({"drop": 0}, preset_name="paper")
    assert (plain.drop_input, plain.drop_hidden, plain.drop_output) == (0, 0, 0)
    assert (plain.noise_hidden, plain.rule) == (0, "fast")
    assert make_config({"drop": 0, "noise_hidden": 0.1}).noise_hidden == 0.1
    nade = make_config({"drop": 0, "output": "nade", "memory": True, "drop_memory": 0.2})
    assert (nade.drop_nade_hidden, nade.drop_memory) == (0, 0.2)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("corpus", [*PAPER, "bach", "some/folder"])
def test_a_written_config_reads_back(preset, corpus, tmp_path):
    config = make_config({"corpus": corpus}, preset_name=preset)
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "c.toml") == config


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.floats(1e-300, 1000), st.integers(0, 2**63 - 1))
def test_any_value_reads_back(corpus, lr, seed):
    config = Config(corpus=corpus, lr=lr, seed=seed)
    assert make_config(tomllib.loads(to_toml(config))) == config


def test_text_becomes_what_the_option_is():
    assert from_text("hidden", "30") == 30
    assert from_text("lr", "1e-3") == 0.001
    assert from_text("output_bias", "-.8") == -0.8
    assert from_text("output_bias", "frequencies") == "frequencies"
    assert from_text("corpus", "30") == "30"
    assert from_text("hidden", "many") == "many"


def test_bad_files_are_config_errors(tmp_path):
    path = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path)
    for content in (b"hidden = ", b"\xff\xfe", b"a = " + b"[" * 5000, b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a TOML file"):
            read_toml(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        read_toml(path)


def read_bytes(path):
    def read(data):
        path.write_bytes(data)
        return read_config(path)

    return read


def test_damaged_toml_gives_only_our_errors(tmp_path, mutations):
    good = to_toml(make_config({"corpus": "é"}, preset_name="best")).encode()
    outcomes = mutations.survive([good], read_bytes(tmp_path / "c.toml"), ConfigError, 500)
    assert outcomes["refused"] > 250


@pytest.mark.slow
def test_ten_thousand_damaged_tomls(tmp_path, mutations):
    good = to_toml(make_config({"corpus": "é"}, preset_name="best")).encode()
    mutations.survive([good], read_bytes(tmp_path / "c.toml"), ConfigError, 10_000, seed=1)
