"""Progress on the terminal: bars with rate and remaining time, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

from openvse.training.records import EpochReport, StepReport

console = Console(stderr=True)


def bar() -> Progress:
    """Return a progress bar with a free text field ``note`` at its end."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


@contextmanager
def counted(description: str, unit: str = "images/s") -> Iterator[Callable[[int, int, float], None]]:
    """Show one bar; the function it yields takes (done, total, rate)."""
    with bar() as progress:
        task = progress.add_task(description, total=None, note="")

        def update(done: int, total: int, rate: float) -> None:
            progress.update(task, completed=done, total=total, note=f"{rate:.0f} {unit}")

        yield update


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

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        if self._task is None:
            return
        terms = "  ".join(f"{name} {value:.3g}" for name, value in report.terms.items() if name != "loss")
        note = f"loss {report.terms['loss']:.3f}  {report.images_per_s:.0f} pairs/s"
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
        m = report.metrics
        console.print(
            f"epoch {report.epoch:>3}/{self._num_epochs}  loss {report.loss:8.3f}  validation rsum {m['rsum']:6.1f}  "
            f"i2t R@1 {m['i2t_r1']:5.1f}  t2i R@1 {m['t2i_r1']:5.1f}  {report.seconds:6.0f} s"
            + ("  [bold green]best[/]" if report.best else ""),
            highlight=False,
        )

    def warn(self, message: str) -> None:
        """Print a warning."""
        console.print(f"[yellow]warning:[/] {message}", highlight=False)
