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

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError
from openvse.runtime.arrays import loaded_torch
from openvse.stores.base import ItemFacts, VectorStore, Within
from openvse.stores.choice import EngineAddress
from openvse.stores.ranking import promising

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
