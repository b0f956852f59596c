"""Encoding by several processes, on one machine or many, through Ray Data."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from openvse.encoding.shards import Done, encode_shard, use_threads
from openvse.errors import DiskError, OpenVSEError
from openvse.model import TwoTower
from openvse.tasks.load import load_as

if TYPE_CHECKING:
    from openvse.encoding.run import Job

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
_STORE_BYTES = 100 << 20  # rows hold paths and notes; embeddings go to the disk


class ShardEncoder:
    """A worker: it loads the model once, and encodes shards one after the other.

    Args:
        source: folder or name of the model.
        device: where it computes.
        job: what is to be done; its shards come one by one.
    """

    def __init__(self, source: str, device: str, job: Job) -> None:
        use_threads(job.settings.threads)
        self._model = load_as(TwoTower, source, device=device)
        self._job = job

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Encode a shard; an error of the user is sent back, as Ray would wrap it in a traceback."""
        shard = pickle.loads(row["shard"])
        job = self._job
        try:
            if self._model.fingerprint != job.settings.model:
                raise OpenVSEError("the model of a worker is another one: give all machines the same model")
            told: object = encode_shard(self._model, shard, job.settings, job.work, job.parts)
        except OpenVSEError as error:
            told = error
        return {"number": shard.number, "told": pickle.dumps(_plain(told))}


def _plain(told: object) -> object:
    """Return an error in a form that can be sent."""
    if isinstance(told, DiskError):
        return ("disk", str(told), told.strerror)
    return (type(told), str(told)) if isinstance(told, OpenVSEError) else told


def encode_with_ray(
    source: str, device: str, job: Job, workers: int, cluster: str | None
) -> Iterator[tuple[int, Done]]:
    """Encode shards by workers, and yield each as it is done.

    Args:
        source: folder or name of the model, under which all machines find it.
        device: where a worker computes.
        job: what is to be done.
        workers: how many processes.
        cluster: address of a running cluster; None starts one on this machine.

    Raises:
        OpenVSEError: Ray is not installed, no cluster is at the address, or what a worker met.
    """
    ray = _import_ray()
    started = _connect(ray, workers * job.settings.threads, cluster)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        rows = [{"shard": pickle.dumps(shard)} for shard in job.shards]
        encoded = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            ShardEncoder,
            fn_constructor_args=(source, device, replace(job, shards=())),
            concurrency=min(workers, len(rows)),
            num_cpus=job.settings.threads,
            num_gpus=1 if device.startswith("cuda") else None,
        )
        for row in encoded.iter_rows():
            told = pickle.loads(row["told"])
            if isinstance(told, tuple):
                raise DiskError(*told[1:]) if told[0] == "disk" else told[0](told[1])
            yield int(row["number"]), told
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what fails is raised, too
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OpenVSEError(
            "workers need Ray: pip install 'openvse[ray]', or leave --workers out to encode in one process"
        ) from error
    return ray


def start(cpus: int) -> None:
    """Start workers on this machine, which stay until ``ray.shutdown``; an encoding that finds some uses them.

    Args:
        cpus: how many processor cores they may take.

    Raises:
        OpenVSEError: Ray is not installed.
    """
    _import_ray().init(
        num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE_BYTES, address="local", **_QUIET
    )


def _connect(ray: Any, cpus: int, cluster: str | None) -> bool:
    """Join a cluster, or start one; return whether it is to be left at the end."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        return False
    if cluster is None:
        start(cpus)
        return True
    try:
        ray.init(address=cluster, **_QUIET)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise OpenVSEError(
            f"no Ray cluster answers at {cluster} ({reason}): start one with 'ray start', or leave --cluster out"
        ) from error
    return True
