"""Progress, notes, warnings and the end by a signal, on standard error. Standard output only has results."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from openvse.errors import IN_PYTHON
from openvse.files import stops_handled
from openvse.media.names import escaped
from openvse.pipeline import SKIPPED


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end. Code that handles a Ctrl-C handles this too."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise ``Stopped`` while the block runs. For SIGINT Python raises KeyboardInterrupt.

    A signal that the process ignored from its start (``nohup``) stays ignored. Processes that are forked inside the
    block, such as the workers of a data loader, end at once, as they would without it.
    """
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Stopped(number)

    with stops_handled(stop, lambda handler: handler == signal.SIG_DFL):
        yield


@contextmanager
def going_on(how: str) -> Iterator[None]:
    """Tell the user after "interrupted: " how to continue when the block is stopped, and which work is kept."""
    try:
        yield
    except BaseException as error:
        if (stop := stop_behind(error)) is not None:
            stop.add_note(how)
        raise


def stop_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the stop that caused an error, if any. A library that is stopped while it writes raises its own error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def describe_stop(stop: KeyboardInterrupt) -> tuple[str, int]:
    """Return the last line of a stopped command, and its exit status: 128 + the number of the signal."""
    number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    notes = getattr(stop, "__notes__", ["run the command again"])
    return f"interrupted{by}: {notes[0]}", 128 + number


console = Console(stderr=True)

_SKIPPED_SHOWN = 5  # items that cannot be used and are named one by one

FIRST_S, SHORTEST_S, LONGEST_S = 5.0, 10.0, 60.0
"""Output without bars: seconds before the first line, and the shortest and longest time between two lines."""

WORTH_A_LINE_S = 1.0
"""Output without bars: work that takes at least so many seconds gets a line at its end."""


@dataclass
class Voice:
    """The options before a command, all commands, and the warnings so far, with few of those on skipped items."""

    quiet: bool = False
    verbose: bool = False
    allow_outside: bool = False
    plugins: tuple[Path, ...] = ()
    commands: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    skipped: int = 0

    def reset(self) -> None:
        """Print everything again, and forget the warnings."""
        self.__init__()  # type: ignore[misc]


voice = Voice()
"""The settings of the command that runs."""


def copyable(text: str) -> str:
    """Return a text as the command line prints it: without Python's names and odd characters, and with the plug-ins."""
    text = "\n".join(map(escaped, IN_PYTHON.sub("", text).split("\n")))
    plugins = "".join(f" --plugin {shlex.quote(str(path))}" for path in voice.plugins)
    names = "|".join(map(re.escape, voice.commands))
    return re.sub(rf"\bopenvse(?= ({names})\b)", lambda _: f"openvse{plugins}", text) if plugins else text


def warn(message: str) -> None:
    """Print a warning as one line, without reading brackets in the message as markup."""
    voice.warnings.append(message)
    console.print(Text.assemble(("warning: ", "yellow"), copyable(message)), soft_wrap=True)


class Warnings(logging.Handler):
    """Prints the warnings that the library logs, a repeated message once. Of skipped items it prints the first ones.

    A count covers the other skipped items. Messages below a warning are details.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        message = " ".join(record.getMessage().split())
        if record.levelno < logging.WARNING:
            detail(message)
            return
        if message in voice.warnings:
            return
        voice.skipped += record.msg == SKIPPED
        if record.msg == SKIPPED and voice.skipped > _SKIPPED_SHOWN:
            voice.warnings.append(message)
        else:
            warn(message)

    def close(self) -> None:
        """Print the number of further skipped items."""
        if (more := voice.skipped - _SKIPPED_SHOWN) > 0:
            warn(f"skipped {more:,} more that cannot be used")
        super().close()


def note(message: str) -> None:
    """Print a line that is not a result, such as the place of a written file. ``--quiet`` hides it."""
    if not voice.quiet:
        console.print(Text(copyable(message)), soft_wrap=True)


def detail(message: str) -> None:
    """Print a line that only ``--verbose`` shows, such as the method of a computation."""
    if voice.verbose:
        console.print(Text(message), soft_wrap=True)


class Display(AbstractContextManager["Display"]):
    """A display of progress, and a context manager that ends it. This one shows nothing."""

    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        """Show the progress of a piece of work. The title, such as the epoch, replaces its name."""

    def __exit__(self, *_: object) -> None:
        """Show the progress for the last time."""


class Bars(Display):
    """A bar for each piece of work, on terminals of 80 columns or more. The display starts with the first bar."""

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
        """Move the bar of the work. The first call draws it."""
        known = work in self._tasks
        if not known:
            self._tasks[work] = self.progress.add_task(work, total=total, count="", left="", note="")
        task = self.progress.tasks[[*self._tasks].index(work)]
        self.progress.update(task.id, completed=done, total=total, description=title or work, note=note)
        remaining = None if task.finished else task.time_remaining
        left = "" if remaining is None else f"{_clock(float(remaining))} left"
        self.progress.update(task.id, count=_count(done, total), left=left)
        if not known:
            self.progress.start()

    def __exit__(self, *_: object) -> None:
        if self._tasks:
            self.progress.stop()


@dataclass
class _Work:
    """The state of a piece of work that is shown in lines: times in seconds, and its last line."""

    began: float  # when the work before it ended
    heard: float  # the first report, at which done_before items were done
    done_before: int
    speaks_at: float
    line: str = ""
    printed: bool = False
    ended: bool = False


class Lines(Display):
    """Lines at growing intervals for each piece of work, and one at its end, for log files and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._works: dict[str, _Work] = {}

    def show(self, work: str, done: int, total: int | None, *, note: str = "", title: str = "") -> None:
        now, finished = self._clock(), total is not None and done >= total
        state = self._works.get(work)
        if state is None or (state.ended and not finished):  # the same work may begin again
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
        state.printed = finished and now - state.began < WORTH_A_LINE_S
        if not state.printed and (finished or now >= state.speaks_at):
            self._say(state)
            state.speaks_at = now + min(LONGEST_S, max(SHORTEST_S, passed / 6))

    def __exit__(self, *_: object) -> None:
        """Print the last state of each piece of work whose last line is not printed yet."""
        for state in self._works.values():
            if not state.printed:
                self._say(state)

    def _say(self, state: _Work) -> None:
        state.printed = True
        console.print(Text(state.line), soft_wrap=True)


def bar(shown: bool = True) -> Display:
    """Return the display: bars on a terminal, lines in a pipe, or nothing with ``--quiet``."""
    if not shown or voice.quiet:
        return Display()
    return Bars() if console.is_terminal and not console.is_dumb_terminal else Lines()


def counted(progress: Display, description: str, unit: str = "images") -> Callable[[int, int | None, float], None]:
    """Return a function that shows (items done, items in all or None, items per second)."""

    def show(done: int, total: int | None, rate: float) -> None:
        progress.show(description, done, total, note=f"{rate:,.0f} {unit}/s" if rate else "")

    return show


def _count(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


def _clock(seconds: float) -> str:
    """Return hours, minutes and seconds, such as 0:05:12."""
    return str(timedelta(seconds=round(seconds)))
