"""Tables of time and memory."""

from __future__ import annotations

from docs.tables.markdown import figures, number, table


def speed() -> str:
    """Ratios of the benchmark; a dash for what took too long to be measured."""
    found = figures("benchmarks")["speed"]
    names = list(dict.fromkeys(name for row in found for name in row["ratios"]))
    rows = [
        [str(row["batch"]), str(row["units"]), *(number(row["ratios"].get(name)) for name in names)]
        for row in found
    ]
    return table(["batch", "units", *names], rows)


def speed_short() -> str:
    """What a layer of 400 units costs against torch's own, and a prediction against masks."""
    by = {(row["batch"], row["units"]): row["ratios"] for row in figures("benchmarks")["speed"]}
    rnn, gated = by[64, 400], figures("gated")["speed"][0]["ratios"]
    rows = [
        ["training step, RNN / `torch.nn.RNN`", gated["fused / torch.nn.RNN"]],
        ["training step, LSTM / `torch.nn.LSTM`", gated["LSTM / torch.nn.LSTM"]],
        ["training step, GRU / `torch.nn.GRU`", gated["GRU / torch.nn.GRU"]],
        ["prediction, diagonal variance, RNN / 50 masks", rnn["predict: moments / predict: 50 masks"]],
        ["prediction, diagonal variance, LSTM / 50 masks", gated["predict: LSTM / predict: 50 LSTM masks"]],
    ]
    return table(["time", "ratio"], [[name, number(value)] for name, value in rows])


def gated() -> str:
    """Ratios of LSTM, GRU, two layers and weight noise."""
    rows = [
        [str(row["batch"]), str(row["units"]), name, number(value)]
        for row in figures("gated")["speed"]
        for name, value in row["ratios"].items()
    ]
    return table(["batch", "units", "ratio", "value"], rows)


def compiled() -> str:
    """Time of compiled models as a share of that of eager ones."""
    rows = [
        [row["layer"], number(row["train"]["ratio"]), number(row["predict"]["ratio"])]
        for row in figures("compiled")["rows"]
    ]
    return table(["model", "training step", "prediction"], rows)


def growth() -> str:
    """Exponents of the benchmark."""
    rows = [
        [
            row["dimension"],
            kind,
            number(row["time_exponent"][kind]),
            number(row["memory_exponent"].get(kind)),
            number(row["own_memory_exponent"].get(kind)),
        ]
        for row in figures("benchmarks")["growth"]
        for kind in row["time_exponent"]
    ]
    return table(
        ["growing", "what", "time", "peak memory", "of it, beyond the outputs and their gradients"], rows
    )


def profile() -> str:
    """Milliseconds of each part of a training step, with 64 pieces and 400 units."""
    found = figures("profile")
    rows = [[name, f"{value:.1f}"] for name, value in found["milliseconds"].items()]
    return table(["part of a training step", "milliseconds"], rows)


def executors() -> str:
    """Ways to use the cores for several trainings."""
    rows = [[row["way"], f"{row['seconds']:.0f} s", f"{row['ratio']:.2f}"] for row in figures("executors")]
    return table(["trainings", "time", "ratio"], rows)
