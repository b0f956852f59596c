"""The place of every relevant candidate, for queries with several of them, and the metrics that read these places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

NDCG_AT = 10
"""The K of nDCG@K."""

SEVERAL = ("map_at_r", "rprecision", f"ndcg{NDCG_AT}", "mrr")
"""The metrics of this module, in the order of their columns."""


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
        beyond = np.full(len(queries), self.num_candidates + 1 + len(every))
        places = np.concatenate([self.places, beyond])
        order = np.lexsort((places, every))
        return Places(every[order], places[order], self.num_candidates)

    def columns(self) -> Float[np.ndarray, "Q M"]:
        """Return the metrics ``SEVERAL`` of each query that has a relevant candidate, from 0 to 1.

        With R relevant candidates at the places ``p_1 < ... < p_R``:

        - ``map_at_r``: mAP@R (Musgrave et al., ECCV 2020), ``1/R sum_{j : p_j <= R} j / p_j``
        - ``rprecision``: R-Precision, ``#{j : p_j <= R} / R``
        - ``ndcg10``: nDCG@10 (Jarvelin and Kekalainen, 2002), ``sum_{p_j <= 10} 1 / log2(p_j + 1)`` divided by the same
          sum of the best possible order
        - ``mrr``: the reciprocal rank, ``1 / p_1``
        """
        starts, counts, number = self._groups()
        relevant, order = counts[number], 1 + np.arange(len(number)) - starts[number]
        inside = self.places <= relevant
        gained, ideal = _discounted(self.places), _discounted(order)
        return np.column_stack(
            [
                np.add.reduceat(inside * order / self.places, starts) / counts,
                np.add.reduceat(inside.astype(np.float64), starts) / counts,
                np.add.reduceat(gained, starts) / np.add.reduceat(ideal, starts),
                1.0 / self.places[starts],
            ]
        )

    def chance(self) -> dict[str, float]:
        """Return the expected ``SEVERAL``, in percent, if the gallery of N candidates is in random order.

        With R of N relevant, place k is relevant with probability R/N, and each place before it then with probability
        (R-1)/(N-1). The best is at place k with probability ``C(N-k, R-1) / C(N, R)``.
        """
        starts, counts, number = self._groups()
        size = self.num_candidates
        ideal = _discounted(1 + np.arange(len(number)) - starts[number])
        top = _discounted(np.arange(1, size + 1)).sum()
        different, of_query = np.unique(counts, return_inverse=True)
        expected = {
            "map_at_r": np.array([_map_by_chance(count, size) for count in different.tolist()])[of_query],
            "rprecision": counts / size,
            f"ndcg{NDCG_AT}": counts / size * top / np.add.reduceat(ideal, starts),
            "mrr": np.array([_mrr_by_chance(count, size) for count in different.tolist()])[of_query],
        }
        return {name: 100.0 * float(np.mean(values)) for name, values in expected.items()}

    def _groups(
        self,
    ) -> tuple[Int[np.ndarray, "Q"], Int[np.ndarray, "Q"], Int[np.ndarray, "P"]]:
        """Return where each query begins, its number of relevant candidates, and the query number of each pair."""
        _, starts, number, counts = np.unique(
            self.queries, return_index=True, return_inverse=True, return_counts=True
        )
        return starts, counts, number


def _discounted(places: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """Return the gain of each candidate in DCG@K: ``1 / log2(place + 1)``, and 0 after place K."""
    return np.where(places <= NDCG_AT, 1.0 / np.log2(places + 1.0), 0.0)


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
            queries=self._queries.cpu().numpy(),
            places=(ahead + order + 1).cpu().numpy(),
            num_candidates=num_candidates,
        )


def _map_by_chance(relevant: int, candidates: int) -> float:
    place = np.arange(1, relevant + 1)
    before = (place - 1) * (relevant - 1) / max(candidates - 1, 1)
    return float(np.sum((1.0 + before) / place) / candidates)


def _mrr_by_chance(relevant: int, candidates: int) -> float:
    place = np.arange(1, candidates - relevant + 2)
    # P(best = k + 1) / P(best = k) = (N - R + 1 - k) / (N - k)
    shares = np.cumprod(np.r_[relevant / candidates, (place[-1] - place[:-1]) / (candidates - place[:-1])])
    return float(np.sum(shares / place))
