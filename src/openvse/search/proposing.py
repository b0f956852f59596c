"""Search of an index through a store: the store proposes items, and their exact scores put them in order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import ModelError
from openvse.indexing.conditions import Condition
from openvse.indexing.index import Index
from openvse.search.exact import EmbeddedQueries, ExactSearch
from openvse.stores import VectorStore, Within
from openvse.stores.following import EngineState
from openvse.stores.int8 import largest, pack, unpack

FEW = 4096
"""Up to this many items that fulfil the conditions, all are scored, which is as quick and misses none."""

SPARE = 10
"""Extra items requested from a store, whose order may differ slightly from the exact one."""

WIDER = 8
"""The factor by which more items are requested with a query bank, which moves items up."""

LARGEST_SEARCH = 10_000
"""The most points requested from a store; a search that needs more is exact."""

_logger = logging.getLogger(__name__)

_TOGETHER = 64  # queries
_SAME = 1e-6  # scores that differ by less may be equal, in the precision of a store
_LARGEST_TIE = 1000  # points; no search goes on for more equal scores


class StoreSearch:
    """Searches an index through a store of its points.

    The score of an item is the largest inner product of one of its embeddings with one of the query's. So every
    embedding is a point and every embedding of a query one search. The found items are scored once more with the
    embeddings of the index. The store's points of changed or missing items do not count, and items it lacks are
    searched exactly. A store that lags behind its index is slower, and never wrong.

    Queries of several parts are one search with the weighted sum of their embeddings, if all have a single one and the
    score is linear, the largest inner product itself. Otherwise all items are compared.
    """

    def __init__(
        self, name: str, index: Index, store: VectorStore, state: EngineState, exact: ExactSearch, *, is_linear: bool
    ) -> None:
        self.name = name
        self._index, self._store, self._exact = index, store, exact
        self._is_linear = is_linear and index.manifest.num_embeddings == 1
        table = index.table
        self._fresh = state.holds(table.keys, table.checksums)
        self.num_missing = int((~self._fresh).sum())
        if self.num_missing:
            _logger.warning(
                "the engine %s does not hold %d of the %d items, which are searched exactly: run 'openvse index' to "
                "add them",
                name,
                self.num_missing,
                len(index),
            )

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def search(
        self,
        queries: EmbeddedQueries,
        top_k: int,
        *,
        allowed: Bool[np.ndarray, "count"] | None = None,
        where: Sequence[Condition] = (),
        less: Float[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores and positions of the best allowed items. See ``ExactSearch``."""
        if not np.isfinite(queries.parts.vectors[queries.parts.mask]).all():
            raise ModelError("the embedding of a query holds NaN or infinite numbers: check the query and the weights")
        wanted = self._fresh if allowed is None else self._fresh & allowed
        num_wanted = int(wanted.sum())
        searches = queries.searches(is_linear=self._is_linear)
        is_few = num_wanted <= FEW and (allowed is not None or not num_wanted)
        if searches is None or is_few:
            return self._exact.search(queries, top_k, allowed=allowed, less=less)
        within = Within()
        if allowed is not None:
            within = Within(tuple(where), np.sort(self._index.table.keys[wanted]))
        batches = []
        for start in range(0, len(queries), _TOGETHER):
            rows = np.arange(start, min(start + _TOGETHER, len(queries)))
            asked, some = queries.some(rows), searches[start : start + _TOGETHER]
            keys = self._answer(asked, some, min(top_k, num_wanted), wanted, within, less)
            if keys is None:
                batches.append(self._exact.search(asked, top_k, allowed=allowed, less=less))
                continue
            if self.num_missing:
                missing = ~self._fresh if allowed is None else ~self._fresh & allowed
                others = self._exact.search(asked, top_k, allowed=missing, less=less)
                keys = np.concatenate([keys, pack(*others)], axis=1)
            batches.append(unpack(largest(keys, top_k)))
        scores, positions = zip(*batches, strict=True)
        return np.concatenate(scores), np.concatenate(positions)

    def _answer(
        self,
        queries: EmbeddedQueries,
        searches: Sequence[Float[np.ndarray, "_ D"]],
        top_k: int,
        wanted: Bool[np.ndarray, "count"],
        within: Within,
        less: Float[np.ndarray, "count"] | None,
    ) -> Int[np.ndarray, "Q n"] | None:
        """Return the scored candidates of some queries, or None if the store finds too few."""
        # The best so many points are of at least so many items.
        count = (top_k + SPARE) * self._index.manifest.num_embeddings * (1 if less is None else WIDER)
        while True:
            proposals, is_all = self._proposals(searches, count, wanted, within)
            each = [np.unique(np.concatenate(places)) for places in proposals]
            if all(len(places) >= top_k for places in each):
                places = np.unique(np.concatenate(each))
                scores = self._exact.score(queries, self._index.gather(places))
                if less is not None:
                    return pack(scores - less[places], places)
                if is_all or count >= _LARGEST_TIE or not _is_cut(scores, places, proposals, top_k):
                    return pack(scores, places)
            elif is_all or count >= LARGEST_SEARCH:
                return None
            count *= 8

    def _proposals(
        self,
        searches: Sequence[Float[np.ndarray, "_ D"]],
        count: int,
        wanted: Bool[np.ndarray, "count"],
        within: Within,
    ) -> tuple[list[list[Int[np.ndarray, "_"]]], bool]:
        """Return the positions that each search of each query finds, and whether the store has no more."""
        owners = np.repeat(np.arange(len(searches)), [len(each) for each in searches])
        answers = self._store.nearest(np.concatenate(searches), count, within)
        proposals: list[list[Int[np.ndarray, "_"]]] = [[] for _ in searches]
        for owner, keys in zip(owners.tolist(), answers, strict=True):
            places = self._index.of_keys(keys)  # the store may know some that are gone
            proposals[owner].append(places[wanted[places]])
        return proposals, all(len(keys) < count for keys in answers)


def _is_cut(
    scores: Float[np.ndarray, "Q n"],
    places: Int[np.ndarray, "n"],
    proposals: Sequence[Sequence[Int[np.ndarray, "_"]]],
    top_k: int,
) -> bool:
    """Return whether items with the last wanted score may be missing, as a search ended among such items."""
    for row, searches in zip(scores, proposals, strict=True):
        last = np.partition(row, len(row) - top_k)[len(row) - top_k]
        for positions in searches:
            if len(positions) and row[np.searchsorted(places, positions)].min() >= last - _SAME:
                return True
    return False


Searcher: TypeAlias = ExactSearch | StoreSearch
"""A search for the best items of an index."""
