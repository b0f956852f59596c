"""Encoding by several processes, on one machine or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from openvse.encoding.shards import Done, Shard, encode_shard
from openvse.model import TwoTower
from openvse.pipeline import Workers, share_work
from openvse.tasks.load import load_same

if TYPE_CHECKING:
    from openvse.encoding.run import Job


def encode_by_workers(source: str, job: Job, workers: Workers) -> Iterator[tuple[int, Done]]:
    """Encode shards by workers, and yield each as it is done.

    Args:
        source: folder or name of the model, under which all machines find it.
        job: what is to be done.
        workers: who does it.

    Raises:
        OpenVSEError: Ray is not installed, no cluster is at the address, or what a worker met.
    """
    prepare = partial(_encoder, source, workers.device, replace(job, shards=()))
    return share_work(prepare, job.shards, workers)


def _encoder(source: str, device: str, job: Job) -> Callable[[Shard], tuple[int, Done]]:
    """Load the model once, for all shards of a worker."""
    return partial(_encode, load_same(source, job.settings.model, device), job)


def _encode(model: TwoTower, job: Job, shard: Shard) -> tuple[int, Done]:
    return shard.number, encode_shard(model, shard, job.settings, job.work, job.parts)
