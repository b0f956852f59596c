"""Indexing by several processes: each embeds portions of what is new, and one writes them in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openvse.index.embedding import Embedder, ImageEmbedder, KnownContent, StoredEmbedder, Vectors
from openvse.index.scanning import Candidate
from openvse.index.writer import Entry

BATCHES_IN_PORTION = 16


@dataclass(frozen=True)
class Portion:
    """Candidates that one process embeds.

    Attributes:
        number: 0 for the first.
        candidates: whole batches, which are those that a single process would make; or clips to be cut.
        batch_size: how many are embedded at once.
    """

    number: int
    candidates: tuple[Candidate, ...]
    batch_size: int


@dataclass(frozen=True)
class EmbeddedPortion:
    """What became of a portion.

    Attributes:
        number: that of the portion.
        batches: entries and their embeddings.
        failed: files that cannot be used: path, reason and id.
        replaced: the ids of items that the entries stand in the place of.
    """

    number: int
    batches: tuple[tuple[list[Entry], Vectors], ...]
    failed: tuple[tuple[Path, str, str], ...]
    replaced: tuple[str, ...]


@dataclass(frozen=True)
class Sharing:
    """Processes that embed portions.

    Attributes:
        count: how many they are.
        share: lets them embed portions, and yields each as it is done, in any order.
    """

    count: int
    share: Callable[[Sequence[Portion]], Iterator[EmbeddedPortion]]


def embed_portion(model: ImageEmbedder, portion: Portion) -> EmbeddedPortion:
    """Embed a portion: what each process does."""
    embedder = Embedder(model, portion.batch_size, None, None)
    batches = tuple(embedder.batches(portion.candidates))
    failed = tuple((*each, item) for each, item in zip(embedder.failed, embedder.failed_ids, strict=True))
    return EmbeddedPortion(portion.number, batches, failed, tuple(embedder.replaced()))


class SharingEmbedder(Embedder):
    """Embeds candidates by several processes; what is recognised or stored is dealt with in this one.

    Args:
        sharing: the processes.
        model: the model.
        batch_size: how many are embedded at once.
        stored: features that may stand for images.
        known: embeddings of content that the index holds; None where it holds nothing.
    """

    def __init__(
        self,
        sharing: Sharing,
        model: ImageEmbedder,
        batch_size: int,
        stored: StoredEmbedder | None,
        known: KnownContent | None,
    ) -> None:
        super().__init__(model, batch_size, stored, known)
        self._sharing = sharing

    def batches(self, candidates: Sequence[Candidate]) -> Iterator[tuple[list[Entry], Vectors]]:
        """Yield entries and embeddings: first of what needs no model, then of all others, clips that are cut last."""
        new: list[Candidate] = []
        yield from self._batches(candidates, new)
        if not new:
            return
        portions = cut(new, self._batch_size, self._sharing.count)
        early: dict[int, EmbeddedPortion] = {}
        following = 0
        for done in self._sharing.share(portions):
            early[done.number] = done
            while following in early:
                yield from self._take(early.pop(following), len(portions[following].candidates))
                following += 1

    def _take(self, done: EmbeddedPortion, count: int) -> Iterator[tuple[list[Entry], Vectors]]:
        self.dealt += count
        self.failed += [(path, reason) for path, reason, _ in done.failed]
        self.failed_ids += [item for _, _, item in done.failed]
        self._replaced += done.replaced
        yield from done.batches or [([], np.empty((0, 0, 0), np.float32))]


def cut(candidates: Sequence[Candidate], batch_size: int, num_processes: int) -> list[Portion]:
    """Cut candidates into portions of whole batches, at least a few for each process.

    Clips that are cut into segments are portions of their own: one clip may be as much work as a batch.
    """
    whole, clips = ([each for each in candidates if bool(each.seconds) is cuts] for cuts in (False, True))
    parts: list[tuple[Candidate, ...]] = []
    for some, unit in ((whole, batch_size), (clips, 1)):
        units = -(-len(some) // unit)
        size = unit * max(1, min(BATCHES_IN_PORTION, units // (4 * num_processes)))
        parts += [tuple(some[start : start + size]) for start in range(0, len(some), size)]
    return [Portion(number, part, batch_size) for number, part in enumerate(parts)]
