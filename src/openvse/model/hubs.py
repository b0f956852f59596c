"""Query bank normalisation: a bank of queries shows which items of a gallery are hubs, which are near to everything.

What an item g attracts is the soft mean of its scores with the queries of a bank B,

    a(g)  =  1 / beta * log( 1 / |B| * sum_b exp(beta s(b, g)) )

and the normalised score ``s(q, g) - a(g)`` orders items as the inverted softmax ``exp(beta s(q, g)) / sum_b exp(beta
s(b, g))`` does. The dynamic inverted softmax (Bogolin et al., Cross Modal Retrieval with Querybank Normalisation, CVPR
2022) orders by it only for a query whose best item by s is also the best one of some query of the bank. The published
code has the sum in place of the mean, which moves all scores by the same number.

These are arrays, as a search without PyTorch needs them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

BETA = 20.0
"""The beta of the paper."""

BETAS = (2.5, 5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 57.0, 80.0, 160.0)
"""The values among which validation chooses."""


@dataclass(frozen=True)
class Attraction:
    """What the items of a gallery attract of a bank of queries.

    Attributes:
        amounts: a(g) of each item, in the units of a score.
        is_best: whether it is the best item of some query of the bank.
    """

    amounts: Float[np.ndarray, "n"]
    is_best: Bool[np.ndarray, "n"]


class BankScores:
    """Gathers the scores of a bank's queries with a gallery, a block at a time, for one beta or several.

    Args:
        num_items: the size of the gallery.
        num_queries: the size of the bank.
        betas: above 0.

    Attributes:
        best: the score of the best item of each query among those that were seen; minus infinity before.
        best_item: its position; of equal ones, that of the item that was seen first; -1 before.
    """

    def __init__(self, num_items: int, num_queries: int, betas: Sequence[float]) -> None:
        self._betas = betas
        self._sums = np.full((len(betas), num_items), -np.inf)
        self.best = np.full(num_queries, -np.inf, np.float32)
        self.best_item = np.full(num_queries, -1, np.int64)

    def see(
        self,
        items: Int[np.ndarray, "n"],
        queries: Int[np.ndarray, "q"],
        scores: Float[np.ndarray, "n q"],
        *,
        add: bool = True,
    ) -> None:
        """Take the scores of some items with some queries, each pair once; without ``add`` only for the best items."""
        highest = scores.max(axis=1)
        for sums, beta in zip(self._sums, self._betas, strict=True) if add else ():
            parts = np.exp(beta * (scores - highest[:, np.newaxis]))
            sums[items] = np.logaddexp(
                sums[items], np.log(parts.sum(axis=1, dtype=np.float64)) + beta * highest
            )
        place = scores.argmax(axis=0)
        found = scores[place, np.arange(len(queries))]
        better = found > self.best[queries]
        self.best[queries[better]] = found[better]
        self.best_item[queries[better]] = items[place[better]]

    def attraction(self, number: int = 0) -> Attraction:
        """Return what the items attract by one of the betas."""
        amounts = (self._sums[number] - np.log(len(self.best))) / self._betas[number]
        is_best = np.zeros(len(amounts), bool)
        is_best[self.best_item[self.best_item >= 0]] = True
        return Attraction(amounts.astype(np.float32), is_best)
