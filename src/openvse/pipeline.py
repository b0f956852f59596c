"""From a list of items to kept results: decoded ahead, by this process or by many.

``decoded`` reads the items of the next batches in threads while the caller computes with the present one. If it
computes on a GPU, each thread lets a process of its own read (``Readers``), since threads share Python's lock.
``results_in_order`` lets ``Workers`` make the results of parts of a list.
``Pace`` reports the progress and decides when to keep the results. ``extract`` and ``index`` consist of these. Each
defines its own kept results.
"""

from __future__ import annotations

import copyreg
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from mmap import mmap
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar, cast

from openvse.errors import BadImageError, DiskError, OpenVSEError, importing, message_of
from openvse.halves import missing_package, training_module
from openvse.media.names import escaped
from openvse.registry import load_plugin, loaded_plugins

_logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Value = TypeVar("Value")
Result = TypeVar("Result")
Task = TypeVar("Task")

KEEP_SECONDS = 5.0
"""The results of a run are kept at least so often, so that a kill costs no more work than this."""

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DECODERS = min(8, max(2, _CORES))
"""The default number of decoding threads."""

_MOST_READERS = 16
_AT_ONCE = 8  # items of which a thread or process is asked, as each question takes time
_SHARED = 1 << 24  # bytes that a process and this one share, of which only those in use take memory
_LOOKS_S = 1.0  # seconds after which a process that reads looks whether the one that asks is still there

BATCHES_AHEAD = 2
"""The most batches decoded ahead of the computation."""


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Let some loggers log nothing but errors meanwhile."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True)
class WorkProgress:
    """The progress of a run: items that are finished or cannot be used, earlier ones too, and items a second now."""

    done: int
    total: int
    per_s: float
    unit: str = "images"


class Pace:
    """Counts the items of a run, reports its progress, and decides when to keep the results."""

    def __init__(
        self, total: int, tell: Callable[[WorkProgress], None] | None = None, *, before: int = 0, unit: str = "images"
    ) -> None:
        self._total, self._tell, self._unit = total, tell, unit
        self._before = self._done = before
        self._started = self._written_at = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return time.perf_counter() - self._started

    def add(self, count: int) -> None:
        """Count items, and report the progress."""
        self._done += count
        self.tell()

    def tell(self, more: int = 0) -> None:
        """Report the progress, including items that are done and not counted yet."""
        if self._tell is not None:
            done = self._done + more
            new = done - self._before
            self._tell(WorkProgress(done, self._total, new / max(1e-9, self.seconds) if new else 0.0, self._unit))

    def keep(self, commit: Callable[[], None]) -> None:
        """Call a function that keeps the results, if the last time was ``KEEP_SECONDS`` ago."""
        if time.perf_counter() - self._written_at > KEEP_SECONDS:
            commit()
            self._written_at = time.perf_counter()


@dataclass(frozen=True)
class DecodedBatch(Generic[Item, Value]):
    """A batch whose items have been read."""

    items: list[Item] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    failed: list[tuple[Item, str]] = field(default_factory=list)


def decoded(
    batches: Iterable[Sequence[Item]],
    read: Callable[[Item], Value],
    name: Callable[[Item], object],
    *,
    threads: int | None = None,
    readers: Readers[Item, Value] | None = None,
    device: object = "cpu",
) -> Iterator[DecodedBatch[Item, Value]]:
    """Read the items of batches, each once, in threads that are at most ``BATCHES_AHEAD`` batches ahead.

    An item that ``read`` refuses by BadImageError leaves a gap. The messages of these errors begin with its ``name``.
    OpenVSEError is raised if a process that reads has ended.

    Args:
        threads: the number of threads, or of processes. None chooses it by the number of cores.
        readers: processes that read, which stay. Without them, some are made for a GPU.
        device: where the caller computes.
    """
    count = readers_for(device) if readers is None else readers.count
    threads = max(1, threads if threads is not None else count or DECODERS)
    own = Readers(read, name, threads) if count and readers is None else None
    ask: Callable[[Sequence[Item]], _Tried[Value]] = readers or own or partial(_tried, read, name)
    pool = ThreadPoolExecutor(threads)
    try:
        jobs = (
            [(some, pool.submit(ask, some)) for some in in_batches(batch, max(1, min(_AT_ONCE, len(batch) // threads)))]
            for batch in batches
        )
        waiting: deque[list[tuple[Sequence[Item], Future[_Tried[Value]]]]] = deque(islice(jobs, BATCHES_AHEAD))
        while waiting:
            present, done = waiting.popleft(), DecodedBatch[Item, Value]()
            waiting.extend(islice(jobs, 1))
            for some, job in present:
                for item, (value, reason) in zip(some, job.result(), strict=True):
                    if reason is None:
                        done.items.append(item)
                        done.values.append(cast("Value", value))
                    else:
                        done.failed.append((item, reason))
            yield done
    finally:
        pool.shutdown(cancel_futures=True)
        if own is not None:
            own.close()


_Tried: TypeAlias = list[tuple[Value | None, str | None]]


def _tried(read: Callable[[Item], Value], name: Callable[[Item], object], items: Sequence[Item]) -> _Tried[Value]:
    """Return the value of each item, or the reason why it cannot be used."""
    done: _Tried[Value] = []
    for item in items:
        try:
            done.append((read(item), None))
        except BadImageError as error:
            done.append((None, failure_reason(error, name(item))))
    return done


def readers_for(device: object) -> int:
    """Return how many processes shall read for a device, 0 for threads instead: on a CPU, or in one of many processes.

    Processes that ``torchrun`` has started beside this one have their share of the cores.
    """
    others = multiprocessing.current_process().daemon or getattr(sys.modules.get("ray"), "is_initialized", bool)()
    if others or not str(device).startswith("cuda") or "fork" not in multiprocessing.get_all_start_methods():
        return 0
    return min(_MOST_READERS, max(2, _CORES // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 2))


class Readers(Generic[Item, Value]):
    """Processes that read as ``decoded`` does. A thread that calls it waits for one that is free, and then for it.

    They are forked, so they know what this process knew. Only items, values and errors are sent, in memory that both
    share if it suffices. ``close`` ends the processes, and so does the end of this one, however it ends.
    """

    def __init__(self, read: Callable[[Item], Value], name: Callable[[Item], object], count: int) -> None:
        self.count, self._free = count, SimpleQueue[tuple[BaseProcess, Connection, mmap]]()
        context, try_all = multiprocessing.get_context("fork"), partial(_tried, read, name)
        for _ in range(count):
            (ours, theirs), memory = context.Pipe(), mmap(-1, _SHARED)
            process = context.Process(target=_answer, args=(try_all, theirs, memory, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._free.put((process, ours, memory))

    def __call__(self, items: Sequence[Item]) -> _Tried[Value]:
        """Read items. Raise OpenVSEError if the process has ended, and otherwise what the reading raises."""
        process, connection, memory = reader = self._free.get()
        try:
            connection.send(items)
            answer = connection.recv()
            tried, error = pickle.loads(memoryview(memory)[:answer] if isinstance(answer, int) else answer)
        except (EOFError, OSError):
            process.join(_LOOKS_S)
            code = process.exitcode or 0
            how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with {code}"
            raise OpenVSEError(
                f"process {process.pid}, which decodes images, has ended {how}, as it does if memory is short: free "
                f"some, or use fewer cores (taskset), and run the command again"
            ) from None
        finally:
            self._free.put(reader)
        if error is not None:
            raise error
        return cast("_Tried[Value]", tried)

    def close(self) -> None:
        """End the processes, none of which reads."""
        ended = [self._free.get() for _ in range(self.count)]
        for _, connection, _ in ended:
            with suppress(OSError):
                connection.send(None)
        for process, connection, _ in ended:
            process.join()
            connection.close()


def _answer(read: Callable[[Any], Any], connection: Connection, memory: mmap, parent: int) -> None:
    """Read what a connection asks for, until it asks for nothing or the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the parent answers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        copyreg.pickle(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))  # in a fraction of the time
    while os.getppid() == parent:
        with suppress(EOFError, OSError):  # the parent ends
            if not connection.poll(_LOOKS_S):
                continue
            if (items := connection.recv()) is None:
                return
            try:
                answer = pickle.dumps((read(items), None), 5)
            except Exception as error:
                answer = pickle.dumps((None, error))
            memory.seek(0)
            connection.send(memory.write(answer) if len(answer) <= _SHARED else answer)


def ahead(items: Iterable[Item], count: int = BATCHES_AHEAD) -> Iterator[Item]:
    """Yield items that a thread makes, at most ``count`` ahead, while the caller works with those before them."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, source, end) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, source, end))
                yield cast("Item", item)
        finally:
            pool.shutdown(cancel_futures=True)


def read_ahead(items: Sequence[Item], read: Callable[[Item], Value], batch_size: int) -> Iterator[list[Value]]:
    """Yield the results of reading items, in batches. Raise BadImageError for an unusable item."""
    for batch in decoded(in_batches(items, batch_size), read, lambda _: ""):
        for _, message in batch.failed:
            raise BadImageError(message)
        yield batch.values


SKIPPED = "skipped %s: %s"
"""The form of the warning about an item that cannot be used. The command line prints a few of these, and a count."""


def tell_skipped(failed: Iterable[tuple[object, str]]) -> None:
    """Log a warning for each item that cannot be used, with its reason."""
    for item, reason in failed:
        _logger.warning(SKIPPED, escaped(item), reason)


def failure_reason(error: BadImageError, name: object) -> str:
    """Return why an item cannot be used, without its name, with which the message begins."""
    return str(error).removeprefix(f"{escaped(name)}: ")


def in_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield items in batches of a size. The last one may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


def remaining(items: Sequence[Item], is_done: Callable[[Item], bool], batch_size: int) -> Sequence[Item]:
    """Return the unfinished items, with the items that failed in an earlier run last.

    After a stop, the batches of the others are the same as without it.
    """
    done = [is_done(item) for item in items]
    last = len(items) - done[::-1].index(True) if True in done else 0
    tried = -(-last // batch_size) * batch_size  # in whole batches
    places = chain(range(tried, len(items)), range(min(tried, len(items))))
    return [items[place] for place in places if not done[place]]


def results_in_order(
    parts: Sequence[Sequence[Item]], prepare: Callable[[], Callable[[Sequence[Item]], Result]], workers: Workers
) -> Iterator[Result]:
    """Let workers make the result of each part, and yield the results in the order of the parts.

    ``prepare`` is sent to each worker, and returns there the function that makes the result of a part.
    """
    if not parts:
        return
    ready: dict[int, Result] = {}
    wanted = 0
    with closing(share_work(partial(_numbered, prepare), [*enumerate(parts)], workers)) as made:
        for number, result in made:
            ready[number] = result
            while wanted in ready:
                yield ready.pop(wanted)
                wanted += 1


def _numbered(
    prepare: Callable[[], Callable[[Sequence[Item]], Result]],
) -> Callable[[tuple[int, Sequence[Item]]], tuple[int, Result]]:
    make = prepare()
    return lambda part: (part[0], make(part[1]))


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
_STORE_BYTES = 100 << 20  # enough, because tasks and results are small and the data go to the disk


@dataclass(frozen=True)
class Workers:
    """Processes that share work through Ray Data, on this machine or on a running cluster that sees the same files.

    With the device ``cuda``, each has one GPU of its own.
    """

    count: int
    threads: int = 1
    device: str = "cpu"
    cluster: str | None = None


def share_work(
    prepare: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], workers: Workers
) -> Generator[Result, None, None]:
    """Let workers do tasks, and yield each result as it is ready, in any order.

    The task of a worker that dies goes to another worker. Workers load the plug-ins of this process. ``prepare``
    returns in each worker the function that does a task. It is pickled, like tasks and results.
    """
    try:
        sent = pickle.dumps(prepare)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise OpenVSEError(f"this work cannot be sent to other processes ({error}): do it in one process") from error
    ray = _import_ray()
    started = _connect(ray, workers)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Worker,
            fn_constructor_args=(sent, workers.threads, str(Path.cwd()), loaded_plugins()),
            concurrency=min(workers.count, len(rows)),
            num_cpus=workers.threads,
            num_gpus=1 if workers.device.startswith("cuda") else None,
        )
        for row in done.iter_rows():
            if (raised := pickle.loads(row["raised"])) is not None:
                kind, *details = raised
                raise kind(*details)
            yield pickle.loads(row["result"])
    finally:
        if started:
            ray.shutdown()


class _Worker:
    """A worker: it prepares itself for its first task, and does tasks one after the other."""

    def __init__(self, prepare: bytes, threads: int, folder: str, plugins: Sequence[Path]) -> None:
        if not missing_package():
            training_module("torch").set_num_threads(threads)
        os.chdir(folder)  # paths may be relative
        self._prepare, self._plugins = prepare, plugins
        self._do: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Do a task. An error of the user is sent back unchanged, because Ray would wrap it in a traceback."""
        result: Any = None
        raised: tuple[Any, ...] | None = None
        try:
            if self._do is None:
                for path in self._plugins:
                    if path not in loaded_plugins():
                        load_plugin(path)
                self._do = pickle.loads(self._prepare)()
            result = self._do(pickle.loads(row["task"]))
        except DiskError as error:
            raised = (DiskError, str(error), error.strerror)
        except OpenVSEError as error:
            raised = (type(error), str(error))
        return {"result": pickle.dumps(result), "raised": pickle.dumps(raised)}


def start_workers(cpus: int) -> None:
    """Start processes on this machine, which stay until ``ray.shutdown``. Work that finds them uses them."""
    ray = _import_ray()
    with _own_handlers():
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE_BYTES, address="local", **_QUIET)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # failures are raised, too
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own choice of 15 starves beside other work
    with importing("several processes need Ray", "ray", more=", or do the work in one process"):
        import ray
        import ray.data
    return ray


def _connect(ray: Any, workers: Workers) -> bool:
    """Join a cluster, or start one. Return whether it must be left at the end."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        return False
    if workers.cluster is None:
        start_workers(workers.count * workers.threads)
        return True
    try:
        with _own_handlers():
            ray.init(address=workers.cluster, **_QUIET)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise OpenVSEError(
            f"no Ray cluster answers at {workers.cluster} ({message_of(error)}): run 'ray start' or leave --cluster out"
        ) from error
    return True


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, because Ray's would end the process without the message of a stopped command."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
