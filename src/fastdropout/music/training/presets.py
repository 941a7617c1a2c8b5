"""Named sets of options, some of them by corpus.

- `default`: small and quick, the defaults of `Config`; made for `bach`.
- `paper`: the columns of the paper's table of chosen hyperparameters. It names neither batch
  size, number of epochs nor patience: those are ours, the batch size within what the authors' code shows.
- `best`: ours, chosen on valid by hand (docs/results.md); for `bach` not searched for:
  the default in three members.
- `deep`: one network of `best` with a second layer.
- `gru`, `lstm`: cells with gates, with independent notes.
- `memory`: one tanh layer with a memory of the piece.
- `nade`, `nade-memory`: the notes of a frame one after the other, without and with that memory.
- `nade-similar`: with a memory of similar moments besides.

`bach` and folders of MIDI files take what is for `jsb-chorales` in those.
"""

from __future__ import annotations

from typing import Any

CLASSES = ("deep", "gru", "lstm", "memory", "nade", "nade-memory", "nade-similar")
"""Presets of other networks than the paper's."""
PRESETS = ("default", "paper", "best", *CLASSES)

_PAPER_ALL = {
    "rule": "paper",
    "output_rule": "paper",
    "noise_hidden": 0.0,
    "output_bias": -0.8,
    "spectral_radius": 1.2,
    "clip": 225.0,
    "transpose": 0,
    "schedule": "none",
    "averaging": 0.0,
    "batch": 25,
    "epochs": 500,
    "patience": 50,
}
_PAPER: dict[str, dict[str, Any]] = {
    "piano-midi": {
        "hidden": 600,
        "drop_input": 0.1,
        "drop_hidden": 0.3,
        "drop_output": 0.0,
        "propagate_output": False,
        "lr": 0.005,
        "momentum": 0.995,
        "alpha": 0.8,
        "init_var": 0.1,
        "init_var_input": 0.0001,
        "nu": 25,
    },
    "nottingham": {
        "hidden": 400,
        "drop_input": 0.1,
        "drop_hidden": 0.4,
        "drop_output": 0.0,
        "lr": 0.001,
        "momentum": 0.99,
        "alpha": 0.9,
        "init_var": 0.001,
        "init_var_input": 0.1,
        "nu": 0,
    },
    "musedata": {
        "hidden": 600,
        "drop_input": 0.2,
        "drop_hidden": 0.3,
        "drop_output": 0.0,
        "lr": 0.0005,
        "momentum": 0.995,
        "alpha": 0.9,
        "init_var": 0.1,
        "init_var_input": 0.0001,
        "nu": 0,
    },
    "jsb-chorales": {
        "hidden": 400,
        "drop_input": 0.1,
        "drop_hidden": 0.2,
        "drop_output": 0.5,
        "lr": 0.001,
        "momentum": 0.99,
        "alpha": 0.8,
        "init_var": 0.0001,
        "init_var_input": 0.01,
        "nu": 15,
    },
}

_BEST_ALL = {
    "members": 3,
    "hidden": 900,
    "rule": "paper",
    "noise_hidden": 0.0,
    "pad": "end",
    "lr": 0.002,
    "transpose": 0,
}
# The two large sets of long pieces.
_BEST_LONG = {
    **_BEST_ALL,
    "drop_input": 0.1,
    "drop_hidden": 0.6,
    "drop_output": 0.1,
    "init_var": 0.001,
    "init_var_input": 0.1,
    "nu": 0,
    "batch": 32,
}
_BEST: dict[str, dict[str, Any]] = {
    # Transposed pieces are noise enough for lower rates and smaller steps.
    "piano-midi": {
        **_BEST_ALL,
        "drop_input": 0.1,
        "drop_hidden": 0.3,
        "drop_output": 0.1,
        "lr": 0.001,
        "momentum": 0.9,
        "batch": 32,
        "transpose": 5,
        "epochs": 60,
    },
    "nottingham": {**_BEST_LONG, "epochs": 40},
    "musedata": {**_BEST_LONG, "epochs": 32},
    "jsb-chorales": {**_BEST_ALL, "drop_hidden": 0.9, "epochs": 130},
    "bach": {"hidden": 600, "members": 3},
}


_CLASS_ALL = {"noise_hidden": 0.0, "pad": "end", "transpose": 0, "momentum": 0.98, "lr": 0.001}
_CLASS: dict[str, dict[str, Any]] = {
    "piano-midi": {"hidden": 200, "drop_input": 0.2, "transpose": 5, "batch": 32, "epochs": 60},
    "nottingham": {"hidden": 200, "drop_input": 0.1, "batch": 32, "epochs": 20},
    "musedata": {"hidden": 200, "drop_input": 0.1, "batch": 32, "epochs": 30},
    "jsb-chorales": {"hidden": 300, "drop_input": 0.2, "batch": 16, "epochs": 60},
}
_DROPS = ("drop_hidden", "drop_output", "drop_memory", "drop_nade_input", "drop_nade_hidden")
_NADE = {
    "piano-midi": (0.7, 0.3, 0.2, 0.2, 0.4),
    "nottingham": (0.6, 0.2, 0.2, 0.1, 0.3),
    "musedata": (0.6, 0.2, 0.2, 0.15, 0.3),
    "jsb-chorales": (0.85, 0.5, 0.3, 0.3, 0.5),
}
"""Of `_DROPS`."""
# Of one network on JSB Chorales the training loss falls long after that on valid rises: two, averaged.
_NADE_ALONE: dict[str, dict[str, Any]] = {
    # Half the rates, chosen on valid (docs/explored.md): transposed pieces are noise enough.
    "piano-midi": {
        "drop_input": 0.1,
        "drop_hidden": 0.4,
        "drop_output": 0.1,
        "drop_nade_input": 0.1,
        "drop_nade_hidden": 0.2,
    },
    "jsb-chorales": {"members": 2, "hidden": 600, "epochs": 80},
}
# With the memory to read, half the units are better, chosen on valid (docs/explored.md).
_MEMORY: dict[str, dict[str, Any]] = {"jsb-chorales": {"hidden": 150, "epochs": 90}}
_NADE_MEMORY: dict[str, dict[str, Any]] = {
    "piano-midi": {**_NADE_ALONE["piano-midi"], "drop_memory": 0.1},
    # Still learning after 20 epochs.
    "nottingham": {"epochs": 30},
    # More noise in what they read.
    "jsb-chorales": {**_NADE_ALONE["jsb-chorales"], "drop_input": 0.5, "drop_memory": 0.75},
}
_NADE_SIMILAR: dict[str, dict[str, Any]] = {
    # Many inputs that say nearly the same: more of them are dropped.
    "musedata": {"drop_memory": 0.5, "drop_hidden": 0.7},
    "jsb-chorales": {"drop_memory": 0.9},
}


# Where a GRU is better than tanh, chosen on valid (docs/explored.md).
_GATED: dict[str, dict[str, Any]] = {
    "piano-midi": {
        "hidden": 300,
        "drop_input": 0.1,
        "drop_hidden": 0.5,
        "drop_output": 0.2,
        "momentum": 0.9,
    },
    # Gates remember for longer than a chunk: valid counts whole pieces.
    "nottingham": {
        "hidden": 300,
        "drop_hidden": 0.7,
        "drop_output": 0.3,
        "lr": 0.002,
        "epochs": 24,
        "valid": "whole",
    },
}


# With the large steps of one layer, two of them overfit sooner.
_DEEP_LONG = {"drop_hidden": 0.5, "drop_between": 0.2, "lr": 0.001, "momentum": 0.9, "epochs": 30}
_DEEP: dict[str, dict[str, Any]] = {
    "nottingham": _DEEP_LONG,
    "musedata": _DEEP_LONG,
    "jsb-chorales": {"epochs": 90},
}


def _deep(corpus: str) -> dict[str, Any]:
    one = _BEST[corpus]
    units = one["hidden"] // one["members"]
    deep = {**one, "members": 1, "hidden": units, "layers": 2, "drop_between": one.get("drop_output", 0.5)}
    return {**deep, **_DEEP.get(corpus, {})}


def _class(name: str, corpus: str) -> dict[str, Any]:
    options = {**_CLASS_ALL, **_CLASS[corpus]}
    drops = dict(zip(_DROPS, _NADE[corpus], strict=True))
    options |= {"drop_hidden": drops["drop_hidden"], "drop_output": drops["drop_output"]}
    if name in ("memory", "nade-memory", "nade-similar"):
        options["skip"] = True
        options |= {"memory": True, "drop_memory": drops["drop_memory"]}
    if name == "memory":
        options |= _MEMORY.get(corpus, {})
    if "nade" in name:
        units = 200 if corpus == "jsb-chorales" else 120
        options |= {"output": "nade", "nade_hidden": units}
        options |= {kind: drops[kind] for kind in ("drop_nade_input", "drop_nade_hidden")}
    if name == "nade":
        options |= {"skip": True, **_NADE_ALONE.get(corpus, {})}
    if name in ("nade-memory", "nade-similar"):
        options |= _NADE_MEMORY.get(corpus, {})
    if name == "nade-similar":
        options |= {"similar": True, **_NADE_SIMILAR.get(corpus, {})}
    if name in ("gru", "lstm"):
        options |= {"cell": name, **_GATED.get(corpus, {})}
    return options


def preset(name: str, corpus: str) -> dict[str, Any]:
    """The options of a preset for a corpus; `bach` and folders take the paper's column of `jsb-chorales`.

    Files of sequences are no music: nothing is transposed, and zeros before them would be values.
    """
    from fastdropout.music.data.series import is_series

    if is_series(corpus):
        return {**_preset(name, corpus), "transpose": 0, "pad": "end"}
    return _preset(name, corpus)


def _preset(name: str, corpus: str) -> dict[str, Any]:
    if name == "deep":
        return _deep(corpus if corpus in _CLASS else "jsb-chorales")
    if name in CLASSES:
        return _class(name, corpus if corpus in _CLASS else "jsb-chorales")
    if name == "default":
        # Measured: transposed pieces help bach and piano-midi, and hurt nottingham and jsb-chorales.
        return {"transpose": 0} if corpus in _PAPER and corpus != "piano-midi" else {}
    if name == "paper":
        return {**_PAPER_ALL, **_PAPER.get(corpus, _PAPER["jsb-chorales"])}
    return dict(_BEST.get(corpus, _BEST["bach"]))
