"""Workers without processes: what they would get is pickled, and they finish in the wrong order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from openvse.pipeline import Shard, Workers


class PickledWork:
    """Stands for ``share_work``; ``taken`` are the shards that were asked for."""

    def __init__(self) -> None:
        self.taken: list[Shard[Any]] = []

    def __call__(
        self, prepare: Callable[[], Callable], shards: Sequence[Shard], workers: Workers
    ) -> Iterator:
        self.taken.extend(shards)
        make = pickle.loads(pickle.dumps(prepare))()
        for shard in reversed(shards):
            yield pickle.loads(pickle.dumps(make(pickle.loads(pickle.dumps(shard)))))


def pickled_work(monkeypatch: pytest.MonkeyPatch) -> PickledWork:
    """Let work be shared within this process, until the test ends."""
    work = PickledWork()
    monkeypatch.setattr("openvse.pipeline.share_work", work)
    return work
