"""One self-contained page about a search."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optuna.trial import TrialState

from fastdropout.errors import RunError
from fastdropout.files import write_atomic, write_output
from fastdropout.music.study import figures
from fastdropout.music.study.page import page
from fastdropout.music.study.search.loop import Search, Trial
from fastdropout.music.training.fitting import Record
from fastdropout.music.training.run import Run

CURVES = 6
"""Trials whose learning curves have a colour of their own."""
ENOUGH = 8
"""Finished trials for importances that mean anything."""


def write_search_report(search: Search, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a search with a finished trial, by default as its report.html."""
    html = search_html(search).encode()
    if out is not None:
        write_output(out, html)
        return Path(out)
    write_atomic(search.folder.path / "report.html", html)
    return search.folder.path / "report.html"


def search_html(search: Search) -> str:
    """The report of a search as a page of HTML."""
    trials, best = search.trials, search.best
    if best is None:
        raise RunError(f"{search.folder.path}: no trial has finished, so there is nothing to report on")
    done = sorted((t for t in trials if t.state == "finished"), key=lambda t: (t.valid or 0.0, t.number))
    names = [name for name in search.space.rows if any(name in t.options for t in trials)]
    importance = importances(search.study)
    return page(
        "search.html",
        title=f"{search.settings.corpus}: {len(trials)} trials",
        search=search,
        settings=search.settings,
        corpus=Path(search.settings.corpus).name,
        best=best,
        test=nll_on_test(best),
        config=list(search.config(best.number)),
        trials=done + [t for t in trials if t.state != "finished"],
        counts={state: n for state in _STATES if (n := sum(t.state == state for t in trials))},
        names=names,
        curves=figures.to_svg(curves(done, trials), "curves"),
        slices=[(name, figures.to_svg(slices(name, done, best), f"slice-{name}")) for name in names],
        importance=figures.to_svg(bars(importance), "importance") if importance else "",
        enough=ENOUGH,
    )


_STATES = ("finished", "diverged", "pruned", "failed", "running", "waiting")


def nll_on_test(best: Trial) -> float | None:
    """`nll_per_step` of the selected trial on test; None if its run folder is on another machine."""
    try:
        test = Run(best.folder).result.test
    except RunError:
        return None
    return None if test is None else test.nll_per_step


def importances(study: optuna.Study) -> dict[str, float]:
    """The share of each option in what tells good trials from others (PED-ANOVA); empty for few trials."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < ENOUGH:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About options that only some trials have: they are left out.
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (ValueError, RuntimeError):
            return {}  # All alike.


def slices(name: str, done: Sequence[Trial], best: Trial) -> Figure:
    """The valid of the finished trials against one option."""
    figure, axes = figures.small_figure()
    figure.set_size_inches(3.4, 2.3)
    shown = [t for t in done if name in t.options and t.valid is not None]
    values = [t.options[name] for t in shown]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    few = len(set(values)) <= 6
    if numbers and not few:
        places = [float(v) for v in values]
        if min(places, default=0) > 0 and max(places) / min(places) > 30:
            axes.set_xscale("log")
    else:  # One column a choice, points side by side.
        choices = sorted(set(values), key=lambda v: (isinstance(v, str), v))
        beside = np.random.default_rng(0).uniform(-0.15, 0.15, len(values))
        places = [choices.index(v) + float(shift) for v, shift in zip(values, beside, strict=True)]
        axes.set_xticks(range(len(choices)), [f"{v:g}" if numbers else str(v) for v in choices])
        axes.set_xlim(-0.5, len(choices) - 0.5)
    axes.scatter(places, [t.valid or 0.0 for t in shown], s=18, color=figures.BLUE, alpha=0.8, linewidth=0)
    for place, trial in zip(places, shown, strict=True):
        if trial.number == best.number:
            axes.scatter([place], [trial.valid or 0.0], s=40, color=figures.ORANGE, linewidth=0, zorder=3)
    _zoom(axes, [t.valid for t in done])
    figures.dress(axes, name, "valid", legend=False)
    return figure


def curves(done: Sequence[Trial], trials: Sequence[Trial]) -> Figure:
    """The valid over the epochs: the best in colours, the others in grey."""
    records = {t.number: _metrics(t) for t in trials}
    leaders = {f"trial {t.number}": records[t.number] for t in done[:CURVES]}
    figure = figures.valid_curves(leaders)
    figure.set_size_inches(7.2, 3.6)
    axes = figure.axes[0]
    scores: list[float | None] = []
    for trial in trials:
        x, y = figures.series(records[trial.number], "valid_nll_per_step")
        scores += y
        if f"trial {trial.number}" not in leaders:
            axes.plot(x, y, color=figures.GREY, alpha=0.4, linewidth=0.8, zorder=1)
    _zoom(axes, scores)
    return figure


def bars(importance: Mapping[str, float]) -> Figure:
    """Importances as bars, the largest on top."""
    figure, axes = figures.small_figure()
    names = list(importance)[::-1]
    axes.barh(names, [importance[name] for name in names], color=figures.BLUE, height=0.6)
    figures.dress(axes, "importance", "", legend=False)
    return figure


def _zoom(axes: Axes, values: Sequence[float | None]) -> None:
    """Leave out above what would squeeze the better half: a diverging trial is not worth the whole page."""
    known = sorted(v for v in values if v is not None and math.isfinite(v))
    if not known:
        return
    low, middle = known[0], known[len(known) // 2]
    top = min(known[-1], middle + 3 * max(middle - low, 1e-3))
    room = 0.06 * max(top - low, 1e-3)
    axes.set_ylim(low - room, top + room)


def _metrics(trial: Trial) -> list[Record]:
    try:
        return Run(trial.folder).metrics
    except RunError:
        return []
