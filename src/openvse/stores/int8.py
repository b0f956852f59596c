"""Embeddings in 8 bits, all scanned for each query, in a quarter of the memory of single precision.

    keys-<n>.i64      the key of the item of each point, -1 where it was replaced or removed
    scales-<n>.f32    the scale of each point
    codes-<n>.i8      [points, D]

An embedding is divided by its largest absolute value over 127 and rounded, with one scale a vector. A scale for each
dimension keeps no more of the true neighbours (docs/engines.md has the figures) and would have to be fitted to data.

Points are appended, and the keys come last. So the remains of an interruption are cut to the points that are whole in
all three. When most points are of no use, the rest is copied into files of the next number.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError
from openvse.runtime.arrays import loaded_torch
from openvse.stores.base import ItemFacts, VectorStore, Within
from openvse.stores.choice import EngineAddress

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


_BLOCK = 1 << 16  # points scored at once
_NAME = re.compile(r"keys-(\d+)\.i64")


class Int8Store(VectorStore):
    """A store of points in 8 bits, in a folder. See ``VectorStore`` for the arguments."""

    def __init__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None:
        self._folder = folder = address.path
        self._num_embeddings, self._dim = num_embeddings, dim
        self._number = 0
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.is_dir():
            raise EngineError(f"the engine's folder {folder} is missing: run 'openvse index' again, which makes it")
        numbers = [int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        self._open(max(numbers, default=0))

    def put(self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[ItemFacts]) -> None:
        self.remove(keys)
        codes, scales = quantised(vectors.reshape(-1, self._dim).astype(np.float32))
        first = len(self._keys)
        new = np.repeat(keys, self._num_embeddings).astype(np.int64)
        for name, content, width in (("codes", codes, self._dim), ("scales", scales, 4), ("keys", new, 8)):
            _write(self._path(name), content, first * width)
        self._open(self._number)

    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        """Remove items: their points lose their keys."""
        rows = np.flatnonzero(np.isin(self._keys, keys))
        if not len(rows):
            return
        self._keys[rows] = -1
        _write(self._path("keys"), self._keys)

    def nearest(self, queries: Float[np.ndarray, "M D"], count: int, within: Within) -> list[Int[np.ndarray, "_"]]:
        """Return the keys of the best points for each query, by the products of the codes."""
        usable = self._keys >= 0
        if within.keys is not None:
            usable &= np.isin(self._keys, within.keys)
        columns = quantised(queries)[0].T.copy()
        best = np.full(len(queries), -np.inf, np.float32)
        rows: list[Int[np.ndarray, "n"]] = []
        scores: list[Float[np.ndarray, "n M"]] = []
        for start in range(0, len(self._keys), _BLOCK):
            here = np.flatnonzero(usable[start : start + _BLOCK])
            if not len(here):
                continue
            some = slice(start, start + _BLOCK)
            products = _products(self._codes[some], columns) * self._scales[some, np.newaxis]
            products = products if len(here) == len(products) else products[here]
            chosen = promising(products, best, 0.0, count)
            rows.append(here[chosen] + start)
            scores.append(products[chosen])
            if len(chosen) >= count:
                bound = np.partition(products[chosen], len(chosen) - count, axis=0)[len(chosen) - count]
                best = np.maximum(best, bound)
        if not rows:
            return [np.empty(0, np.int64) for _ in queries]
        joined, keys = np.concatenate(scores), self._keys[np.concatenate(rows)]
        wanted = min(count, len(joined))
        return [keys[np.argpartition(-one, wanted - 1)[:wanted]] for one in joined.T]

    def num_points(self) -> int:
        return int((self._keys >= 0).sum())

    def finish(self) -> None:
        """Copy the points that are of use, where most are not."""
        used = np.flatnonzero(self._keys >= 0)
        if 2 * len(used) >= len(self._keys):
            return
        contents = {"codes": self._codes, "scales": self._scales, "keys": self._keys}
        for name, content in contents.items():
            new = self._path(name, self._number + 1)
            _write(new.with_suffix(".new"), content[used])
            new.with_suffix(".new").replace(new)
        for name in reversed(contents):  # a reader that has mapped them keeps them
            self._path(name).unlink(missing_ok=True)
        self._open(self._number + 1)

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files."""

    def _path(self, name: str, number: int | None = None) -> Path:
        endings = {"keys": "i64", "scales": "f32", "codes": "i8"}
        return self._folder / f"{name}-{self._number if number is None else number}.{endings[name]}"

    def _open(self, number: int) -> None:
        self._number = number
        self._keys: np.ndarray = np.empty(0, np.int64)
        self._scales: np.ndarray = np.empty(0, np.float32)
        self._codes: np.ndarray = np.empty((0, self._dim), np.int8)
        if not self._path("keys").is_file():
            return
        keys = np.fromfile(self._path("keys"), np.int64)
        if not (self._path("scales").is_file() and self._path("codes").is_file()):
            return  # as an empty store, whose missing items are put again
        scales = np.fromfile(self._path("scales"), np.float32)
        if count := min(len(keys), len(scales), self._path("codes").stat().st_size // self._dim):
            codes = np.memmap(self._path("codes"), np.int8, "c", shape=(count, self._dim))
            self._keys, self._scales, self._codes = keys[:count], scales[:count], codes


def _write(path: Path, content: np.ndarray, start: int = 0) -> None:
    """Write an array as the end of a file, from a byte on, and wait until it is on the disk."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(start)
        file.write(np.ascontiguousarray(content).data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def quantised(vectors: Float[np.ndarray, "n D"]) -> tuple[Int[np.ndarray, "n D"], Float[np.ndarray, "n"]]:
    """Return vectors in 8 bits, and the scale of each. A code times the scale is nearly the number."""
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-30) / 127
    return np.rint(vectors / scales[:, np.newaxis]).astype(np.int8), scales.astype(np.float32)


def _products(codes: Int[np.ndarray, "n D"], columns: Int[np.ndarray, "D M"]) -> Float[np.ndarray, "n M"]:
    """Multiply in integers, as quick as the processor's instructions for 8 bits allow, or in floats without PyTorch."""
    if (torch := loaded_torch()) is None:
        return codes.astype(np.float32) @ columns.astype(np.float32)
    products: np.ndarray = torch._int_mm(torch.from_numpy(codes), torch.from_numpy(columns)).float().numpy()
    return products
