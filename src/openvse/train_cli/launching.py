"""Commands in several processes, as ``torchrun`` starts them on one machine or many, and their progress."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import typer

from openvse.cli import progress as terminal
from openvse.cli.progress import Display, Stopped, describe_stop, note, voice, warn
from openvse.training.records import EpochReport, StepReport

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import SpawnContext

    from openvse.evaluation.ranking import Processes

GRACE_SECONDS = 10.0
"""Seconds that the processes of a stopped command have to end by themselves before they are killed."""


def leads() -> bool:
    """Return whether this process is the only one, or the one of several that talks to the user."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def together(processes: int, device: str) -> Iterator[Processes]:
    """Run this command in several processes, unless it is one of them already, and yield them as this one sees them."""
    launch(processes)
    from openvse.evaluation.ranking import ALONE, Processes

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu")
    try:
        yield Processes(state.process_index, state.num_processes)
    finally:
        leave()


def leave() -> None:
    """End the threads by which this process talks to the others of its command. At its exit they could abort it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState().destroy_process_group()


def launch(processes: int) -> None:
    """Run this command in several processes, and exit with the code of the first process that fails.

    Nothing happens if one process is enough, or if this is one of several already.
    """
    if processes == 1 or "RANK" in os.environ:
        return
    from torch.multiprocessing.spawn import ProcessExitedException, start_processes

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(processes))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # It logs each process that it ends.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    try:
        context = start_processes(_run_as, nprocs=processes, join=False, start_method="spawn")  # type: ignore[no-untyped-call]
        _wait(context)
    except ProcessExitedException as error:
        raise typer.Exit(error.exit_code or 1) from error
    raise typer.Exit


def _wait(context: SpawnContext) -> None:
    """Wait for the processes of a run. If this process is stopped, stop them too."""
    try:
        while not context.join():
            pass
    except KeyboardInterrupt as stop:
        _end(context.processes, at_once=isinstance(stop, Stopped))
        raise typer.Exit(describe_stop(stop)[1]) from stop  # the first process says how to continue


def _end(processes: Sequence[BaseProcess], *, at_once: bool) -> None:
    """End processes: ask first, then kill. A Ctrl-C has reached them already. Other signals have not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid is not None and number is not None:
                os.kill(process.pid, number)
        deadline = time.monotonic() + (0 if number is None and at_once else GRACE_SECONDS)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))


def _run_as(rank: int) -> None:
    """Run the inherited command line in a new process, as the process of this rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    runpy.run_module("openvse", run_name="__main__")


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
