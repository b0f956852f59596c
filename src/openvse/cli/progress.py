"""Progress on the terminal: bars with rate and remaining time, on standard error."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from openvse.training.records import EpochReport, StepReport

console = Console(stderr=True)


def warn(message: str) -> None:
    """Print a warning in one line; brackets in it are text, not colours."""
    console.print(Text.assemble(("warning: ", "yellow"), message), soft_wrap=True)


class Bars(Progress):
    """Progress bars that draw and print nothing before the first of them is there."""

    def start(self) -> None:
        """Begin to draw, if there is something to draw."""
        if self.tasks:
            super().start()

    def stop(self) -> None:
        """Draw for the last time."""
        if self.tasks:
            super().stop()


def bar(shown: bool = True) -> Progress:
    """Return a display of progress bars, each with a free text field ``note`` at its end."""
    return Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not shown,
    )


def counted(
    progress: Progress, description: str, unit: str = "images"
) -> Callable[[int, int | None, float], None]:
    """Return a function of (done, total if known, units a second) that shows them as a bar, drawn at its first call."""
    tasks: list[TaskID] = []

    def show(done: int, total: int | None, rate: float) -> None:
        if not tasks:
            tasks.append(progress.add_task(description, total=total, note=""))
            progress.start()
        progress.update(tasks[0], completed=done, total=total, note=f"{rate:.0f} {unit}/s")

    return show


class TrainingBar:
    """A Watcher that draws one bar over the whole run and prints a line an epoch."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._num_epochs = 0

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Draw the bar."""
        self._num_epochs = num_epochs
        self._task = self._progress.add_task("training", total=total_steps, completed=done_steps, note="")
        self._progress.start()

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        if self._task is None:
            return
        terms = "  ".join(f"{name} {value:.3g}" for name, value in report.terms.items() if name != "loss")
        note = f"loss {report.terms['loss']:.3f}  {report.images_per_s:.0f} {report.unit}/s"
        if len(report.terms) > 2:
            note += f"  ({terms})"
        self._progress.update(
            self._task,
            completed=report.global_step,
            description=f"epoch {report.epoch}/{self._num_epochs}",
            note=note,
        )

    def epoch(self, report: EpochReport) -> None:
        """Print the epoch's line."""
        console.print(
            f"epoch {report.epoch:>3}/{self._num_epochs}  loss {report.loss:8.3f}  validation: {report.summary}"
            + ("  [bold green]best[/]" if report.best else ""),
            highlight=False,
            soft_wrap=True,
        )

    def warn(self, message: str) -> None:
        """Print a warning."""
        warn(message)

    def note(self, message: str) -> None:
        """Print a line."""
        console.print(Text(message), soft_wrap=True)
