"""The rows of one ``.npy`` file, each of which is read by itself."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int

from openvse.errors import DataError

_BLOCK_BYTES = 64 * 2**20
_SAMPLED_GROUPS = 256


class ArrayRows:
    """An array ``[n, N, C]``, or ``[n, C]`` with one feature per row, of which any rows can be read without the others.

    Rows are read from their place in the file and not through a memory map, whose pages would count as memory of this
    process, in the end all 31 GiB of a file. It pickles as its path, so that each worker opens the file itself.

    Args:
        path: an ``.npy`` file of floating-point numbers, in C order.
        integers: whether to accept integers too, which other tools may store.

    Raises:
        DataError: the file is missing, cut off, or holds something else.
    """

    def __init__(self, path: Path, *, integers: bool = False) -> None:
        self.path, self._integers = path, integers
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except OSError as error:
            raise DataError(f"{path}: it cannot be read ({error.strerror}); check the path") from error
        except ValueError as error:  # not an .npy file, or pickled objects, or shorter than its header says
            raise DataError(f"{path}: not a complete .npy file ({error}); download it again") from error
        if (
            array.dtype.kind not in ("fiu" if integers else "f")
            or array.ndim not in (2, 3)
            or not array.flags.c_contiguous
        ):
            kind = "numbers" if integers else "floating-point numbers"
            raise DataError(
                f"{path}: {array.dtype} {list(array.shape)} where {kind} [n, N, C] or [n, C] in C "
                "order are expected; save the array with numpy.save(path, numpy.ascontiguousarray(features))"
            )
        self.dtype, self._offset = array.dtype, array.offset
        num_local = 1 if array.ndim == 2 else int(array.shape[1])
        self.shape: tuple[int, int, int] = (len(array), num_local, int(array.shape[-1]))
        """n, N and C."""
        self._row_bytes = self.shape[1] * self.shape[2] * self.dtype.itemsize
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> tuple[Callable[[Path], ArrayRows], tuple[Path]]:
        return partial(ArrayRows, integers=self._integers), (self.path,)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, row: int, count: int = 1) -> np.ndarray:
        """Return consecutive rows, ``[count, N, C]`` in the number format of the file.

        Raises:
            DataError: the file has become shorter since it was opened.
        """
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        # One call reads at most 2 GiB; a block is far smaller.
        if os.preadv(self._file, [rows.data], self._offset + row * self._row_bytes) != rows.nbytes:
            raise DataError(
                f"{self.path}: it became shorter since it was opened; copy it again and start anew"
            )
        return rows

    def blocks(self, multiple: int = 1) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows in order, in blocks of a few megabytes, each with the number of its first row.

        Args:
            multiple: every block except the last holds a multiple of this number of rows.
        """
        step = max(1, _BLOCK_BYTES // max(1, self._row_bytes * multiple)) * multiple
        for start in range(0, len(self), step):
            yield start, self.read(start, min(step, len(self) - start))

    def repeats(self, most: int = 100) -> int:
        """Return how many equal rows each image has, as in files that repeat it for each caption; usually 1.

        The number is that of the first image. Only some groups all over the file are compared, since reading the 31 GiB
        of COCO would take minutes; ``data check`` reads all.

        Raises:
            DataError: some groups of this number of rows are equal and others are not.
        """
        most = min(most, len(self))
        first = self.read(0).tobytes() if most else b""
        size = next((row for row in range(1, most) if self.read(row).tobytes() != first), max(1, most))
        if size == 1:
            return 1
        last = len(self) // size - 1
        sampled = np.unique(np.linspace(0, last, _SAMPLED_GROUPS).round().astype(int)) * size
        odd = [start for start in sampled.tolist() if len(uneven_groups(self.read(start, size), size))]
        if odd or len(self) % size:
            where = f"rows {odd[0]} to {odd[0] + size - 1} differ" if odd else f"it has {len(self)} rows"
            raise DataError(
                f"{self.path}: its first {size} rows are equal, as if every image occurred {size} times, but "
                f"{where}; download the file again"
            )
        return size


def uneven_groups(rows: np.ndarray, size: int) -> Int[np.ndarray, "odd"]:
    """Return which groups of ``size`` consecutive rows are not equal bit for bit; NaN equals itself.

    Args:
        rows: ``[G * size, ...]``, contiguous.
        size: the number of rows in a group.
    """
    bits = rows.view(np.uint8).reshape(len(rows) // size, size, -1)
    return np.flatnonzero((bits != bits[:, :1]).any(axis=(1, 2)))
