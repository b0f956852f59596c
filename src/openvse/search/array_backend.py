"""Exact search with NumPy, for models that run without PyTorch; it ranks as ``ExactBackend`` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import IndexFormatError, ModelError
from openvse.index.segments import Segment
from openvse.runtime.arrays import ArraySet, Kind, score_sets

BLOCK_VALUES = 1 << 22
"""The number of embedding values or of scores that are in memory at a time."""

_MARGIN = 2e-5  # by how much a score in single precision may differ from the exact one, of unit vectors


@dataclass(frozen=True)
class _Best:
    """The best items so far, in order."""

    scores: Float[np.ndarray, "n"]
    positions: Int[np.ndarray, "n"]


class ArrayBackend:
    """Scores every item, block by block over the memory map, and keeps the best of what it has seen.

    Items are ordered by score, then by position. What may be among the best is scored once more in double precision and
    rounded to single, so that neither the order nor a score depends on the blocks.

    Args:
        segments: the embeddings of the items.
        kind: how two embeddings are compared.
        names: of the items, for messages.
        swapped: whether the items are sentences, which stand on the side of the texts.
        block_values: the number of values in memory at a time.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        kind: Kind = "inner",
        names: Sequence[str] = (),
        swapped: bool = False,
        block_values: int = BLOCK_VALUES,
    ) -> None:
        self._segments, self._kind, self._names = segments, kind, names
        self._swapped, self._block_values = swapped, block_values

    def search(
        self, queries: ArraySet, top_k: int
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores, best first, and positions of the best ``min(top_k, count)`` items of every query.

        Raises:
            IndexFormatError: an item's embedding holds NaN or infinite numbers; it is named.
            ModelError: a query's does.
        """
        return self.search_some(queries, top_k)

    def search_some(
        self,
        queries: ArraySet,
        top_k: int,
        *,
        weights: Float[np.ndarray, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores and positions of the best allowed items; see ``FilteringBackend``."""
        count = len(queries) if weights is None else len(weights)
        scale = 1.0 if weights is None else max(1.0, float(np.abs(weights).sum(axis=1).max()))
        nothing = _Best(np.empty(0, np.float32), np.empty(0, np.int64))
        best = [nothing] * count
        for vectors, positions in self._blocks(queries.mask.size, allowed):
            scores = self._scored(vectors, queries, weights)
            if not np.isfinite(scores).all():
                self._refuse(vectors, positions)
            margin = _MARGIN * scale * max(1.0, float(np.abs(scores).max()))
            for number in range(count):
                chosen = _candidates(scores[number], best[number], top_k, margin)
                if len(chosen):
                    exact = self._scored(vectors[chosen].astype(np.float64), queries, weights, number)
                    best[number] = _merged(best[number], exact, positions[chosen], top_k)
        found = min(len(each.scores) for each in best)
        return (
            np.stack([each.scores[:found] for each in best]),
            np.stack([each.positions[:found] for each in best]),
        )

    def _blocks(
        self, parts: int, allowed: Bool[np.ndarray, "count"] | None
    ) -> Iterator[tuple[Float[np.ndarray, "n K D"], Int[np.ndarray, "n"]]]:
        """Yield the embeddings that may be found in single precision, some at a time, and their positions."""
        for segment in self._segments:
            values = segment.vectors.shape[1] * max(segment.vectors.shape[2], parts)
            step = max(1, self._block_values // values)
            for start in range(0, len(segment.vectors), step):
                positions = segment.positions[start : start + step]
                usable = positions >= 0 if allowed is None else (positions >= 0) & allowed[positions]
                vectors = segment.vectors[start : start + step]
                if not usable.all():
                    vectors, positions = vectors[usable], positions[usable]
                if len(positions):
                    yield np.asarray(vectors, np.float32), positions.astype(np.int64)

    def _scored(
        self,
        vectors: Float[np.ndarray, "n K D"],
        queries: ArraySet,
        weights: Float[np.ndarray, "Q P"] | None,
        number: int | None = None,
    ) -> Float[np.ndarray, "*q"]:
        """Return the scores of items, ``[Q, n]``, or those of one query, ``[n]``, in the precision of the vectors."""
        one = weights is None and number is not None
        asked = queries[number : number + 1] if one and number is not None else queries
        items = ArraySet.full(vectors)
        asked = ArraySet(asked.vectors.astype(vectors.dtype), asked.mask)
        pair = (asked, items) if self._swapped else (items, asked)
        scores = score_sets(*pair, self._kind)
        by_part = scores if self._swapped else scores.T
        if weights is not None:
            by_part = weights.astype(vectors.dtype) @ by_part
        return by_part if number is None else np.asarray(by_part[0 if one else number])

    def _refuse(self, vectors: Float[np.ndarray, "n K D"], positions: Int[np.ndarray, "n"]) -> None:
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2)))
        if not len(bad):
            raise ModelError(
                "a score is NaN or infinite, so the images cannot be ranked: check the query and the exported model"
            )
        position = int(positions[bad[0]])
        name = self._names[position] if self._names else f"item {position}"
        raise IndexFormatError(
            f"the embedding of {name} in the index holds NaN or infinite numbers, so the images cannot be ranked: run "
            f"'openvse index' again"
        )


def _candidates(
    scores: Float[np.ndarray, "n"], best: _Best, top_k: int, margin: float
) -> Int[np.ndarray, "c"]:
    """Return the items of a block that may be among the best, those with more than a margin below the k-th left out."""
    floor = -np.inf
    if len(best.scores) == top_k:
        floor = float(best.scores[-1])
    elif len(scores) > top_k:
        floor = float(np.partition(scores, len(scores) - top_k)[len(scores) - top_k])
    return np.flatnonzero(scores >= floor - margin)


def _merged(
    best: _Best, scores: Float[np.ndarray, "c"], positions: Int[np.ndarray, "c"], top_k: int
) -> _Best:
    """Return the best of what was seen before and of some more items."""
    both = np.concatenate([best.scores, scores.astype(np.float32) + np.float32(0)])
    places = np.concatenate([best.positions, positions])
    order = np.lexsort((places, -both))[:top_k]
    return _Best(both[order], places[order])
