"""Inner products of stored embeddings with queries, and the order of hits by score and position.

For one query, a product costs little more than reading the embeddings, but only with a kernel that multiplies and adds
in one pass. In single precision, torch's product of a matrix and a vector takes twice as long. NumPy's ``einsum``,
which releases Python's lock, reaches the speed of a sum if every thread has a part of the rows. In half precision,
torch's product does. For several queries, a block and its conversion must stay in the cache.

PyTorch is used where the process has loaded it, and not needed.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float, Int

from openvse.runtime.arrays import loaded_torch

MARGIN = 2e-5
"""By how much a product in single precision may differ from the exact one, of embeddings of unit length."""

HALF_MARGIN = 1.2e-3
"""The same where the query and the score are rounded to the 11 bits of half precision."""

_CACHE_VALUES = 1 << 21  # numbers in single precision that fit into the cache of a processor
_FEW_ROWS = 2048  # not worth a second thread
_LOW = 0xFFFFFFFF
_GROUP = 64


def inner_products(
    rows: Float[np.ndarray, "n D"], queries: Float[np.ndarray, "M D"]
) -> tuple[Float[np.ndarray, "n M"], float]:
    """Return the inner products of rows in any precision, and by how much they may be off (for unit length)."""
    if rows.dtype not in (np.float32, np.float16):
        rows = rows.astype(np.float32)
    if len(queries) > 1:
        return _several(rows, queries), MARGIN
    torch = loaded_torch()
    if rows.dtype == np.float16:
        if torch is None:
            return _several(rows, queries), MARGIN
        # Half the memory to read, and nothing to convert.
        products = torch.mv(torch.from_numpy(rows), torch.from_numpy(queries[0]).half())
        return products.float().unsqueeze(1).numpy(), HALF_MARGIN
    return _one(rows, queries[0])[:, np.newaxis], MARGIN


def _one(rows: Float[np.ndarray, "n D"], query: Float[np.ndarray, "D"]) -> Float[np.ndarray, "n"]:
    """Multiply with one query: every thread takes some rows after the other."""
    products = np.empty(len(rows), np.float32)
    asked = np.ascontiguousarray(query)

    def multiply(start: int, stop: int) -> None:
        np.einsum("nd,d->n", rows[start:stop], asked, out=products[start:stop])

    if (threads := _num_threads()) == 1 or len(rows) < _FEW_ROWS:
        multiply(0, len(rows))
        return products
    # Several starts for each thread, because other work may slow one of them down.
    step = max(_FEW_ROWS, -(-len(rows) // (4 * threads)))
    starts = iter(range(0, len(rows), step))

    def multiply_some() -> None:
        for start in starts:  # every start comes to one of the threads
            multiply(start, start + step)

    others = [_pool(os.getpid(), threads - 1).submit(multiply_some) for _ in range(threads - 1)]
    multiply_some()
    for other in others:
        other.result()
    return products


def _num_threads() -> int:
    if (torch := loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return threads that wait for work. A forked process has none of its parent's threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="openvse-search")


def _several(rows: Float[np.ndarray, "n D"], queries: Float[np.ndarray, "M D"]) -> Float[np.ndarray, "n M"]:
    """Multiply block by block, so that the converted numbers never leave the cache."""
    torch = loaded_torch()
    products = np.empty((len(rows), len(queries)), np.float32)
    columns = np.ascontiguousarray(queries.T)
    is_single = rows.dtype == np.float32
    step = max(1, (2 if is_single else 1) * _CACHE_VALUES // rows.shape[1])
    room = None if is_single else np.empty((min(step, len(rows)), rows.shape[1]), np.float32)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        out = products[start : start + step]
        if torch is None:
            if room is not None:
                np.copyto(room[: len(some)], some)
                some = room[: len(some)]
            np.matmul(some, columns, out=out)
            continue
        taken = torch.from_numpy(some)
        if room is not None:
            taken = torch.from_numpy(room[: len(some)]).copy_(taken)
        torch.mm(taken, torch.from_numpy(columns), out=torch.from_numpy(out))
    return products


def pack(scores: Float[np.ndarray, "Q n"], positions: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float. Bits of negative floats sort in reverse, so all except
    their sign are flipped. They go into the upper half, the inverted position into the lower.
    """
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # adding 0 makes -0.0 and 0.0 one
    high = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64) << 32
    return np.asarray(high + (_LOW - positions))


def unpack(keys: Int[np.ndarray, "Q k"]) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
    """Return the scores and positions that ``pack`` packed."""
    high = (keys >> 32).astype(np.int32)
    bits = np.where(high < 0, high ^ 0x7FFFFFFF, high).astype(np.int32)
    return bits.view(np.float32), _LOW - (keys & _LOW)


def largest(keys: Int[np.ndarray, "Q n"], count: int) -> Int[np.ndarray, "Q k"]:
    """Return the keys of the best hits of every query, best first, at most ``count``."""
    left_out = keys.shape[1] - count
    if left_out > 0:
        keys = np.partition(keys, left_out, axis=1)[:, left_out:]
    return np.asarray(np.sort(keys, axis=1)[:, ::-1])


def promising(
    scores: Float[np.ndarray, "n Q"], lowest: Float[np.ndarray, "Q"], margin: float, top_k: int
) -> Int[np.ndarray, "m"]:
    """Return the rows that may be among the best ``top_k`` of a query, where each score may be off by half the margin.

    Of groups of rows, only the best score is compared first. The ``top_k``-th of these is a lower bound of the
    ``top_k``-th score, and a group below the bound is left out as a whole.
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
