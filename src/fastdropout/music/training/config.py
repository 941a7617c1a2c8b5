"""What a run is made of: one flat, frozen model; the same words in TOML files, flags and Python.

Nothing heavy is imported here: the command line reads the options for its help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Drop = Annotated[float, Field(ge=0, lt=1)]


class Config(BaseModel):
    """Every option of a run. The defaults are the preset `default`.

    >>> Config(hidden=300, drop_hidden=0.4).drop_hidden
    0.4

    Built directly, a fault raises pydantic's `ValidationError`; `make_config` and `read_config` raise one
    `ConfigError` that names all faults in a line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # data
    corpus: str = Field("bach", min_length=1, description="name of a corpus, or a path")
    data: str | None = Field(None, description="folder of the canonical data sets [$FASTDROPOUT_DATA]")
    steps_per_quarter: int | None = Field(
        None, ge=1, le=48, description="frames per quarter note of MIDI files [2]"
    )
    pieces: int = Field(0, ge=0, description="use only the first pieces of each split; 0 for all")
    chunk: int = Field(100, ge=2, le=100_000, description="frames per chunk")
    pad: Literal["front", "end"] = Field(
        "front", description="where short chunks get zeros; the paper: front"
    )
    carry: bool = Field(False, description="carry the state from chunk to chunk (truncated BPTT)")
    score_first: bool = Field(False, description="score the first frame of a piece too")
    batch: int = Field(16, ge=1, le=65_536, description="chunks per batch")
    transpose: int = Field(
        5, ge=0, le=12, description="largest random shift of a training piece, in semitones"
    )
    valid: Literal["chunks", "whole"] = Field("chunks", description="validate on chunks or on whole pieces")

    # network
    hidden: int = Field(200, ge=1, le=8192, description="hidden units per layer")
    layers: int = Field(1, ge=1, le=16, description="stacked recurrent layers")
    cell: Literal["tanh", "relu", "lstm", "gru"] = Field("tanh", description="cell of the recurrent layers")
    members: int = Field(
        1, ge=1, le=64, description="networks in an ensemble; each has hidden / members units"
    )
    skip: bool = Field(False, description="add a linear path from the inputs to the output")
    memory: bool = Field(
        False, description="also read what followed the last frames when they occurred earlier in the piece"
    )
    similar: bool = Field(
        False, description="also read the average of what followed similar moments of the piece"
    )
    drop_input: Drop = Field(0.2, description="drop probability of the inputs")
    drop_memory: Drop = Field(0.0, description="drop probability of the memory's inputs")
    drop_hidden: Drop = Field(0.5, description="drop probability on the recurrent connection")
    drop_between: Drop = Field(0.0, description="drop probability between layers")
    drop_output: Drop = Field(0.5, description="drop probability from hidden to output")
    propagate_output: bool = Field(True, description="fast dropout for the final layer too")
    noise_hidden: float = Field(0.3, ge=0, le=1e6, description="variance added to every hidden unit")
    weight_noise: bool = Field(False, description="adaptive weight noise on all weights")
    weight_std: float | None = Field(None, gt=0, le=1e3, description="initial std of noisy weights [.075]")
    rule: Literal["fast", "accurate", "paper"] = Field("fast", description="how tanh is integrated")
    method: Literal["moments", "gaussian", "mask"] = Field(
        "moments", description="moments integrates the noise, gaussian and mask sample it"
    )

    # output
    output: Literal["notes", "nade", "gaussian"] | None = Field(
        None,
        description="independent notes, notes given those below them in the frame, or real values "
        "[notes; gaussian for a series of real values]",
    )
    output_rule: Literal["fast", "paper"] = Field(
        "fast", description="how the sigmoid of the notes is integrated; the paper: paper"
    )
    nade_hidden: int | None = Field(None, ge=1, le=8192, description="hidden units of the NADE [200]")
    nade_nonlinearity: Literal["tanh", "sigmoid"] | None = Field(
        None, description="activation of these units [tanh]"
    )
    drop_nade_input: Drop = Field(0.0, description="drop probability of the NADE's inputs")
    drop_nade_hidden: Drop = Field(0.0, description="drop probability of the NADE's hidden units")

    # initial weights
    init_var: float = Field(
        1e-4, ge=1e-20, le=1e6, description="variance of the recurrent and output weights"
    )
    init_var_input: float = Field(0.01, ge=0, le=1e6, description="variance of the input weights")
    output_bias: float | Literal["frequencies"] = Field(
        "frequencies", description="initial output bias (the paper's: -0.8), or from the notes' frequencies"
    )
    spectral_radius: float = Field(1.2, gt=0, le=1e3, description="spectral radius of the recurrent weights")
    nu: int = Field(
        15, ge=0, description="fan-in: recurrent connections into a unit (the paper's nu); 0 for all"
    )

    # training
    loss: Literal["mean", "expected"] = Field(
        "mean",
        description="of the mean prediction, -log E[p] (the paper's), or expected over the noise, E[-log p]",
    )
    lr: float = Field(0.001, gt=0, le=1e3, description="learning rate")
    momentum: float = Field(0.99, ge=0, lt=1, description="momentum of RMSprop with look-ahead")
    alpha: float = Field(
        0.8, ge=0, lt=1, description="decay of RMSprop's running average of squared gradients"
    )
    clip: float = Field(225.0, gt=0, le=1e12, description="largest norm of the gradient")
    weight_decay: float = Field(0.0, ge=0, le=1e3, description="L2 penalty on the weights")
    schedule: Literal["none", "cosine"] = Field("cosine", description="of the learning rate over all epochs")
    averaging: float = Field(
        0.99, ge=0, lt=1, description="decay of the exponential moving average of the weights; 0 for none"
    )
    epochs: int = Field(
        70, ge=1, le=1_000_000, description="largest number of passes over the training pieces"
    )
    patience: int = Field(
        0, ge=0, description="stop after this many epochs without a lower valid NLL; 0: never"
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of weights, order and sampling")
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="threads of torch; 0: one for a small network, else one per core, at most 4 and at most "
        "OMP_NUM_THREADS",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        faults = contradictions(dict(self))
        if faults:
            raise ValueError("; ".join(faults))
        return self


def contradictions(values: Mapping[str, Any]) -> list[str]:
    """Options that contradict one another or would do nothing, as far as their values are there."""
    faults = []
    for names, wrong, message in _RULES:
        if all(name in values for name in names) and wrong(*(values[name] for name in names)):
            faults.append(message.format(**values))
    return faults


def _canonical(corpus: str) -> bool:
    from fastdropout.music.data.canonical import CANONICAL

    return corpus in CANONICAL


_Rule = tuple[tuple[str, ...], Callable[..., bool], str]
_RULES: tuple[_Rule, ...] = (
    (
        ("drop_output", "propagate_output"),
        lambda drop, propagate: drop > 0 and not propagate,
        "drop_output must be 0 where propagate_output is false (no noise enters), got {drop_output}",
    ),
    (
        ("hidden", "members"),
        lambda hidden, members: hidden % members != 0,
        "hidden must be a multiple of members ({members}), got {hidden}",
    ),
    (
        ("nu", "hidden", "members"),
        lambda nu, hidden, members: nu >= hidden // members,
        "nu must be below hidden / members ({hidden} / {members}), or 0 for all connections, got {nu}",
    ),
    (
        ("weight_std", "weight_noise"),
        lambda std, noise: std is not None and not noise,
        "weight_std is not used without weight_noise: leave it out or set weight_noise",
    ),
    (
        ("steps_per_quarter", "corpus"),
        lambda steps, corpus: steps is not None and (corpus == "bach" or _canonical(corpus)),
        "steps_per_quarter is for folders of MIDI files, {corpus} has a grid of its own: leave it out",
    ),
    (
        ("data", "corpus"),
        lambda data, corpus: data is not None and not _canonical(corpus),
        "data is for the canonical data sets, {corpus} does not use it: leave it out",
    ),
    (
        ("rule", "method"),
        lambda rule, method: rule != "fast" and method == "mask",
        "rule is not used by method mask, which integrates nothing: set it to fast, got {rule}",
    ),
    (
        ("output_rule", "method", "loss", "output"),
        lambda rule, method, loss, output: (
            rule != "fast" and (method == "mask" or loss == "expected" or output == "gaussian")
        ),
        "output_rule is for notes with the loss mean, integrated: set it to fast with method mask, loss "
        "expected or output gaussian, got {output_rule}",
    ),
    (
        ("loss", "method"),
        lambda loss, method: loss == "expected" and method == "mask",
        "loss expected is loss mean with method mask, which has no variance: leave it out",
    ),
    (
        ("loss", "propagate_output", "weight_noise", "output", "skip"),
        lambda loss, propagate, noise, output, skip: (
            loss == "expected" and not (propagate or noise or skip) and output in (None, "notes")
        ),
        "loss expected is loss mean where propagate_output is false: leave it out",
    ),
    (
        ("drop_memory", "memory", "similar"),
        lambda drop, memory, similar: drop > 0 and not (memory or similar),
        "drop_memory is not used without memory or similar: leave it out or set one, got {drop_memory}",
    ),
    (
        ("drop_between", "layers"),
        lambda drop, layers: drop > 0 and layers == 1,
        "drop_between is not used by one layer: leave it out, got {drop_between}",
    ),
    *(
        (
            (name, "output"),
            lambda value, output: bool(value) and output != "nade",
            f"{name} is for output nade: leave it out, got {{{name}}}",
        )
        for name in ("nade_hidden", "nade_nonlinearity", "drop_nade_input", "drop_nade_hidden")
    ),
    (
        ("weight_noise", "output", "cell"),
        lambda noise, output, cell: noise and (output == "nade" or cell in ("lstm", "gru")),
        "weight_noise is for the cells tanh and relu, without a NADE: leave it out",
    ),
    (
        ("memory", "similar", "output"),
        lambda memory, similar, output: (memory or similar) and output == "gaussian",
        "memory and similar are for zeros and ones, real values do not occur twice: leave them out",
    ),
)
