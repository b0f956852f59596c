"""Processes that know what this one has imported: a new Python would take seconds to import PyTorch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from accelerate.state import AcceleratorState
from typer.testing import CliRunner


def forked(work: Callable[[], object], environment: Mapping[str, str] | None = None) -> BaseProcess:
    """Start a function in a forked process, where nothing knows yet whether it is one of several."""

    def begin() -> None:
        os.environ.update(environment or {})
        AcceleratorState._reset_state(reset_partial_state=True)
        work()

    process = multiprocessing.get_context("fork").Process(target=begin)
    process.start()
    return process


def command(words: Sequence[object], error: int | Path) -> None:
    """Run openvse as ``main`` does, without standard output; standard error goes to a file, by number or path."""
    from openvse.cli import main

    sys.argv = ["openvse", *map(str, words)]
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - they stay open to the end of the process
    target = error if isinstance(error, int) else os.open(error, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(target, 2)
    sys.stderr = os.fdopen(2, "w")
    main()


def side_by_side(folder: Path, count: int, *words: object) -> list[str]:
    """Run a command in some processes, as torchrun starts them; return what each prints."""
    from openvse.cli.app import app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

    def work(rank: int) -> None:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        (folder / f"printed_{rank}").write_text(done.stdout)

    processes = [
        forked(
            lambda rank=rank: work(rank),  # type: ignore[misc]
            {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
        )
        for rank in range(count)
    ]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * count
    return [(folder / f"printed_{rank}").read_text() for rank in range(count)]
