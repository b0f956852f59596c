"""Ctrl-C, SIGTERM and SIGHUP end a command in an orderly way, with a line that is true."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from openvse.cli.progress import Stopped, describe_stop, going_on, stop_behind, stoppable
from openvse.tasks.recipes import load_recipe
from openvse.tasks.run import run_recipe
from openvse.training.records import EpochReport, Silent
from tests.forking import command, forked
from tests.naming import names


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """Kill what a failed test left running."""
    yield
    for process in multiprocessing.active_children():
        process.kill()


def start(heard: Any, error: int | Path, *words: object) -> BaseProcess:
    """Start a command in a process of its own, which takes what SIGHUP does from nohup or from no one."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, heard)
        command(words, error)

    return forked(work, {"TERM": "xterm", "COLUMNS": "80"})


def wait_for(path: Path, process: BaseProcess) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)


def validations(log: Path) -> int:
    """Count the validations in a log; a run that resumes before its first step removes the log and writes it anew."""
    try:
        return log.read_text().count('"validation"')
    except FileNotFoundError:
        return 0


class OneEpoch(Silent):
    """Stops a run after its first epoch."""

    def epoch(self, report: EpochReport) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_goes_on_under_nohup_and_after_a_signal(recipe: Path, tmp_path: Path) -> None:
    """Under nohup SIGHUP is ignored. SIGTERM ends the run: its bars first, so that the line is one of its own."""
    run = tmp_path / "run"
    words = ("train", recipe, "training.phases.0.epochs=4000", "--out", run)
    terminal, end = os.openpty()
    process = start(signal.SIG_IGN, end, *words)
    os.close(end)
    told, signals = b"", {b"epoch   2/": signal.SIGHUP, b"epoch   4/": signal.SIGTERM}
    with suppress(OSError):  # the other end is closed
        while block := os.read(terminal, 1 << 16):
            told += block
            for epoch in [epoch for epoch in signals if epoch in told]:
                os.kill(process.pid or 0, signals.pop(epoch))
    os.close(terminal)
    process.join(60)
    assert process.exitcode == 143, told
    drawn, _, line = told.decode().replace("\r", "").rpartition("openvse: ")
    assert names(line, "SIGTERM", "--resume") and line.count("\n") == 1
    assert drawn.endswith(("\n", "\x1b[?25h"))  # a line of its own, and the cursor is back
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1
    assert not list(run.rglob("*.partial"))
    epochs = validations(run / "metrics.jsonl")
    assert epochs >= 3
    with pytest.raises(KeyboardInterrupt):
        run_recipe(load_recipe(run / "recipe.yaml"), run, resume=True, watcher=OneEpoch())
    assert validations(run / "metrics.jsonl") >= epochs


@pytest.mark.slow
def test_the_processes_of_a_run_end_together(recipe: Path, tmp_path: Path) -> None:
    words = ("train", recipe, "training.phases.0.epochs=4000", "--out", tmp_path / "run", "--processes", "2")
    process = start(signal.SIG_DFL, tmp_path / "told", *words)
    wait_for(tmp_path / "run" / "last.pt", process)
    process.terminate()
    process.join(90)
    assert process.exitcode == 143
    told = (tmp_path / "told").read_text()
    assert told.count("openvse: ") == 1 and names(told, "SIGTERM", "--resume")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_handlers_are_those_from_before_at_the_end(number: signal.Signals, status: int) -> None:
    outside = signal.signal(number, signal.SIG_DFL)  # nohup would have it ignored
    try:
        with pytest.raises(Stopped) as stop, stoppable(), going_on("call again"):
            os.kill(os.getpid(), number)
        assert describe_stop(stop.value) == (f"interrupted by {number.name}: call again", status)
        assert describe_stop(KeyboardInterrupt()) == ("interrupted: run the command again", 130)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_a_stop_while_a_library_writes_is_a_stop() -> None:
    with pytest.raises(RuntimeError) as error, going_on("call again"):
        try:
            raise Stopped(signal.SIGTERM)
        finally:
            raise RuntimeError("unexpected position in an archive")
    stop = stop_behind(error.value)
    assert stop is not None and describe_stop(stop) == ("interrupted by SIGTERM: call again", 143)
    assert stop_behind(ValueError()) is None


def test_a_forked_process_ends_at_once() -> None:
    ready, child_is_ready = os.pipe()
    with stoppable():
        child = os.fork()
        if child == 0:
            try:
                os.write(child_is_ready, b"!")
                time.sleep(30)
            finally:
                os._exit(1)  # not reached: the signal ends it before
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.close(ready)
    os.close(child_is_ready)
