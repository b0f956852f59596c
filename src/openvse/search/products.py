"""Inner products of many stored embeddings with some of queries, at the speed at which memory can be read.

For one query, a product costs little more than reading the embeddings, but only with a kernel that multiplies and adds
in one pass. In single precision, torch's product of a matrix and a vector takes twice as long; NumPy's ``einsum``,
which lets go of Python's lock, reaches the speed of a sum if every thread takes a part of the rows. In half precision,
torch's product does. For several queries, what matters is that a block and its conversion stay in the cache.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

MARGIN = 2e-5
"""By how much a product in single precision may differ from the exact one, of embeddings of unit length."""

HALF_MARGIN = 1.2e-3
"""The same where the query and the score are rounded to the 11 bits of half precision."""

_CACHE_VALUES = 1 << 21  # numbers in single precision that fit into the cache of a processor
_FEW_ROWS = 2048  # not worth a second thread


def inner_products(
    rows: Float[Tensor, "n D"], queries: Float[Tensor, "M D"]
) -> tuple[Float[Tensor, "n M"], float]:
    """Return the inner products of rows with queries, and by how much they may be off (for unit length).

    Args:
        rows: stored embeddings, in single or half precision.
        queries: in single precision.
    """
    if rows.dtype not in (torch.float32, torch.float16):
        rows = rows.float()
    if len(queries) == 1:
        if rows.dtype == torch.float16:  # half the memory to read, and nothing to convert
            return torch.mv(rows, queries[0].half()).float().unsqueeze(1), HALF_MARGIN
        return _one(rows, queries[0]).unsqueeze(1), MARGIN
    return _several(rows, queries), MARGIN


def _one(rows: Float[Tensor, "n D"], query: Float[Tensor, "D"]) -> Float[Tensor, "n"]:
    """Multiply with one query: every thread of torch's number takes some rows after the other."""
    products = np.empty(len(rows), np.float32)
    stored, asked = rows.numpy(), query.contiguous().numpy()

    def multiply(start: int, stop: int) -> None:
        np.einsum("nd,d->n", stored[start:stop], asked, out=products[start:stop])

    threads = torch.get_num_threads()
    if threads == 1 or len(rows) < _FEW_ROWS:
        multiply(0, len(rows))
        return torch.from_numpy(products)
    step = max(
        _FEW_ROWS, -(-len(rows) // (4 * threads))
    )  # several each, as other work may slow one of them down
    starts = iter(range(0, len(rows), step))

    def multiply_some() -> None:
        for start in starts:  # every start comes to one of the threads
            multiply(start, start + step)

    others = [_pool(os.getpid(), threads - 1).submit(multiply_some) for _ in range(threads - 1)]
    multiply_some()
    for other in others:
        other.result()
    return torch.from_numpy(products)


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return threads that wait for work; a process that was forked has none of those of its parent."""
    return ThreadPoolExecutor(threads, thread_name_prefix="openvse-search")


def _several(rows: Float[Tensor, "n D"], queries: Float[Tensor, "M D"]) -> Float[Tensor, "n M"]:
    """Multiply block by block, so that what is converted to single precision never leaves the cache."""
    products = torch.empty(len(rows), len(queries))
    columns = queries.T.contiguous()
    step = max(1, (2 if rows.dtype == torch.float32 else 1) * _CACHE_VALUES // rows.shape[1])
    room = None if rows.dtype == torch.float32 else torch.empty(min(step, len(rows)), rows.shape[1])
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        if room is not None:
            some = room[: len(some)].copy_(some)
        torch.mm(some, columns, out=products[start : start + step])
    return products
