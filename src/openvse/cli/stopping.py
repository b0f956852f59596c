"""Signals that stop a command: Ctrl-C, SIGTERM and SIGHUP all end it in the same orderly way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from openvse.files import stops_handled


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
