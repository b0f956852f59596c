"""Commands in several processes on one machine, as ``torchrun`` starts them on one machine or many."""

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

from openvse.cli.progress import Stopped, describe_stop

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
