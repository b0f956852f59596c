"""One evaluation by several processes: they take turns with batches and blocks, and all get all results.

Batches and blocks are the same as for one process, so the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

import torch.distributed as dist

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    """The processes that evaluate together, seen by one of them. All of them make the same calls.

    One process alone needs no process group of ``torch.distributed``.
    """

    rank: int = 0
    count: int = 1

    def gather(self, mine: Result) -> list[Result]:
        """Return the results of all processes, in the order of their ranks."""
        if self.count == 1:
            return [mine]
        parts: list[Result | None] = [None] * self.count
        dist.all_gather_object(parts, mine)
        return cast("list[Result]", parts)

    def take_turns(self, tasks: Iterable[Task], work: Callable[[Task], Result]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result. Each process does one of ``count`` consecutive tasks."""
        remaining = iter(tasks)
        while turn := list(islice(remaining, self.count)):
            mine = work(turn[self.rank]) if self.rank < len(turn) else None
            yield from zip(turn, cast("list[Result]", self.gather(mine)), strict=False)


ALONE = Processes()
"""One process that does everything itself."""
