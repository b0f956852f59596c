"""Indexing by several processes, on one machine or many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from openvse.index.portions import EmbeddedPortion, Portion, Sharing, embed_portion
from openvse.pipeline import Workers, share_work
from openvse.tasks.load import load_same


def sharing(source: str, fingerprint: str, workers: Workers) -> Sharing:
    """Return processes that embed for ``build_index``.

    Args:
        source: folder or name of the model, under which all machines find it.
        fingerprint: that of the model.
        workers: the processes.
    """
    prepare = partial(_embedder, source, fingerprint, workers.device)
    return Sharing(workers.count, lambda portions: share_work(prepare, portions, workers))


def _embedder(source: str, fingerprint: str, device: str) -> Callable[[Portion], EmbeddedPortion]:
    """Load the model once, for all portions of a worker."""
    return partial(embed_portion, load_same(source, fingerprint, device))
