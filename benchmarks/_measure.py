"""How every benchmark measures: interleaved medians, peak memory in a process of its own, Markdown tables."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

InputT = TypeVar("InputT")

_STATUS = Path("/proc/self/status")


def median_times(
    functions: Sequence[Callable[[], object]], repeats: int = 11, warmup: int = 2, rest: float = 0.0
) -> list[float]:
    """Return the median seconds of each function.

    The functions take turns, so that a slow moment of the machine falls on all of them.

    Args:
        functions: what to time, each without arguments.
        repeats: timed rounds.
        warmup: rounds before them that are not counted.
        rest: seconds before each, in which the threads of the one before stop waiting for more work.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for turn in range(warmup + repeats):
        for function, times in zip(functions, seconds, strict=True):
            time.sleep(rest)
            started = time.perf_counter()
            function()
            if turn >= warmup:
                times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in seconds]


def median_time(function: Callable[[], object], repeats: int = 11, warmup: int = 2) -> float:
    """Return the median seconds of one function."""
    return median_times([function], repeats, warmup)[0]


def peak_memory(function: Callable[[InputT], object], prepare: Callable[[], InputT]) -> int:
    """Return the bytes that ``function(prepare())`` needs at its peak, beyond what was there before it ran.

    Both run in a fresh process, so neither imports nor earlier measurements count; what ``prepare`` makes
    does not count either. Linux only (it reads the kernel's high-water mark of resident memory).

    Args:
        function: the measured work: a function of a module or a functools.partial of one, since it is sent.
        prepare: makes its input, in the same process, unmeasured.

    Raises:
        RuntimeError: the process ended without an answer.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_peak, args=(function, prepare, sender))
    process.start()
    sender.close()
    try:
        return int(receiver.recv())
    except EOFError as error:
        raise RuntimeError("the measured process failed; its traceback is above") from error
    finally:
        process.join()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats are shown with three significant digits."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def environment() -> str:
    """Return one line that says what the numbers were measured on."""
    import torch

    threads = torch.get_num_threads()
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores, {threads} thread{'s' if threads > 1 else ''}"
    )


def _measure_peak(function: Callable[[InputT], object], prepare: Callable[[], InputT], sender: Connection) -> None:
    prepared = prepare()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from now
    before = _status_bytes("VmRSS")
    function(prepared)
    sender.send(max(0, _status_bytes("VmHWM") - before))


def _status_bytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
