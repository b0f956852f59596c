"""What is said on standard error: progress, notes and warnings. Standard output carries results alone."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from openvse.training.records import EpochReport, StepReport

console = Console(stderr=True)

FIRST_S, SHORTEST_S, LONGEST_S = 5.0, 10.0, 60.0
"""Seconds before the first line of progress, and the least and the most between two lines, where no bar is drawn."""

WORTH_A_LINE_S = 1.0
"""Seconds from which on the end of a piece of work is said there."""

ROOM_FOR_TERMS = 110
"""Columns from which on a bar has room for the terms of the loss."""


@dataclass
class Voice:
    """How a command speaks.

    Attributes:
        quiet: neither progress nor notes; warnings and errors stay.
        warnings: what it has warned of so far.
    """

    quiet: bool = False
    warnings: list[str] = field(default_factory=list)

    def reset(self) -> None:
        """Speak, and forget the warnings."""
        self.quiet, self.warnings = False, []


voice = Voice()
"""Of the command that runs."""


def warn(message: str) -> None:
    """Print a warning in one line; brackets in it are text, not colours."""
    voice.warnings.append(message)
    console.print(Text.assemble(("warning: ", "yellow"), message), soft_wrap=True)


class Warnings(logging.Handler):
    """Prints what the library logs as warnings; what two parts of a command log alike, once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if (message := " ".join(record.getMessage().split())) not in voice.warnings:
            warn(message)


def note(message: str) -> None:
    """Print a line that is no result, such as where something was written; ``--quiet`` drops it."""
    if not voice.quiet:
        console.print(Text(message), soft_wrap=True)


class Display(ABC):
    """Where progress is shown; a context that ends the display."""

    @abstractmethod
    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        """Show how far a piece of work has come.

        Args:
            work: its name.
            done: how much is done.
            total: of how much, if that is known.
            note: a rate and the like.
            title: what it says in place of the name for now, such as the epoch.
        """

    def __enter__(self) -> Display:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display."""
        self.end()

    @abstractmethod
    def end(self) -> None:
        """Show things for the last time."""


class Nothing(Display):
    """Shows nothing."""

    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


class Bars(Display):
    """A bar for each piece of work, for terminals of 80 columns and more; nothing before there is one."""

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}"),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        """Move the bar of the work, which its first call draws."""
        known = work in self._tasks
        if not known:
            self._tasks[work] = self.progress.add_task(work, total=total, count="", left="", note="")
        task = self.progress.tasks[[*self._tasks].index(work)]
        self.progress.update(task.id, completed=done, total=total, description=title or work, note=note)
        left = (
            ""
            if task.time_remaining is None or task.finished
            else f"{_clock(float(task.time_remaining))} left"
        )
        self.progress.update(task.id, count=_count(done, total), left=left)
        if not known:
            self.progress.start()

    def end(self) -> None:
        """Draw for the last time."""
        if self._tasks:
            self.progress.stop()


@dataclass
class _Work:
    """A piece of work in lines.

    Attributes:
        began: when the work before it had ended.
        heard: when it was first heard of.
        done_before: how much was done then.
        speaks_at: when its next line is due.
        line: what it would say now.
        said: whether it has said that.
        ended: whether all of it is done.
    """

    began: float
    heard: float
    done_before: int
    speaks_at: float
    line: str = ""
    said: bool = False
    ended: bool = False


class Lines(Display):
    """A line at growing intervals for each piece of work, and one at its end: for log files and pipes.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._works: dict[str, _Work] = {}

    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        """Print a line, if it is time for one or the work is done."""
        now, finished = self._clock(), total is not None and done >= total
        state = self._works.get(work)
        if state is None or (state.ended and not finished):  # the same work may begin anew
            state = self._works[work] = _Work(self._idle_since, now, done, now + FIRST_S)
        elif state.ended:
            return
        passed, gained = now - state.heard, done - state.done_before
        parts = [f"{title or work}: {_count(done, total)}", note]
        if finished:
            parts.append(f"took {_clock(now - state.began)}")
            self._idle_since = now
        elif total is not None and gained > 0:
            parts.append(f"{_clock((total - done) * passed / gained)} left")
        state.line, state.ended = ", ".join(filter(None, parts)), finished
        state.said = finished and now - state.began < WORTH_A_LINE_S
        if not state.said and (finished or now >= state.speaks_at):
            self._say(state)
            state.speaks_at = now + min(LONGEST_S, max(SHORTEST_S, passed / 6))

    def end(self) -> None:
        """Say how far each piece of work came that nobody has heard the end of."""
        for state in self._works.values():
            if not state.said:
                self._say(state)

    def _say(self, state: _Work) -> None:
        state.said = True
        console.print(Text(state.line), soft_wrap=True)


def bar(shown: bool = True) -> Display:
    """Return what shows progress: bars on a terminal, lines in a pipe, nothing for ``--quiet``."""
    if not shown or voice.quiet:
        return Nothing()
    return Bars() if console.is_terminal and not console.is_dumb_terminal else Lines()


def counted(
    progress: Display, description: str, unit: str = "images"
) -> Callable[[int, int | None, float], None]:
    """Return a function of (done, total if known, items/s) that shows them."""

    def show(done: int, total: int | None, rate: float) -> None:
        progress.show(description, done, total, note=f"{rate:,.0f} {unit}/s" if rate else "")

    return show


class TrainingBar:
    """A Watcher that shows the progress of the whole run and prints a line an epoch."""

    def __init__(self, progress: Display) -> None:
        self._progress = progress
        self._total_steps = self._num_epochs = 0

    def started(self, *, total_steps: int, done_steps: int, num_epochs: int) -> None:
        """Show where the run stands."""
        self._total_steps, self._num_epochs = total_steps, num_epochs
        self._progress.show("training", done_steps, total_steps)

    def step(self, report: StepReport) -> None:
        """Show the step and its loss."""
        note = f"loss {_short(report.terms['loss'])}, {report.images_per_s:,.0f} {report.unit}/s"
        if len(report.terms) > 2 and console.width >= ROOM_FOR_TERMS:
            terms = (f"{name} {value:.3g}" for name, value in report.terms.items() if name != "loss")
            note += f" ({', '.join(terms)})"
        title = f"epoch {report.epoch}/{self._num_epochs}"
        self._progress.show("training", report.global_step, self._total_steps, note=note, title=title)

    def epoch(self, report: EpochReport) -> None:
        """Print the epoch's line, which 80 columns hold."""
        if voice.quiet:
            return
        console.print(
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


def _count(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


def _clock(seconds: float) -> str:
    """Return hours, minutes and seconds, such as 0:05:12."""
    return str(timedelta(seconds=round(seconds)))


def _short(loss: float) -> str:
    """Return four digits of a loss: 0.1234, 12.35, 456.8, 1.235e+04."""
    return f"{loss:.4g}" if abs(loss) >= 1e4 or abs(loss) < 1e-3 else f"{loss:#.4g}".rstrip(".")
