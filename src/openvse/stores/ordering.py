"""The order of hits, by score and then by the position in the index, and which rows may be among the first."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_LOW = 0xFFFFFFFF
_GROUP = 64


def pack(scores: Float[Tensor, "Q n"], positions: Int[Tensor, "n"]) -> Int[Tensor, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float; those of negative floats sort in reverse, so
    all but their sign are flipped. They go into the upper half, the inverted position into the lower.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0 makes -0.0 and 0.0 one
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high + (_LOW - positions)


def unpack(keys: Int[Tensor, "Q k"]) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Return the scores and positions that ``pack`` packed."""
    high = (keys >> 32).int()
    bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def largest(keys: Int[Tensor, "Q n"], count: int) -> Int[Tensor, "Q k"]:
    """Return the keys of the best hits of every query, best first; fewer than ``count`` where there are fewer."""
    return keys.topk(min(count, keys.shape[1]), dim=1).values


def promising(
    scores: Float[np.ndarray, "n Q"], lowest: Float[np.ndarray, "Q"], margin: float, top_k: int
) -> Int[np.ndarray, "m"]:
    """Return the rows that may be among the best ``top_k`` of a query.

    Args:
        scores: of the rows; each may be off by half of the margin.
        lowest: what a row must reach at least.
        margin: how far below the bound a row is still promising.
        top_k: how many are wanted.

    Of groups of rows, only the best score is looked at first: the ``top_k``-th of these is a lower bound of the
    ``top_k``-th score, and a group below the bound is left out as a whole. NumPy does it without waking torch's
    threads, which would cost as much as the work.
    """
    count, num_queries = scores.shape
    size = _GROUP if count >= 4 * _GROUP * top_k else 1
    whole = count // size * size
    sets = (-1, size) if num_queries == 1 else (-1, size, num_queries)
    best = scores[:whole].reshape(sets).max(axis=1).reshape(-1, num_queries)
    if len(best) >= top_k:
        bound = np.partition(best, len(best) - top_k, axis=0)[len(best) - top_k]
        lowest = np.maximum(lowest, bound - margin)
    groups = np.flatnonzero((best >= lowest).any(axis=1))
    if size == 1:
        return groups
    inside = (groups[:, np.newaxis] * size + np.arange(size)).reshape(-1)
    rows: np.ndarray = np.concatenate([inside, np.arange(whole, count)])
    near: np.ndarray = rows[(scores[rows] >= lowest).any(axis=1)]
    return near
