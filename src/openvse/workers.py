"""Processes that share work, on one machine or on many, through Ray Data."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from openvse.errors import DiskError, OpenVSEError

Task = TypeVar("Task")
Result = TypeVar("Result")

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
_STORE_BYTES = 100 << 20  # tasks and results are small; what is made goes to the disk


@dataclass(frozen=True)
class Workers:
    """Which processes share work.

    Attributes:
        count: how many processes.
        threads: CPU threads of each.
        device: where each computes; ``cuda`` gives each process one GPU of its own.
        cluster: the address of a running Ray cluster, whose machines must see all files under the same paths; None
            starts the processes on this machine.
    """

    count: int
    threads: int = 1
    device: str = "cpu"
    cluster: str | None = None


def share_work(
    prepare: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], workers: Workers
) -> Iterator[Result]:
    """Let workers do tasks, and yield each result as it is ready, in any order.

    The task of a worker that dies is given to another one.

    Args:
        prepare: called once in each worker; returns what does a task there. It is pickled, as tasks and results are.
        tasks: what is to be done.
        workers: who does it.

    Raises:
        OpenVSEError: Ray is not installed, no cluster is at the address, or what a task raised.
    """
    try:
        sent = pickle.dumps(prepare)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise OpenVSEError(
            f"this work cannot be sent to other processes ({error}): do it in one process"
        ) from error
    ray = _import_ray()
    started = _connect(ray, workers)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Worker,
            fn_constructor_args=(sent, workers.threads, str(Path.cwd())),
            concurrency=min(workers.count, len(rows)),
            num_cpus=workers.threads,
            num_gpus=1 if workers.device.startswith("cuda") else None,
        )
        for row in done.iter_rows():
            raised = pickle.loads(row["raised"])
            if raised is not None:
                kind, *said = raised
                raise kind(*said)
            yield pickle.loads(row["result"])
    finally:
        if started:
            ray.shutdown()


class _Worker:
    """A worker: it prepares itself for its first task, and does tasks one after the other."""

    def __init__(self, prepare: bytes, threads: int, folder: str) -> None:
        import torch

        torch.set_num_threads(threads)
        os.chdir(folder)  # paths may be relative
        self._prepare = prepare
        self._do: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Do a task; an error of the user is sent back as it is, because Ray would wrap it in a traceback."""
        result: Any = None
        raised: tuple[Any, ...] | None = None
        try:
            if self._do is None:
                self._do = pickle.loads(self._prepare)()
            result = self._do(pickle.loads(row["task"]))
        except DiskError as error:
            raised = (DiskError, str(error), error.strerror)
        except OpenVSEError as error:
            raised = (type(error), str(error))
        return {"result": pickle.dumps(result), "raised": pickle.dumps(raised)}


def start_workers(cpus: int) -> None:
    """Start processes on this machine, which stay until ``ray.shutdown``; work that finds them uses them.

    Args:
        cpus: how many processor cores they may take.

    Raises:
        OpenVSEError: Ray is not installed.
    """
    ray = _import_ray()
    with _own_handlers():
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            address="local",
            **_QUIET,
        )


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what fails is raised, too
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own choice of 15 starves beside other work
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OpenVSEError(
            "several processes need Ray: pip install 'openvse[ray]', or do the work in one process"
        ) from error
    return ray


def _connect(ray: Any, workers: Workers) -> bool:
    """Join a cluster, or start one; return whether it is to be left at the end."""
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
        reason = " ".join(str(error).split())[:120]
        raise OpenVSEError(
            f"no Ray cluster answers at {workers.cluster} ({reason}): start one with 'ray start', or leave --cluster "
            f"out"
        ) from error
    return True


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM: that of Ray would end the process without what a stopped command says."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
