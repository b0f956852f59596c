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

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

BETA = 20.0
"""The beta of the paper."""

BETAS = (2.5, 5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 57.0, 80.0, 160.0)
"""The values among which validation chooses."""

_SIDE = 1024  # of a block of scores


class Attraction(NamedTuple):
    """What the items of a gallery attract of a bank: a(g) of each, and whether it is the best item of some query."""

    amounts: Float[np.ndarray, "n"]
    is_best: Bool[np.ndarray, "n"]


def measure_attraction(
    score: Callable[[slice, slice], Float[np.ndarray, "i q"]],
    num_items: int,
    num_queries: int,
    betas: Sequence[float],
) -> tuple[Float[np.ndarray, "b n"], Float[np.ndarray, "m"], Int[np.ndarray, "m"]]:
    """Score a gallery with a bank, a block at a time; ``score`` returns the scores of some items with some queries.

    Return a(g) of each item for each beta (there may be none), and for each query the score of its best item and its
    position. Of equal ones the first is best; in an empty gallery these are minus infinity and -1.
    """
    sums = np.full((len(betas), num_items), -np.inf)
    best, item = np.full(num_queries, -np.inf, np.float32), np.full(num_queries, -1, np.int64)
    starts = range(0, num_items, _SIDE), range(0, num_queries, _SIDE)
    for rows in (slice(start, min(start + _SIDE, num_items)) for start in starts[0]):
        for columns in (slice(start, min(start + _SIDE, num_queries)) for start in starts[1]):
            scores = score(rows, columns)
            highest = scores.max(axis=1)
            for of_beta, beta in zip(sums, betas, strict=True):
                parts = np.exp(beta * (scores - highest[:, np.newaxis])).sum(axis=1, dtype=np.float64)
                of_beta[rows] = np.logaddexp(of_beta[rows], np.log(parts) + beta * highest)
            place = scores.argmax(axis=0)
            highest = scores[place, np.arange(len(place))]
            better = highest > best[columns]
            best[columns] = np.where(better, highest, best[columns])
            item[columns] = np.where(better, place + rows.start, item[columns])
    amounts = (sums - np.log(max(1, num_queries))) / np.reshape(betas, (-1, 1))
    return amounts.astype(np.float32), best, item
