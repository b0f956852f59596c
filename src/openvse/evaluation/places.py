"""The place of every relevant candidate, for queries with several of them, and the metrics that read these places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

NDCG_AT = 10
"""The K of nDCG@K and P@K."""


@dataclass(frozen=True)
class Places:
    """The places of all relevant candidates of one direction, 1 = best.

    Ties count against the model: irrelevant candidates with the same score are ahead.

    Attributes:
        queries: the query of each relevant pair, ascending.
        places: the place of its candidate in the whole gallery, ascending within a query.
    """

    queries: Int[np.ndarray, "P"]
    places: Int[np.ndarray, "P"]
    num_candidates: int

    def with_missing(self, queries: Int[np.ndarray, "M"]) -> Places:
        """Return the same with added queries, whose relevant items are missing from the gallery and never found.

        Each of these queries has an item in the gallery, too.
        """
        every = np.concatenate([self.queries, queries])
        places = np.concatenate([self.places, np.full(len(queries), self.num_candidates + 1 + len(every))])
        order = np.lexsort((places, every))
        return Places(every[order], places[order], self.num_candidates)

    def map_at_r(self) -> Float[np.ndarray, "Q"]:
        """Return mAP@R (Musgrave et al., ECCV 2020) of each query that has a relevant candidate, from 0 to 1.

        With R relevant candidates at the places ``p_1 < ... < p_R``, it is ``1/R sum_{j : p_j <= R} j / p_j``.
        """
        starts, counts, number, order = self._groups
        inside = self.places <= counts[number]
        return np.asarray(np.add.reduceat(inside * order / self.places, starts) / counts)

    def rprecision(self) -> Float[np.ndarray, "Q"]:
        """Return R-Precision of each query: ``#{j : p_j <= R} / R``."""
        starts, counts, number, _ = self._groups
        inside = self.places <= counts[number]
        return np.asarray(np.add.reduceat(inside.astype(np.float64), starts) / counts)

    def ndcg(self) -> Float[np.ndarray, "Q"]:
        """Return nDCG@10 (Jarvelin and Kekalainen, 2002) of each query.

        It is ``sum_{p_j <= 10} 1 / log2(p_j + 1)``, divided by the same sum of the best possible order.
        """
        starts, _, _, order = self._groups
        gained, ideal = _discounted(self.places), _discounted(order)
        return np.asarray(np.add.reduceat(gained, starts) / np.add.reduceat(ideal, starts))

    def precision(self) -> Float[np.ndarray, "Q"]:
        """Return P@10 of each query, the share of the first ten that is relevant: ``#{j : p_j <= 10} / 10``."""
        found = np.add.reduceat((self.places <= NDCG_AT).astype(np.float64), self._groups[0])
        return np.asarray(found / min(NDCG_AT, self.num_candidates))

    def reciprocal_rank(self) -> Float[np.ndarray, "Q"]:
        """Return the reciprocal rank of each query: ``1 / p_1``."""
        return np.asarray(1.0 / self.places[self._groups[0]])

    @cached_property
    def _groups(self) -> tuple[Int[np.ndarray, "Q"], Int[np.ndarray, "Q"], Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
        """Where each query begins, its number of relevant candidates, and the query number and j of each pair."""
        _, starts, number, counts = np.unique(self.queries, return_index=True, return_inverse=True, return_counts=True)
        return starts, counts, number, 1 + np.arange(len(number)) - starts[number]


def _discounted(places: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """Return the gain of each candidate in DCG@K: ``1 / log2(place + 1)``, and 0 after place K."""
    return np.where(places <= NDCG_AT, 1.0 / np.log2(places + 1.0), 0.0)


def map_by_chance(relevant: Int[np.ndarray, "Q"], candidates: int) -> Float[np.ndarray, "Q"]:
    """Return the expected mAP@R of each query in a random order of N candidates, of which R are relevant.

    Place k is relevant with probability R/N, and each place before it then with probability (R-1)/(N-1).
    """

    def one(count: int) -> float:
        place = np.arange(1, count + 1)
        before = (place - 1) * (count - 1) / max(candidates - 1, 1)
        return float(np.sum((1.0 + before) / place) / candidates)

    return _of_each(relevant, one)


def ndcg_by_chance(relevant: Int[np.ndarray, "Q"], candidates: int) -> Float[np.ndarray, "Q"]:
    """Return the expected nDCG@10 of each query in a random order."""
    top = float(_discounted(np.arange(1, candidates + 1)).sum())
    return _of_each(relevant, lambda count: count / candidates * top / _discounted(np.arange(1, count + 1)).sum())


def reciprocal_rank_by_chance(relevant: Int[np.ndarray, "Q"], candidates: int) -> Float[np.ndarray, "Q"]:
    """Return the expected reciprocal rank of each query in a random order.

    The best is at place k with probability ``C(N-k, R-1) / C(N, R)``.
    """

    def one(count: int) -> float:
        place = np.arange(1, candidates - count + 2)
        # P(best = k + 1) / P(best = k) = (N - R + 1 - k) / (N - k)
        shares = np.cumprod(np.r_[count / candidates, (place[-1] - place[:-1]) / (candidates - place[:-1])])
        return float(np.sum(shares / place))

    return _of_each(relevant, one)


def _of_each(relevant: Int[np.ndarray, "Q"], value: Callable[[int], float]) -> Float[np.ndarray, "Q"]:
    """Return the value of the number of relevant candidates of each query. Equal numbers are computed once."""
    different, of_query = np.unique(relevant, return_inverse=True)
    return np.array([value(count) for count in different.tolist()])[of_query]


class PlaceCounter:
    """Counts, in one direction, the irrelevant candidates ahead of every relevant one but the best of its query.

    ``ranking`` has already counted the best for the ranks. Memory grows with the number of relevant pairs and with one
    block of scores. The loop runs over the relevant candidates of a query, and not over queries.
    """

    def __init__(self, queries: Int[Tensor, "P"], relevant: Float[Tensor, "P"], num_queries: int) -> None:
        order = torch.argsort(relevant, descending=True, stable=True)
        order = order[torch.argsort(queries[order], stable=True)]
        self._queries, self._relevant = queries[order], relevant[order]
        self._count = torch.bincount(queries, minlength=num_queries)
        self._start = self._count.cumsum(0) - self._count
        self._ahead = torch.zeros_like(queries)

    def add(self, queries: slice, scores: Float[Tensor, "Q C"]) -> None:
        """Count a block, whose relevant pairs hold -inf."""
        count, start = self._count[queries], self._start[queries]
        for number in range(1, int(count.max())):
            having = (count > number).nonzero().squeeze(1)
            pair = start[having] + number
            some = scores if len(having) == len(scores) else scores[having]
            self._ahead[pair] += (some >= self._relevant[pair].unsqueeze(1)).sum(dim=1)

    def places(self, best: Int[Tensor, "Q"], num_candidates: int) -> Places:
        """Return the places, given the number of irrelevant candidates ahead of the best of each query."""
        first = self._start[self._queries]
        order = torch.arange(len(first), device=first.device) - first
        ahead = torch.where(order == 0, best[self._queries], self._ahead)
        return Places(
            queries=self._queries.cpu().numpy(), places=(ahead + order + 1).cpu().numpy(), num_candidates=num_candidates
        )
