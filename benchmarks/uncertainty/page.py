"""The tables of docs/uncertainty.md, from the files under results/uncertainty, for docs/tables."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.record import RESULTS
from benchmarks.uncertainty import store
from benchmarks.uncertainty.scores import mean_and_error

TABLES = ("boston", "concrete", "auto-mpg", "diabetes", "windsor", "computers")
IMAGES = ("digits", "mnist")
FORECASTS = tuple(f"{name}-{cell}" for name in ("sunspots", "passengers") for cell in ("rnn", "lstm"))
# Method: the file of a set that has its figures.
METHODS = {
    "plain": "plain",
    "MC dropout 10": "mask",
    "MC dropout 50": "mask",
    "deep ensemble 5": "plain",
    "Laplace": "plain",
    "fast dropout": "mean",
    "fast dropout, expected loss": "expected",
    "fast dropout, heteroscedastic": "heteroscedastic",
    "fast dropout ensemble 2": "mean",
    "FastDropoutRegressor(), defaults": "estimator",
    "gradient boosting, quantiles": "boosting",
    "Gaussian process": "gaussian-process",
}
REFERENCE, OURS = "MC dropout 50", "fast dropout"
BATCHED = "MC dropout 50, one batch"


def runs(name: str, method: str) -> list[dict[str, Any]]:
    """The figures of a method on each split of a set; none if it has not been run."""
    task = f"{name}/{METHODS[method]}"
    return store.figures(task).get(method, []) if store.done(task) else []


def values(name: str, method: str, key: str) -> list[float]:
    """One figure on each split; `rotated log_likelihood` is inside of `rotated`."""
    outer, _, inner = key.rpartition(" ")
    found = []
    for run in runs(name, method):
        part = run[outer] if outer and outer in run else run
        found.append(part[inner if outer in run else key])
    return found


def _cell(found: list[float], digits: int, percent: bool = False, error: bool = True) -> str:
    if not found:
        return "–"
    mean, spread = (x * (100 if percent else 1) for x in mean_and_error(found))
    if not error or math.isnan(spread):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def _methods(names: tuple[str, ...]) -> list[str]:
    return [m for m in METHODS if any(runs(name, m) for name in names)]


def _done(names: tuple[str, ...]) -> tuple[str, ...]:
    """The sets that have figures."""
    return tuple(name for name in names if any(runs(name, m) for m in METHODS))


def _digits(name: str) -> int:
    """As many as a standard error deserves."""
    found = values(name, OURS, "rmse") or [1.0]
    return 1 if np.mean(found) >= 10 else 2 if np.mean(found) >= 0.5 else 3


def regression(key: str, digits: int | None = None, percent: bool = False) -> str:
    """A figure of all methods on all tables."""
    names = _done(TABLES)
    rows = [
        [m, *(_cell(values(n, m, key), _digits(n) if digits is None else digits, percent) for n in names)]
        for m in _methods(names)
    ]
    return table(["", *names], rows)


def log_likelihood() -> str:
    """Test log-likelihood per row, the best of a column in bold."""
    names = _done(TABLES)
    methods = _methods(names)
    best = {
        n: max(
            (m for m in methods if runs(n, m)),
            key=lambda m: np.mean(values(n, m, "log_likelihood")),
            default="",
        )
        for n in names
    }
    rows = []
    for m in methods:
        cells = [_cell(values(n, m, "log_likelihood"), 3) for n in names]
        rows.append([m, *(f"**{c}**" if best[n] == m else c for n, c in zip(names, cells, strict=True))])
    return table(["", *names], rows)


def images() -> str:
    """Pictures as they come, and what is foreign."""
    rows = []
    for name in _done(IMAGES):
        for m in _methods(IMAGES):
            cells = [
                _cell(values(name, m, "accuracy"), 2, percent=True),
                _cell(values(name, m, "log_likelihood"), 4),
            ]
            cells.append(_cell(values(name, m, "ece"), 2, percent=True))
            cells += [_cell(values(name, m, f"auroc {kind}"), 3) for kind in ("letters", "photographs")]
            rows.append([name, m, *cells])
    head = [
        "set",
        "method",
        "accuracy, %",
        "log-likelihood",
        "ECE, %",
        "AUROC, letters",
        "AUROC, photographs",
    ]
    return table(head, rows)


def worse_images() -> str:
    """Copies that are shifted, rotated, noisy."""
    rows = []
    for name in _done(IMAGES):
        for m in _methods(IMAGES):
            cells = []
            for kind in ("shifted", "rotated", "noisy"):
                found = [values(name, m, f"{kind} {key}") for key in ("accuracy", "log_likelihood", "ece")]
                shown = [
                    _cell(found[0], 1, True, False),
                    _cell(found[1], 3, False, False),
                    _cell(found[2], 1, True, False),
                ]
                cells.append(" / ".join(shown))
            rows.append([name, m, *cells])
    return table(["accuracy, % / log-likelihood / ECE, %", "method", "shifted", "rotated", "noisy"], rows)


def forecasts() -> str:
    """RMSE, log-likelihood and coverage of all horizons."""
    rows = []
    for name in FORECASTS:
        for m in _methods(FORECASTS):
            if not runs(name, m):
                continue
            cells = [_cell(values(name, m, "rmse"), 3), _cell(values(name, m, "log_likelihood"), 3)]
            cells += [_cell(values(name, m, "coverage"), 1, percent=True), _cell(values(name, m, "width"), 3)]
            rows.append([name, m, *cells])
    return table(["series, cell", "method", "RMSE", "log-likelihood", "coverage, %", "width"], rows)


def settings() -> str:
    """How often each pair of drop rates (input / hidden) was chosen on validation rows."""
    rows = []
    for name in _done((*TABLES, *IMAGES, *FORECASTS)):
        cells = []
        for m in (REFERENCE, OURS, "fast dropout, expected loss"):
            chosen = Counter(run["setting"].removeprefix("drop ").split(",")[0] for run in runs(name, m))
            cells.append(", ".join(f"{key} ({n})" for key, n in chosen.most_common(3)) or "–")
        rows.append([name, *cells])
    return table(["set", REFERENCE, OURS, "fast dropout, expected loss"], rows)


def compared(name: str, ours: str = OURS, reference: str = REFERENCE) -> tuple[float, float] | None:
    """Mean difference of the log-likelihood over the splits, and the standard error of that difference."""
    a, b = values(name, ours, "log_likelihood"), values(name, reference, "log_likelihood")
    return mean_and_error([x - y for x, y in zip(a, b, strict=True)]) if a and b else None


def differences() -> str:
    """Log-likelihood of fast dropout less that of others, split by split."""
    others = (REFERENCE, "plain", "deep ensemble 5", "Laplace", "fast dropout, expected loss")
    rows = []
    for name in _done((*TABLES, *IMAGES, *FORECASTS)):
        cells = []
        for other in others:
            found = compared(name, OURS, other)
            cells.append("–" if found is None else f"{found[0]:+.3f} ± {found[1]:.3f}")
        rows.append([name, *cells])
    return table(["fast dropout less …", *others], rows)


def goals() -> str:
    """What was aimed at, and what is so."""
    sets = (*TABLES, *IMAGES, *FORECASTS)
    found = {n: d for n in sets if (d := compared(n)) is not None}
    held = [n for n, (mean, error) in found.items() if mean >= -error]
    better = [n for n, (mean, error) in found.items() if mean > error]
    worse = sorted(set(found) - set(held))
    regressions = (*TABLES, *FORECASTS)
    coverage = {n: float(np.mean(c)) for n in regressions if (c := values(n, OURS, "coverage"))}
    outside = [f"{n} {c:.1%}" for n, c in coverage.items() if not 0.85 <= c <= 0.95]
    ood = []
    for name in IMAGES:
        for kind in ("letters", "photographs"):
            pair = [values(name, m, f"auroc {kind}") for m in (OURS, REFERENCE)]
            if all(pair):
                ood.append(f"{name}, {kind}: {np.mean(pair[0]):.3f} against {np.mean(pair[1]):.3f}")
    rows = [
        [
            "test log-likelihood, fast dropout against MC dropout 50",
            "not worse beyond a standard error on 80 % of the sets, better on half",
            f"not worse on {len(held)} of {len(found)}, better on {len(better)}"
            + (f"; worse: {', '.join(worse)}" if worse else "")
            if found
            else "–",
        ],
        [
            "coverage of 90 % intervals",
            "85 to 95 % on every regression set",
            f"{len(coverage) - len(outside)} of {len(coverage)} sets inside"
            + (f"; outside: {', '.join(outside)}" if outside else "")
            if coverage
            else "–",
        ],
        ["out-of-distribution AUROC", "at least that of MC dropout 50", "; ".join(ood) or "–"],
        ["time of a prediction / MC dropout 50", "≤ 1/15", _time_goal()],
        [
            "cross entropy against exact integration (10 classes, variance ≤ 25)",
            "1e-2 relative",
            _class_goal(),
        ],
    ]
    return table(["", "goal", "measured"], rows)


def _class_goal() -> str:
    path = RESULTS / "classes.json"
    if not path.exists():
        return "–"
    found = json.loads(path.read_text())["figures"]["losses"]
    rows = [
        r for r in found if r["classes"] == 10 and isinstance(r["variance"], float) and r["variance"] <= 25
    ]
    return f"{max(r['max_error'][k] / r['loss'][k] for r in rows for k in ('mean', 'expected')):.1e}"


def _times() -> Any:
    return store.figures("times") if store.done("times") else None


def _time_goal() -> str:
    found = _times()
    if found is None:
        return "–"
    return "; ".join(f"{row['what']}: {_ratios(row['seconds'])}" for row in found["prediction"])


def _ratios(seconds: dict[str, float]) -> str:
    """Of fast dropout to 50 masks one after the other, and in one batch."""
    return " and ".join(f"1/{seconds[m] / seconds[OURS]:.1f}" for m in (REFERENCE, BATCHED))


def times() -> str:
    """Milliseconds of a prediction."""
    found = _times()
    if found is None:
        return "–"
    names = list(found["prediction"][0]["seconds"])
    rows = []
    for row in found["prediction"]:
        shown = (f"{1000 * row['seconds'][n]:.2f}" if n in row["seconds"] else "–" for n in names)
        rows.append([row["what"], *shown, _ratios(row["seconds"])])
    return table(["milliseconds", *names, f"{OURS} / {REFERENCE}"], rows)


def training_times() -> str:
    """Milliseconds of an update."""
    found = _times()
    if found is None:
        return "–"
    names = list(found["update"][0]["seconds"])
    rows = [[r["what"], *(f"{1000 * r['seconds'][n]:.2f}" for n in names)] for r in found["update"]]
    return table(["milliseconds of an update", *names], rows)


def fits() -> str:
    """Seconds of a whole fit."""
    found = store.figures("fits") if store.done("fits") else []
    rows = [[r["what"], f"{r['seconds']:.1f}", str(r["epochs"]), f"{r['score']:.3f}"] for r in found]
    head = ["fit with defaults", "seconds", "epochs", "R² or accuracy on other rows"]
    return table(head, rows or [["–"] * len(head)])


def state() -> str:
    """Which tasks are still to be done."""
    networks = ("mean", "mask", "plain", "expected")
    every = [f"{name}/{family}" for name in TABLES for family in dict.fromkeys(METHODS.values())]
    every += [f"{name}/{family}" for name in (*IMAGES, *FORECASTS) for family in networks]
    every += ["gap/all", "times", "fits"]
    left = [task for task in every if not store.done(task)]
    if not left:
        return "All tasks are done."
    done = len(every) - len(left)
    return f"{done} of {len(every)} tasks are done. A dash stands for what is not measured yet."


def picture(name: str, caption: str) -> str:
    """A picture that `pictures` has drawn, with its caption."""
    file = f"uncertainty-{name}.png"
    if not (RESULTS.parent / "docs" / "images" / file).exists():
        return "–"
    return f"![{caption.partition(':')[0]}](images/{file})\n\n*{caption}*"


CAPTIONS = {
    "band": "Bands over a function with a gap in the data: mean and two standard deviations. "
    "Dots are the data, the dotted line is the function.",
    "reliability": "Reliability on rotated digits: share of right answers against confidence. "
    "Below the diagonal a method is too sure of itself.",
    "sparsification": "Sparsification: RMSE of the rows that are left when those of the largest "
    "predicted spread are removed. A spread that says nothing gives a flat line.",
    "risk-coverage": "Risk and coverage on rotated digits: errors among the surest answers.",
}
PAGE: dict[str, Callable[[], str]] = {
    "uncertainty state": state,
    "uncertainty goals": goals,
    "uncertainty log likelihood": log_likelihood,
    "uncertainty rmse": lambda: regression("rmse"),
    "uncertainty coverage": lambda: regression("coverage", 1, percent=True),
    "uncertainty width": lambda: regression("width"),
    "uncertainty sparsification error": lambda: regression("sparsification", 3),
    "uncertainty images": images,
    "uncertainty worse images": worse_images,
    "uncertainty forecasts": forecasts,
    "uncertainty settings": settings,
    "uncertainty differences": differences,
    "uncertainty times": times,
    "uncertainty training times": training_times,
    "uncertainty fits": fits,
    **{f"uncertainty {n.replace('-', ' ')}": partial(picture, n, c) for n, c in CAPTIONS.items()},
}


def main() -> None:
    """Write the tables into the pages."""
    sys.exit(subprocess.run([sys.executable, "-m", "docs.tables"], cwd=RESULTS.parent).returncode)
