"""An engine over a store of points: the store proposes items, and their exact scores put them in order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import ModelError
from openvse.index.conditions import Condition
from openvse.index.index import Index
from openvse.search.backend import Engine
from openvse.search.exact import ExactBackend
from openvse.stores.engine_state import EngineState
from openvse.stores.ordering import largest, pack, unpack
from openvse.stores.points import PointStore, Within
from openvse.types import EmbeddingSet

FEW = 4096
"""Up to so many items that fulfil the conditions are scored one and all, which is as quick and misses none."""

_logger = logging.getLogger(__name__)

_SPARE = 10  # items more than wanted: their order by the store may differ a little from the exact one
_TOGETHER = 64  # queries
_SAME = 1e-6  # scores that differ by less may be equal, in the precision of a store
_LARGEST_TIE = 1000  # points; a search that ends among so many equal scores is long enough
_LARGEST_SEARCH = 10_000  # points; whoever needs more is better served by the exact engine

Found = tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]


class PointEngine(Engine):
    """Searches an index through a store of points.

    The score of an item is the largest inner product of one of its embeddings with one of the query's. So every
    embedding is a point and every embedding of a query one search; the items that any of these finds are scored once
    more with the embeddings of the index. What the store holds of items that have changed or are gone does not count,
    and what it does not hold yet is searched exactly: an engine that lags behind its index is slower, and never wrong.

    Queries of several parts are one search with the weighted sum of their embeddings, where all have a single one;
    otherwise the exact engine answers them.

    Args:
        name: of the engine.
        index: what to search.
        store: holds its points.
        state: which items the store holds.
        exact: the exact engine of the same index and model.
        is_linear: whether the score is the largest inner product itself.
        few: see ``FEW``.
    """

    def __init__(
        self,
        name: str,
        index: Index,
        store: PointStore,
        state: EngineState,
        exact: ExactBackend,
        *,
        is_linear: bool,
        few: int | None = None,
    ) -> None:
        self.name = name
        self._index, self._store, self._exact = index, store, exact
        self._is_linear, self._few = is_linear, FEW if few is None else few
        table = index.table
        self._fresh = state.holds(table.keys, table.checksums)
        self._order = np.argsort(table.keys)
        self._sorted = table.keys[self._order]
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
        """Let go of the store."""
        self._store.close()

    @torch.inference_mode()
    def search_some(
        self,
        queries: EmbeddingSet,
        top_k: int,
        *,
        weights: Float[Tensor, "Q P"] | None = None,
        allowed: Bool[np.ndarray, "count"] | None = None,
        where: Sequence[Condition] = (),
    ) -> Found:
        """Return scores and positions of the best allowed items; see ``Engine``."""
        if not queries.vectors[queries.mask].isfinite().all():
            raise ModelError(
                "the embedding of a query holds NaN or infinite numbers: check the query and the weights"
            )
        wanted = self._fresh if allowed is None else self._fresh & allowed
        num_wanted = int(wanted.sum())
        searches = self._searches(queries, weights)
        is_few = num_wanted <= self._few and (allowed is not None or not num_wanted)
        if searches is None or is_few:
            return self._exact.search_some(queries, top_k, weights=weights, allowed=allowed)
        count = len(queries) if weights is None else len(weights)
        within = (
            Within() if allowed is None else Within(tuple(where), np.sort(self._index.table.keys[wanted]))
        )
        found: list[Found] = []
        for start in range(0, count, _TOGETHER):
            some = slice(start, start + _TOGETHER)
            # A compound query is a row of weights over all parts, a simple one an embedding set.
            asked, weighted = (queries[some], None) if weights is None else (queries, weights[some])
            keys = self._answer(asked, weighted, searches[some], min(top_k, num_wanted), wanted, within)
            if keys is None:
                found.append(self._exact.search_some(asked, top_k, weights=weighted, allowed=allowed))
                continue
            if self.num_missing:
                missing = ~self._fresh if allowed is None else ~self._fresh & allowed
                others = self._exact.search_some(asked, top_k, weights=weighted, allowed=missing)
                keys = torch.cat([keys, pack_each(*others)], dim=1)
            found.append(unpack(largest(keys, top_k)))
        return torch.cat([scores for scores, _ in found]), torch.cat([places for _, places in found])

    def _searches(
        self, queries: EmbeddingSet, weights: Float[Tensor, "Q P"] | None
    ) -> list[Float[np.ndarray, "_ D"]] | None:
        """Return what to search for each query; None where no searches find what is asked."""
        if weights is None:
            pairs = zip(queries.vectors, queries.mask, strict=True)
            return [vectors[mask].float().numpy() for vectors, mask in pairs]
        if not self._is_linear or queries.mask.shape[1] > 1 or self._index.manifest.num_embeddings > 1:
            return None
        return [one.unsqueeze(0).numpy() for one in (weights.float() @ queries.vectors[:, 0].float())]

    def _answer(
        self,
        queries: EmbeddingSet,
        weights: Float[Tensor, "Q P"] | None,
        searches: Sequence[Float[np.ndarray, "_ D"]],
        top_k: int,
        wanted: Bool[np.ndarray, "count"],
        within: Within,
    ) -> Int[Tensor, "Q n"] | None:
        """Return what may be the best items of some queries, with scores; None where the store finds too few."""
        # The best so many points are of at least so many items.
        count = (top_k + _SPARE) * self._index.manifest.num_embeddings
        while True:
            proposals, is_all = self._proposals(searches, count, wanted, within)
            each = [np.unique(np.concatenate(places)) for places in proposals]
            if all(len(places) >= top_k for places in each):
                places = np.unique(np.concatenate(each))
                scores = self._exact.score_some(
                    queries, torch.from_numpy(self._index.gather(places)), weights
                )
                if is_all or count >= _LARGEST_TIE or not _is_cut(scores.numpy(), places, proposals, top_k):
                    return pack(scores, torch.from_numpy(places))
            elif is_all or count >= _LARGEST_SEARCH:
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
            places = self._places(keys)
            proposals[owner].append(places[wanted[places]])
        return proposals, all(len(keys) < count for keys in answers)

    def _places(self, keys: Int[np.ndarray, "n"]) -> Int[np.ndarray, "m"]:
        """Return the positions of the items with these keys; the store may know some that are gone."""
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        known: np.ndarray = self._order[places[self._sorted[places] == keys]]
        return known


def _is_cut(
    scores: Float[np.ndarray, "Q n"],
    places: Int[np.ndarray, "n"],
    proposals: Sequence[Sequence[Int[np.ndarray, "_"]]],
    top_k: int,
) -> bool:
    """Return whether items with the last score that is wanted may be missing, as a search ended among such items."""
    for row, searches in zip(scores, proposals, strict=True):
        last = np.partition(row, len(row) - top_k)[len(row) - top_k]
        for found in searches:
            if len(found) and row[np.searchsorted(places, found)].min() >= last - _SAME:
                return True
    return False


def pack_each(scores: Float[Tensor, "Q k"], positions: Int[Tensor, "Q k"]) -> Int[Tensor, "Q k"]:
    """Pack scores and positions where every query has its own positions."""
    rows = [pack(some.unsqueeze(0), mine) for some, mine in zip(scores, positions, strict=True)]
    return torch.cat(rows) if rows else torch.empty(0, scores.shape[1], dtype=torch.int64)
