"""The pipeline: batches that are decoded ahead, parts in their order, and what workers are told."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse import pipeline
from openvse.errors import BadImageError, OpenVSEError, RecipeError
from openvse.pipeline import Pace, Workers, WorkProgress, decoded, in_batches, read_ahead, remaining, results_in_order
from tests.forking import forked
from tests.naming import names, refusal
from tests.pickled_work import pickled_work


class Reader:
    """Reads a number as its square; notes what was read, and refuses some."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.reads, self._lock = bad, list[int](), threading.Lock()

    def __call__(self, number: int) -> int:
        with self._lock:
            self.reads.append(number)
        if number in self.bad:
            raise BadImageError(f"{number}: it is odd")
        return number * number


@pytest.mark.parametrize(("threads", "device"), [(0, "cpu"), (1, "cpu"), (4, "cpu"), (2, "cuda")])
def test_batches_keep_their_order_and_bad_items_leave_a_gap(threads: int, device: str) -> None:
    read = Reader(3, 6, 7, 8)
    batches = list(decoded(in_batches(range(10), 3), read, str, threads=threads, device=device))
    assert [batch.items for batch in batches] == [[0, 1, 2], [4, 5], [], [9]]
    assert [batch.values for batch in batches] == [[0, 1, 4], [16, 25], [], [81]]
    failed = [each for batch in batches for each in batch.failed]
    assert failed == [(number, "it is odd") for number in (3, 6, 7, 8)]
    assert sorted(read.reads) == ([] if device == "cuda" else list(range(10))), "each once, for a GPU in processes"


def test_reading_runs_ahead_but_not_away() -> None:
    read = Reader()
    batches = decoded(in_batches(range(100), 5), read, str, threads=2)
    for number, _ in enumerate(batches, start=1):
        deadline = time.monotonic() + 10
        while len(read.reads) < min(100, 5 * (number + 2)) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(read.reads) == min(100, 5 * (number + 2))


def test_what_is_read_ahead_is_whole_or_an_error() -> None:
    read, before = Reader(8), {*threading.enumerate()}
    parts = read_ahead(range(10), read, 3)
    assert [next(parts), next(parts)] == [[0, 1, 4], [9, 16, 25]]
    assert names(refusal(BadImageError, next, parts), 8)
    assert read.reads[:3] and {*threading.enumerate()} <= before, "the threads have ended"


def test_what_processes_read_is_the_same_to_the_bit() -> None:
    """The last array has no room in the memory that they share."""
    sizes = (0, 3, 1 << 20, pipeline._SHARED)

    def read(size: int) -> tuple[str, torch.Tensor, np.ndarray]:
        return "a", torch.arange(size, dtype=torch.uint8), np.arange(size, dtype=np.uint8)[::2]

    batches = decoded(in_batches(sizes, 2), read, str, threads=2, device="cuda")
    for size, (text, tensor, array) in zip(sizes, [value for batch in batches for value in batch.values], strict=True):
        expected = read(size)
        assert text == "a" and torch.equal(tensor, expected[1]) and (array == expected[2]).all()
        assert array.flags.writeable
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_named() -> None:
    def read(number: int) -> int:
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RecipeError("given") if number == 9 else BadImageError(f"{number}: bad")

    batches = decoded([[1], [5]], read, str, threads=1, device="cuda")
    assert next(batches).failed == [(1, "bad")]
    process = multiprocessing.active_children()[0].pid
    assert names(refusal(OpenVSEError, next, batches), process, "signal 9 (SIGKILL)", "memory", "taskset")
    assert names(refusal(RecipeError, next, decoded([[9]], read, str, threads=1, device="cuda")), "given")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_asks(end: signal.Signals, tmp_path: Path) -> None:
    def work() -> None:
        os.setsid(), signal.signal(signal.SIGINT, signal.default_int_handler)
        batches = decoded([[1, 2], [3, 4]], lambda _: time.sleep(0.1), str, threads=2, device="cuda")
        next(batches)
        running = [each.pid for each in multiprocessing.active_children()]
        (tmp_path / "new").write_text(" ".join(map(str, running)))
        (tmp_path / "new").rename(tmp_path / "running")
        time.sleep(60)

    parent = forked(work)
    while not (tmp_path / "running").exists():
        time.sleep(0.01)
    os.killpg(parent.pid, end) if end == signal.SIGINT else os.kill(parent.pid, end)
    parent.join(10)
    assert parent.exitcode
    left = [Path(f"/proc/{each}/exe") for each in (tmp_path / "running").read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(Path.exists, left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(left) == 2 and not any(map(Path.exists, left))


def test_other_errors_are_raised_and_end_the_reading() -> None:
    def read(number: int) -> int:
        if number == 4:
            raise KeyboardInterrupt
        return number

    batches = decoded(in_batches(range(100), 2), read, str)
    assert next(batches).values == [0, 1] and next(batches).values == [2, 3]
    refusal(KeyboardInterrupt, next, batches)


@pytest.mark.parametrize(
    ("done", "expected"), [("", "abcdefg"), ("ac", "efgbd"), ("bde", "gacf"), ("abcdef", "g"), ("abcdefg", "")]
)
def test_what_could_not_be_used_comes_last(done: str, expected: str) -> None:
    assert "".join(remaining("abcdefg", done.__contains__, 2)) == expected


def double() -> Callable[[Sequence[int]], list[int]]:
    return lambda part: [2 * item for item in part]


def test_results_come_in_order_whoever_makes_them(monkeypatch) -> None:
    pickled_work(monkeypatch)
    parts = [*in_batches(range(7), 2)]
    assert list(results_in_order(parts, double, Workers(2))) == [[0, 2], [4, 6], [8, 10], [12]]
    assert list(results_in_order([], double, Workers(2))) == []


def test_the_pace_counts_what_is_new(monkeypatch) -> None:
    told: list[WorkProgress] = []
    pace = Pace(10, told.append, before=4, unit="texts")
    pace.tell()
    pace.tell(1)
    pace.add(3)
    assert [(state.done, state.total, state.unit) for state in told] == [
        (4, 10, "texts"),
        (5, 10, "texts"),
        (7, 10, "texts"),
    ]
    assert told[0].per_s == 0 and told[2].per_s > 0
    kept: list[int] = []
    pace.keep(lambda: kept.append(1))
    monkeypatch.setattr(pipeline, "KEEP_SECONDS", 0.0)
    pace.keep(lambda: kept.append(2))
    assert kept == [2]


PLUGIN = """
import os
import signal
from pathlib import Path

from openvse.tokenization.vocabulary import WORD_SPLITTERS, WordsSplitter

class MyWords(WordsSplitter):
    pass

WORD_SPLITTERS.add("my_words", MyWords)

def work(part):
    died = Path("died")
    if 2 in part and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [WORD_SPLITTERS.get("my_words").__name__, *part]

def task():
    return work
"""

SHARING = """
import signal
from pathlib import Path
from openvse.registry import load_plugin
from openvse.pipeline import Workers, results_in_order, start_workers

load_plugin(Path("my_parts.py"))
import openvse_plugin_my_parts as my_parts

before = signal.getsignal(signal.SIGTERM)
start_workers(2)
assert signal.getsignal(signal.SIGTERM) == before, "Ray has set its own"
results = list(results_in_order([[1], [2], [3]], my_parts.task, Workers(2)))
Path("results").write_text(str(results))
"""


@pytest.mark.slow
def test_workers_know_plugins_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    """The one test with processes of Ray; work that a plug-in defines cannot even be unpickled without it."""
    (tmp_path / "my_parts.py").write_text(PLUGIN)
    (tmp_path / "elsewhere.py").write_text(SHARING)
    done = subprocess.run(
        [sys.executable, "-P", "elsewhere.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Not on standard output, where Ray may say at any time that a worker has died.
    assert (tmp_path / "results").read_text() == "[['MyWords', 1], ['MyWords', 2], ['MyWords', 3]]"
    assert (tmp_path / "died").exists()


def test_a_worker_loads_each_plugin_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counted.py").write_text("loads = open('loads', 'a')\nloads.write('x')\nloads.close()\n")
    do = pickle.dumps(double)
    task = {"task": pickle.dumps((1, 2))}
    for _ in range(2):
        worker = pipeline._Worker(do, 1, str(tmp_path), [tmp_path / "counted.py"])
        assert pickle.loads(worker(task)["result"]) == [2, 4]
    assert (tmp_path / "loads").read_text() == "x"
    worker = pipeline._Worker(do, 1, str(tmp_path), [tmp_path / "missing.py"])
    kind, line = pickle.loads(worker(task)["raised"])
    assert kind is OpenVSEError and "missing.py" in line
