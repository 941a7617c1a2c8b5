"""Writes the tables of README.md and docs/ from the files under results/: `python -m docs.tables [--check]`.

A table stands between `<!-- table: name -->` and `<!-- end -->`; what is between is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.uncertainty.page import PAGE as UNCERTAINTY
from docs import functions, networks

from fastdropout.music.study.paper import MODELS as PUBLISHED
from fastdropout.music.study.paper import TABLE_1, figure_for
from fastdropout.music.study.results import Result, read_results
from fastdropout.music.study.table import ABLATIONS, CLASSES, CORPORA, MODELS, TWINS, chosen

ROOT = Path(__file__).parents[1]


def figures(name: str) -> Any:
    """The figures of `results/{name}.json`."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["figures"]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rules_errors() -> str:
    """Errors of the transfer rules."""
    keys = ("max_error_mean", "max_error_var", "max_var_of_certain")
    rows = [
        [row["function"], row["rule"], *(f"{row[key]:.1e}" if row[key] else "0" for key in keys)]
        for row in figures("rules")["errors"]
    ]
    return table(
        ["function", "rule", "max error of the mean", "of the variance", "variance of a certain input"], rows
    )


def rules_recurrence() -> str:
    """Predicted over true variance in a recurrence."""
    found = figures("rules")["recurrence"]
    names = list(found[0]["ratio"])
    rows = [
        [
            f"{row['drop_input']} / {row['drop_hidden']}",
            str(row["radius"]),
            *(f"{row['ratio'][n]:.3f}" for n in names),
        ]
        for row in found
    ]
    return table(["drop input / hidden", "spectral radius", *names], rows)


def speed() -> str:
    """Ratios of the benchmark; a dash for what took too long to be measured."""
    found = figures("benchmarks")["speed"]
    names = list(dict.fromkeys(name for row in found for name in row["ratios"]))
    rows = [
        [str(row["batch"]), str(row["units"]), *(_number(row["ratios"].get(name)) for name in names)]
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
        ["the same RNN unrolled with autograd / fused", rnn["naive / fused"]],
        ["prediction, diagonal variance, RNN / 50 masks", rnn["predict: moments / predict: 50 masks"]],
        ["prediction, diagonal variance, LSTM / 50 masks", gated["predict: LSTM / predict: 50 LSTM masks"]],
    ]
    return table(["time", "ratio"], [[name, _number(value)] for name, value in rows])


def gated() -> str:
    """Ratios of LSTM, GRU, two layers and weight noise."""
    rows = [
        [str(row["batch"]), str(row["units"]), name, _number(value)]
        for row in figures("gated")["speed"]
        for name, value in row["ratios"].items()
    ]
    return table(["batch", "units", "ratio", "value"], rows)


def compiled() -> str:
    """Time of compiled models as a share of that of eager ones."""
    rows = [
        [row["layer"], _number(row["train"]["ratio"]), _number(row["predict"]["ratio"])]
        for row in figures("compiled")["rows"]
    ]
    return table(["model", "training step", "prediction"], rows)


def cells_trained() -> str:
    """Predicted over true standard deviation of trained recurrent layers, both variances."""
    rows = [
        [
            row["layer"],
            row["task"],
            f"{row['drop_hidden']}",
            *(f"{row[key]:.2f}" for key in ("diagonal_std_ratio", "traced_std_ratio", "traced_correlation")),
        ]
        for row in figures("cells")["trained"]
    ]
    return table(["layer", "task", "drop", "diagonal", "traced", "correlation of the traced"], rows)


def cells_short() -> str:
    """Ranges over tasks and rates; of random weights, roots of the ratios of variances."""
    found = figures("cells")
    rows = []
    for layer in dict.fromkeys(row["layer"] for row in found["trained"]):
        random = [row["variance_ratio"] ** 0.5 for row in found["random"] if row["layer"] == layer]
        own = [row for row in found["trained"] if row["layer"] == layer]
        ranges = [random, *([row[f"{kind}_std_ratio"] for row in own] for kind in ("diagonal", "traced"))]
        rows.append([layer, *(f"{min(values):.2f} to {max(values):.2f}" for values in ranges)])
    return table(["layer", "random weights, diagonal", "trained, diagonal", "trained, traced"], rows)


def cells_random() -> str:
    """Predicted over true variance of recurrent layers with random weights."""
    rows = [
        [
            row["layer"],
            f"{row['drop_input']} / {row['drop_hidden']}",
            f"{row['scale']:.0f}",
            f"{row.get('forget', 1):.0f}" if row["layer"] == "LSTM" else "–",
            row.get("inputs", "gaussian"),
            *(f"{row[key]:.3f}" for key in ("variance_ratio", "mean_error_in_std", "correlation_of_std")),
        ]
        for row in figures("cells")["random"]
    ]
    head = ["layer", "drop input / hidden", "weight scale", "forget bias", "inputs", "variance ratio"]
    return table([*head, "error of the mean / std", "correlation of std"], rows)


def claims_published() -> str:
    """The published models against masks."""
    return _claims("published", ["model"])


def claims_settings() -> str:
    """Small networks by loss and rates against masks."""
    return _claims("settings", ["loss"])


def _claims(name: str, first: list[str]) -> str:
    rows = []
    for row in figures(f"claims-{name}"):
        share = row["var_of_p_over_p_q"]
        rows.append(
            [
                *(row[key] for key in first),
                _rates(row),
                f"{row['variance_ratio']:.2f}",
                f"{row['traced_std_ratio_of_the_last_frame']:.2f}",
                f"{row['offset_of_the_mean']:.2f} / {row['std_of_the_logits']:.1f}",
                f"{share['5%']:.3f} to {share['95%']:.3f}",
                f"{row['nll_of_the_pass']:.2f}",
                f"{row['nll_of_averaged_masks']:.2f}",
            ]
        )
    head = [*first, "drop input / hidden / output", "variance, diagonal / true", "std, traced / true"]
    return table(
        [
            *head,
            "offset of the mean / std",
            "90 % of V[p] / (p (1 - p))",
            "NLL of the pass",
            "NLL of 200 masks",
        ],
        rows,
    )


def claims_masks() -> str:
    """Sampled masks and the same noise integrated out on JSB Chorales."""
    rows = [
        ["masks" if row["method"] == "mask" else "integrated", _rates(row)]
        + [f"{row[split]:.3f}" for split in ("valid", "test")]
        for row in figures("claims-masks")
    ]
    return table(["dropout", "drop input / hidden / output", "valid", "test"], rows)


def _rates(row: dict[str, Any]) -> str:
    return " / ".join(f"{row[key]}" for key in ("drop_input", "drop_hidden", "drop_output"))


def growth() -> str:
    """Exponents of the benchmark."""
    rows = [
        [
            row["dimension"],
            kind,
            _number(row["time_exponent"][kind]),
            _number(row["memory_exponent"].get(kind)),
            _number(row["own_memory_exponent"].get(kind)),
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


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def bach() -> str:
    """The default training with and without dropout."""
    rows = []
    for name in ("train-bach", "train-bach-plain", "train-bach-plain-gentle"):
        found = figures(name)
        scores = (f"{found[split]:.3f}" for split in ("valid", "test"))
        rows.append([f"`{found['command']}`", *scores, f"{found['seconds']:.0f} s"])
    return table(["command", "valid NLL", "test NLL", "time"], rows)


def table_1() -> str:
    """Test NLL of what valid chose, above the paper's figures; bold what is below that of its class."""
    rows = []
    for model, label in MODELS.items():
        cells = []
        for corpus in CORPORA:
            best = chosen(results(corpus, model))
            limit = figure_for(model, corpus) or 0.0
            score = None if best is None else best.test
            text = "–" if score is None else f"{score:.3f}"
            cells.append(f"**{text}**" if score is not None and score < limit else text)
        if any(cell != "–" for cell in cells) or model not in (*CLASSES, *TWINS, "plain-average"):
            rows.append([label, *cells])
    for row, label in enumerate(PUBLISHED):
        figures = (TABLE_1[corpus][row] for corpus in CORPORA)
        name = label if "paper" in label else f"{label} (the paper)"
        rows.append([name, *("–" if value is None else f"{value:.2f}" for value in figures)])
    return table(["test NLL", *CORPORA], rows)


def table_1_short() -> str:
    """The rows of Table 1 that the README shows."""
    wanted = (
        "test NLL",
        "---",
        "plain RNN |",
        "FD-RNN",
        "average of two",
        "weight decay",
        "adaptive",
        "RNN-NADE + memory",
        "RNN-NADE (the paper)",
    )
    lines = [line for line in table_1().splitlines() if line.startswith(tuple(f"| {w}" for w in wanted))]
    return "\n".join(line for line in lines if "settings" not in line)


def table_1_runs() -> str:
    """The runs behind the table: the chosen one, and how the seeds of its setting scatter."""
    rows = []
    for corpus in CORPORA:
        for model, label in MODELS.items():
            found = results(corpus, model)
            best = chosen(found)
            if best is None:
                continue
            scores = [r.test for r in found if r.candidate == best.candidate and r.test is not None]
            spread = f"{mean(scores):.3f} ± {stdev(scores):.3f} ({len(scores)})" if len(scores) > 1 else "–"
            cells = [corpus, label, f"{best.valid:.3f}", f"{best.test:.3f}", spread]
            cells += [f"{best.best_epoch} of {best.epochs}", f"{best.seconds / 60:.0f}", f"`{best.command}`"]
            rows.append(cells)
    head = ["data set", "model", "valid", "test", "test over seeds", "epoch", "minutes", "the same by hand"]
    return table(head, rows or [["–"] * len(head)])


def ablation() -> str:
    """One member of the best setting on JSB Chorales without each ingredient, means over the seeds."""
    rows: list[list[str]] = []
    base: list[float] = []
    for model in ("single", "best", *ABLATIONS):
        pairs = [(r.valid, r.test) for r in results("jsb-chorales", model) if r.valid and r.test]
        if not pairs:
            continue
        scores = [mean(values) for values in zip(*pairs, strict=True)]
        base = scores if model == "single" else base
        cells = [model.replace("-", " ")]
        for split, score in enumerate(scores):
            change = f"{score - base[split]:+.3f}" if base and model != "single" else "–"
            cells += [f"{score:.3f}", change]
        rows.append([*cells, str(len(pairs))])
    head = ["setting", "valid", "change", "test", "change", "seeds"]
    return table(head, rows or [["–"] * len(head)])


def executors() -> str:
    """Ways to use the cores for several trainings."""
    rows = [[row["way"], f"{row['seconds']:.0f} s", f"{row['ratio']:.2f}"] for row in figures("executors")]
    return table(["trainings", "time", "ratio"], rows)


def models() -> str:
    """The published models, as their card has them."""
    rows = []
    for path in sorted((ROOT / "src" / "fastdropout" / "music" / "models").glob("*.safetensors")):
        from fastdropout.music.study.publish import units_of
        from fastdropout.music.training.published import load_model

        found = load_model(path)
        scores = [f"{found.about[split]:.3f}" for split in ("valid", "test")]
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        rows.append([f"`{found.name}`", units_of(found.config), *scores, size, f"`{found.about['command']}`"])
    head = ["model", "units", "valid", "test", "size", "trained by"]
    return table(head, rows or [["–"] * len(head)])


def explored() -> str:
    """The trainings that settings were chosen from, the best first."""
    found = read_results(ROOT / "results" / "explored.json")
    found = sorted(found, key=lambda r: (CORPORA.index(r.corpus), r.valid or 0.0))
    rows = [
        [r.corpus, f"{r.valid:.3f}", f"{r.test:.3f}", f"{r.best_epoch} of {r.epochs}", f"`{r.command}`"]
        for r in found
    ]
    return table(["data set", "valid", "test", "epoch", "command"], rows)


def results(corpus: str, model: str) -> list[Result]:
    """What `results/table` holds of a model."""
    return [r for r in read_results(ROOT / "results" / "table" / f"{corpus}.json") if r.model == model]


TABLES: dict[str, Callable[[], str]] = {
    "functions": functions.table,
    "networks": networks.accuracy,
    "networks short": networks.accuracy_short,
    "networks plain": networks.plain,
    "networks times": networks.times,
    "networks others": networks.others,
    "rules errors": rules_errors,
    "rules recurrence": rules_recurrence,
    "speed": speed,
    "speed short": speed_short,
    "gated": gated,
    "compiled": compiled,
    "cells trained": cells_trained,
    "cells random": cells_random,
    "cells short": cells_short,
    "claims published": claims_published,
    "claims settings": claims_settings,
    "claims masks": claims_masks,
    "growth": growth,
    "profile": profile,
    "bach": bach,
    "table 1": table_1,
    "table 1 short": table_1_short,
    "table 1 runs": table_1_runs,
    "ablation": ablation,
    "executors": executors,
    "models": models,
    "explored": explored,
    **UNCERTAINTY,
}
PATTERN = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The text with its tables made anew."""
    return PATTERN.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> None:
    """Write the tables, or with `--check` say whether they are up to date."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        new = filled(text)
        if new != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    print("stale: " + ", ".join(stale) if stale else "all tables are up to date")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
