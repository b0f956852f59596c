"""Workers without processes: what they would get is pickled, and they finish in the wrong order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from openvse.pipeline import Workers


class PickledWork:
    """Stands for ``share_work``; ``taken`` are the numbered parts that were asked for."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Sequence[Any]]] = []

    def __call__(
        self, prepare: Callable[[], Callable], parts: Sequence[tuple[int, Sequence[Any]]], workers: Workers
    ) -> Iterator:
        self.taken.extend(parts)
        make = pickle.loads(pickle.dumps(prepare))()
        for part in reversed(parts):
            yield pickle.loads(pickle.dumps(make(pickle.loads(pickle.dumps(part)))))


def pickled_work(monkeypatch) -> PickledWork:
    """Let work be shared within this process, until the test ends."""
    work = PickledWork()
    monkeypatch.setattr("openvse.pipeline.share_work", work)
    return work
