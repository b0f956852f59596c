"""The progress of a training run on the terminal."""

from __future__ import annotations

from openvse.cli import progress as terminal
from openvse.cli.progress import Display, note, voice, warn
from openvse.training.records import EpochReport, StepReport

ROOM_FOR_TERMS = 110
"""Number of columns that a bar needs to show the terms of the loss."""


class TrainingBar:
    """A Watcher that shows the progress of the whole run and prints a line for every epoch."""

    def __init__(self, progress: Display) -> None:
        self._progress = progress
        self._total_steps = self._num_epochs = 0

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Show the number of finished steps."""
        self._total_steps, self._num_epochs = total_steps, num_epochs
        self._progress.show("training", done_steps, total_steps)

    def step(self, report: StepReport) -> None:
        """Show the step and its loss."""
        note = f"loss {_short(report.terms['loss'])}, {report.images_per_s:,.0f} {report.unit}/s"
        if len(report.terms) > 2 and terminal.console.width >= ROOM_FOR_TERMS:
            terms = (f"{name} {value:.3g}" for name, value in report.terms.items() if name != "loss")
            note += f" ({', '.join(terms)})"
        title = f"epoch {report.epoch}/{self._num_epochs}"
        self._progress.show("training", report.global_step, self._total_steps, note=note, title=title)

    def epoch(self, report: EpochReport) -> None:
        """Print the line of the epoch, which fits 80 columns."""
        if voice.quiet:
            return
        terminal.console.print(
            f"epoch {report.epoch:>3}/{self._num_epochs}  loss {_short(report.loss):>6}  {report.summary}"
            + ("  [bold green]best[/]" if report.best else ""),
            highlight=False,
            soft_wrap=True,
        )

    def warn(self, message: str) -> None:
        """Print a warning."""
        warn(message)

    def note(self, message: str) -> None:
        """Print a line."""
        note(message)


def _short(loss: float) -> str:
    """Return a loss with four digits: 0.1234, 12.35, 456.8, 1.235e+04."""
    return f"{loss:.4g}" if abs(loss) >= 1e4 or abs(loss) < 1e-3 else f"{loss:#.4g}".rstrip(".")
