"""Tables of trainings on music: the paper's Table 1, the runs behind it, and the published models."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, stdev

from docs.tables.markdown import ROOT, figures, table

from fastdropout.music.study.paper import MODELS as PUBLISHED
from fastdropout.music.study.paper import TABLE_1, figure_for
from fastdropout.music.study.results import Result, read_results
from fastdropout.music.study.table import ABLATIONS, CLASSES, CORPORA, MODELS, TWINS, chosen


def bach() -> str:
    """The default training with and without dropout."""
    rows = []
    for name in ("train-bach", "train-bach-plain", "train-bach-plain-gentle"):
        found = figures(name)
        scores = (f"{found[split]:.3f}" for split in ("valid", "test"))
        rows.append([f"`{found['command']}`", *scores, f"{found['seconds']:.0f} s"])
    return table(["command", "valid NLL", "test NLL", "time"], rows)


def table_1(models: Iterable[str] = tuple(name for name in MODELS if name not in TWINS)) -> str:
    """Test NLL of what valid chose, above the paper's figures; bold what is below that of its class."""
    rows = []
    for model in models:
        cells = []
        for corpus in CORPORA:
            best = chosen(results(corpus, model))
            limit = figure_for(model, corpus) or 0.0
            score = None if best is None else best.test
            text = "–" if score is None else f"{score:.3f}"
            cells.append(f"**{text}**" if score is not None and score < limit else text)
        if any(cell != "–" for cell in cells) or model not in (*CLASSES, *TWINS, "plain-average"):
            rows.append([MODELS[model], *cells])
    for row, label in enumerate(PUBLISHED):
        figures = (TABLE_1[corpus][row] for corpus in CORPORA)
        name = label if "paper" in label else f"{label} (the paper)"
        rows.append([name, *("–" if value is None else f"{value:.2f}" for value in figures)])
    return table(["test NLL", *CORPORA], rows)


def table_1_short() -> str:
    """The rows of Table 1 that the README shows: of NADE only those with both memories, and their twin."""
    ours = ("plain", "single", "best", "plain-average", "weight-noise", "weight-decay", "gru", "deep")
    return table_1((*ours, "nade-similar", "nade-similar-plain"))


def twins() -> str:
    """Test NLL of each class with fast dropout, without noise and with masks; bold the lowest."""
    rows = []
    for model in ("single", "best", *CLASSES):
        plain = {"single": "plain", "best": "plain-average"}.get(model, f"{model}-plain")
        kinds = {"fast dropout": model, "no noise": plain, "masks": f"{model}-masks"}
        found = {(kind, c): chosen(results(c, name)) for kind, name in kinds.items() for c in CORPORA}
        scores = {key: best.test for key, best in found.items() if best is not None and best.test is not None}
        lowest = {
            c: min((v for (_, where), v in scores.items() if where == c), default=None) for c in CORPORA
        }
        for kind in kinds:
            values = [(scores.get((kind, c)), lowest[c]) for c in CORPORA]
            cells = ["–" if v is None else f"**{v:.3f}**" if v == best else f"{v:.3f}" for v, best in values]
            if any(cell != "–" for cell in cells):
                rows.append([MODELS[model].replace("FD-", "").replace("FD ", ""), kind, *cells])
    return table(["network", "trained with", *CORPORA], rows or [["–"] * 6])


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
