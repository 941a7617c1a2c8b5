"""The paper's table, row by row, and draws that depend on seed and number alone."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from fastdropout.errors import ConfigError
from fastdropout.music.study.search.space import (
    PAPER,
    SPACES,
    WIDE,
    Sampler,
    choose,
    draw,
    draw_one,
    suggest,
    trial_config,
)
from fastdropout.music.training.options import OPTIONS

# Copied from the appendix, `table:hyperpars`, in its order.
TABLE = {
    "hidden": {200, 400, 600},
    "drop_input": {0.0, 0.1, 0.2},
    "drop_hidden": {0.0, 0.1, 0.2, 0.3, 0.4, 0.5},
    "drop_output": {0.0, 0.2, 0.5},
    "propagate_output": {True, False},
    "lr": {0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00001},
    "momentum": {0.0, 0.9, 0.95, 0.99, 0.995},
    "alpha": {0.8, 0.9},
    "init_var": {0.1, 0.01, 0.001, 0.0001},
    "init_var_input": {0.1, 0.01, 0.001, 0.0001},
    "spectral_radius": {1.0, 1.05, 1.1, 1.2},
    "nu": {15, 25, 35, 50, 0},
}
PAPER_TEXT = Path(__file__).parents[5] / "shared" / "paper"


def test_the_space_is_the_papers_table():
    assert {name: set(row.among.choices) for name, row in PAPER.rows.items()} == TABLE
    config = trial_config(PAPER, "jsb-chorales", draw(PAPER, 0, 0), 0, 0)
    assert config.output_bias == -0.8
    assert (config.rule, config.method, config.loss, config.chunk) == ("paper", "moments", "mean", 100)
    ours = (config.noise_hidden, config.averaging, config.schedule, config.transpose, config.weight_decay)
    assert ours == (0.0, 0.0, "none", 0, 0.0)


@pytest.mark.skipif(not PAPER_TEXT.is_dir(), reason="the paper's text is not here")
def test_the_table_was_copied_right():
    (text,) = (path.read_text() for path in PAPER_TEXT.glob("*.txt"))
    table = text[text.index("label{table:hyperpars}") : text.index("label{table:hp-midi}")]
    rows = [line for line in table.splitlines() if "&" in line and "Choices" not in line]
    numbers = [{float(n) for n in re.findall(r"\d+\.?\d*", row.split("&")[1])} for row in rows]
    names = [*list(TABLE)[:3], "drop_output", "lr", "momentum", "alpha"]
    # Rows without a choice, or that hold words or formulas: layers, transfer, final layer, W, biases.
    by_name = dict(zip(names, numbers[1:2] + numbers[3:6] + numbers[7:10], strict=True))
    assert by_name == {name: TABLE[name] for name in names}
    assert numbers[14] == TABLE["spectral_radius"]
    assert numbers[15] | {0} == TABLE["nu"]
    assert len(rows) == 16


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@given(seed=st.integers(0, 2**63 - 1), number=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_every_draw_is_a_configuration_within_the_space(space, seed, number):
    drawn = draw(space, seed, number)
    config = trial_config(space, "bach", drawn, seed, number)
    assert drawn.keys() == space.rows.keys() <= set(OPTIONS)
    for name, row in space.rows.items():
        applies = row.only_if is None or drawn[row.only_if[0]] == row.only_if[1]
        assert getattr(config, name) == drawn[name]
        if not applies:
            assert drawn[name] == row.otherwise
        elif isinstance(row.among, CategoricalDistribution):
            assert drawn[name] in row.among.choices
        else:
            assert row.among.low <= drawn[name] <= row.among.high
    assert config.threads == 1


@pytest.mark.parametrize("space", [PAPER, WIDE], ids=["paper", "wide"])
@pytest.mark.parametrize("fixed", [{"hidden": 50}, {"hidden": 12}, {"members": 4}], ids=str)
def test_connections_are_drawn_for_the_units_that_there_are(space, fixed):
    drawn = [draw(space, 1, number, fixed) for number in range(100)]
    for number, options in enumerate(drawn):
        trial_config(space, "bach", options, 1, number)
    found = {options["nu"] for options in drawn}
    narrowest = fixed.get("hidden", min(space.rows["hidden"].among.choices)) // fixed.get("members", 1)
    assert found == {nu for nu in TABLE["nu"] if nu < narrowest}


def test_draws_are_uniform():
    drawn = [draw(PAPER, 5, number) for number in range(3000)]
    for name, choices in TABLE.items():
        counts = collections.Counter(d[name] for d in drawn if name != "drop_output" or d["propagate_output"])
        expected = sum(counts.values()) / len(choices)
        # Six standard deviations of a count.
        assert all(abs(counts[c] - expected) < 6 * expected**0.5 for c in choices), name
    rates = sorted(draw(WIDE, 5, number)["lr"] for number in range(1000))
    assert rates[500] == pytest.approx(1e-3, rel=0.2)  # The middle of a log-uniform is geometric.


def test_draws_do_not_depend_on_the_process_or_on_each_other():
    program = "from fastdropout.music.study.search.space import *; print(draw(PAPER, 7, 11))"
    env = {**os.environ, "PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert eval(done.stdout) == draw(PAPER, 7, 11)
    fewer = draw(PAPER, 7, 11, {"hidden": 100})
    assert {**fewer, "hidden": draw(PAPER, 7, 11)["hidden"]} == draw(PAPER, 7, 11)
    others = (draw(PAPER, 8, 11), draw(PAPER, 7, 12))
    assert draw(PAPER, 7, 11) not in others


def test_the_first_draw_stays_what_it_is():
    """A change here changes the searches of everybody: say so in the change log."""
    assert draw(PAPER, 0, 0) == {
        "hidden": 200,
        "drop_input": 0.1,
        "drop_hidden": 0.1,
        "propagate_output": False,
        "drop_output": 0.0,
        "lr": 0.005,
        "momentum": 0.95,
        "alpha": 0.8,
        "init_var": 0.0001,
        "init_var_input": 0.0001,
        "spectral_radius": 1.1,
        "nu": 15,
    }


def test_what_is_fixed_decides_what_is_drawn():
    assert draw(PAPER, 0, 0, {"propagate_output": False})["drop_output"] == 0.0
    config = trial_config(PAPER, "bach", {**draw(PAPER, 0, 0), "seed": 3}, 0, 0)
    assert config.seed == 3
    seeds = {trial_config(PAPER, "bach", draw(PAPER, 0, n), 0, n).seed for n in range(32)}
    assert len(seeds) == 32
    with pytest.raises(ConfigError, match="trial 4: nu must be below hidden"):
        trial_config(PAPER, "bach", {**draw(PAPER, 0, 4), "hidden": 20, "nu": 50}, 0, 4)


def test_optuna_gets_the_same_draws():
    study = optuna.create_study(sampler=Sampler("random", 3))
    for number in range(5):
        trial = study.ask()
        chosen = choose(WIDE, lambda name, among, trial=trial: suggest(trial, name, among), {})
        assert chosen == draw(WIDE, 3, number)
        assert ("drop_output" in trial.params) == chosen["propagate_output"]
        study.tell(trial, float(number))


def tpe(seed, count):
    """Values of one option, asked by a new sampler each time, as resumed searches do."""
    study = optuna.create_study()
    values = []
    for _ in range(count):
        study.sampler = Sampler("tpe", seed)
        trial = study.ask()
        values.append(suggest(trial, "x", FloatDistribution(0.0, 1.0)))
        study.tell(trial, (values[-1] - 0.3) ** 2)
    return values


def test_tpe_learns_and_a_resumed_one_does_not_repeat_itself():
    values = tpe(1, 40)
    assert len(set(values)) == 40
    assert values == tpe(1, 40)
    assert sum(abs(v - 0.3) < 0.1 for v in values[20:]) > 2 * sum(abs(v - 0.3) < 0.1 for v in tpe(1, 10))
    with pytest.raises(ConfigError, match="sampler must be one of random, tpe, got 'grid'"):
        Sampler("grid", 0)


def test_one_option_within_its_bounds():
    for number in range(200):
        assert 0.0001 <= draw_one(FloatDistribution(1e-4, 1e-2, log=True), 0, number, "lr") <= 0.01
