"""What a training shows: a bar on a terminal, a line an epoch in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from fastdropout.errors import visible
from fastdropout.music.cli.output import output

if TYPE_CHECKING:
    from fastdropout.music.training.fitting import Progress as Step


class _Console(Console):
    """Shows text as it is: names of files and pieces are no markup and give the terminal no orders."""

    def render_str(self, text: str, **options: Any) -> Text:
        options |= {"emoji": False, "markup": False, "highlight": False}
        return super().render_str(visible(text), **options)


console = _Console(file=cast(IO[str], output), soft_wrap=True)


def _words(template: str) -> TextColumn:
    return TextColumn(template, markup=False)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for reading a corpus, that appears when there is something to count."""
    bar = Progress(
        _words("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(visible(what), total=None, visible=False)

    def count(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total or None, visible=True)

    with bar:
        yield count


@contextmanager
def share() -> Iterator[Callable[[float, str], None]]:
    """A bar for a share that is done, with what is being done; in a log, a line when that changes."""
    bar = Progress(
        BarColumn(),
        _words("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        _words("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=1.0)
    before = ""

    def tell(done: float, text: str) -> None:
        nonlocal before
        bar.update(task, completed=done, description=text)
        title = text.split(":")[0]
        if title != before and not console.is_terminal:
            console.print(f"{done:.0%}  {title}")
        before = title

    with bar:
        yield tell


class Clock:
    """The time left if work goes on as fast as since the first look: what was done before took no time."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.before: float | None = None

    def left(self, done: float, total: float) -> str:
        """As h:mm:ss, where `done` of `total` is done now."""
        if self.before is None:
            self.before = done
        if done <= self.before:
            return "?"
        seconds = round((time.monotonic() - self.begin) / (done - self.before) * (total - done))
        hours, rest = divmod(seconds, 3600)
        return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class TrainingScreen:
    """Follows a training: call it with each step."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.valid, self.best = epochs, float("nan"), float("inf")
        self.clock = Clock()
        self.bar = Progress(
            _words("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            _words("train {task.fields[train]}  valid {task.fields[valid]}"),
            _words("{task.fields[speed]:,.0f} frames/s"),
            _words("{task.fields[left]} left"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(
            "train", total=1.0, epoch=0, epochs=epochs, train="–", valid="–", speed=0.0, left="?"
        )

    def __enter__(self) -> TrainingScreen:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def __call__(self, step: Step) -> None:
        """Show a step."""
        done = (step.epoch - 1 + step.update / max(step.updates, 1)) / self.epochs
        if step.record is not None and step.record.valid_nll_per_step is not None:
            self.valid = step.record.valid_nll_per_step
            self.best = min(self.best, self.valid)
        left = self.clock.left(done, 1.0)
        self.bar.update(
            self.task,
            completed=done,
            epoch=step.epoch,
            train=_number(step.nll_per_step),
            valid=_number(self.valid),
            speed=step.frames_per_second,
            left=left,
        )
        if step.record is not None and not console.is_terminal:
            better = " best" if step.record.best else ""
            train, valid = _number(step.nll_per_step), _number(self.valid)
            console.print(
                f"epoch {step.epoch}/{self.epochs}  train {train}  valid {valid}{better}"
                f"  {step.frames_per_second:,.0f} frames/s  {left} left"
            )


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
