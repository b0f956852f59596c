"""Local features in ``.npy`` files: arrays that come with a data set, and reading single rows of them."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from openvse.corpus.splits import LEAKAGE
from openvse.errors import DataError
from openvse.features.store import as_float, as_inputs, positions_of
from openvse.types import Inputs

_BLOCK_BYTES = 64 * 2**20
_SAMPLED_GROUPS, _MOST_REPEATS = 256, 100


class ArrayRows:
    """An array ``[n, N, C]``, or ``[n, C]`` with one feature per row, of which any rows can be read without the others.

    Rows are read from their place in the file and not through a memory map, whose pages would count as memory of this
    process, in the end all 31 GiB of a file. It pickles as its path, so that each worker opens the file itself.
    """

    def __init__(self, path: Path, *, integers: bool = False) -> None:
        self.path, self._integers = path, integers
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except OSError as error:
            raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error
        except Exception as error:  # no .npy file, pickled objects, or a header that is damaged or wrong
            raise DataError(f"{path}: not a complete .npy file ({error}): download it again") from error
        if (
            array.dtype.kind not in ("fiu" if integers else "f")
            or array.ndim not in (2, 3)
            or not array.flags.c_contiguous
        ):
            kind = "numbers" if integers else "floating-point numbers"
            raise DataError(
                f"{path}: it holds {array.dtype} {list(array.shape)}, but needs {kind} [n, N, C] or [n, C] in C "
                "order: save the array with numpy.save(path, numpy.ascontiguousarray(features))"
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
        """Return rows, ``[count, N, C]``. Raise DataError if the file has become shorter since it was opened."""
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        # One call reads at most 2 GiB. A block is far smaller.
        if os.preadv(self._file, [rows.data], self._offset + row * self._row_bytes) != rows.nbytes:
            raise DataError(f"{self.path}: it became shorter since it was opened: copy it again, then restart")
        return rows

    def blocks(self, multiple: int = 1) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows in blocks of a few MB, each a multiple of some rows, with the number of its first row."""
        step = max(1, _BLOCK_BYTES // max(1, self._row_bytes * multiple)) * multiple
        for start in range(0, len(self), step):
            yield start, self.read(start, min(step, len(self) - start))

    def repeats(self) -> int:
        """Return how many equal rows each image has, as in files that repeat it for each caption. Usually 1.

        The first image's number counts. Only some groups all over the file are compared, since reading the 31 GiB of
        COCO would take minutes. ``data check`` reads all.
        """
        most = min(_MOST_REPEATS, len(self))
        first = self.read(0).tobytes() if most else b""
        size = next((row for row in range(1, most) if self.read(row).tobytes() != first), max(1, most))
        if size == 1:
            return 1
        last = len(self) // size - 1
        sampled = np.unique(np.linspace(0, last, _SAMPLED_GROUPS).round().astype(int)) * size
        odd = [start for start in sampled.tolist() if len(uneven_groups(self.read(start, size), size))]
        if odd or len(self) % size:
            where = f"rows {odd[0]} to {odd[0] + size - 1} differ" if odd else f"it has {len(self)} rows"
            raise DataError(f"{self.path}: its first {size} rows are equal, but {where}: download it again")
        return size


def uneven_groups(rows: np.ndarray, size: int) -> Int[np.ndarray, "odd"]:
    """Return which groups of ``size`` rows of a contiguous array are not equal bit for bit. NaN equals itself."""
    bits = rows.view(np.uint8).reshape(len(rows) // size, size, -1)
    return np.flatnonzero((bits != bits[:, :1]).any(axis=(1, 2)))


@dataclass(frozen=True)
class ArrayPart:
    """The images of one split, and how many equal rows each has in the file, of which the first is read."""

    split: str
    rows: ArrayRows
    ids: tuple[str, ...]
    repeats: int = 1


class ArrayFeatures:
    """Local features of images in ``.npy`` files, read a batch at a time. A ``FeatureSource``."""

    def __init__(self, parts: Sequence[ArrayPart]) -> None:
        self.parts = tuple(parts)
        widths = {part.rows.shape[2]: part.rows.path for part in self.parts}
        if len(widths) != 1:
            listed = " and ".join(f"{path} is {width} wide" for width, path in widths.items())
            raise DataError(f"{listed}: give all splits features of one extractor")
        places = {
            item: (number, image * part.repeats)
            for number, part in enumerate(self.parts)
            for image, item in enumerate(part.ids)
        }
        self.dim = self.parts[0].rows.shape[2]
        """C, the width of a local feature."""
        self._position_of = dict(zip(places, range(len(places)), strict=True))
        self._places = np.array(list(places.values()), dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: object) -> bool:
        return item in self._position_of

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of items. Raise StoreError, with the first three, if some are missing."""
        return positions_of(
            ids,
            self._position_of,
            source=str(self.parts[0].rows.path.parent),
            remedy="use the images that this data set lists",
        )

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items from disk as ``float32 [B, N, C]`` values, padded with zeros, and their mask.

        Rows of zeros at the end of an item are padding, as in the files of detectors that find 10 to 100 regions.
        """
        places = self._places[positions]
        lengths = np.array([part.rows.shape[1] for part in self.parts])[places[:, 0]]
        dtype = np.result_type(*(part.rows.dtype for part in self.parts))
        stored = np.zeros((len(positions), lengths.max(initial=0), self.dim), dtype=dtype)
        for item, length, (part, row) in zip(stored, lengths.tolist(), places.tolist(), strict=True):
            item[:length] = self.parts[part].rows.read(row)[0]
        for number in np.flatnonzero(~stored[np.arange(len(stored)), lengths - 1].any(axis=1)):
            lengths[number] = max(1, num_real(stored[number]))
        return as_float(as_inputs(stored[:, : int(lengths.max(initial=0))], lengths))

    def faults(self) -> Iterator[str]:
        """Read all numbers, a block at a time, and yield a line for each kind of fault in each split.

        Faults are features that are not finite numbers, groups of rows that should be equal and are not, and images
        whose features are also in an earlier split.
        """
        split_of: dict[bytes, str] = {}
        for part in self.parts:
            for what, images in _scan(part, split_of).items():
                if images:
                    yield f"{what.format(count=len(images))} (first: {part.ids[images[0]]} in {part.rows.path})"


def _scan(part: ArrayPart, split_of: dict[bytes, str]) -> dict[str, list[int]]:
    """Return the images of a file with each fault, and record in ``split_of`` which features were seen."""
    broken: list[int] = []
    uneven: list[int] = []
    leaked: list[int] = []
    for start, rows in part.rows.blocks(part.repeats):
        first = start // part.repeats
        images = np.ascontiguousarray(rows[:: part.repeats])
        broken += (first + np.flatnonzero(~np.isfinite(images).all(axis=(1, 2)))).tolist()
        uneven += (first + uneven_groups(rows, part.repeats)).tolist()
        for number, image in enumerate(images, start=first):
            if split_of.setdefault(hashlib.blake2b(image.data, digest_size=16).digest(), part.split) != part.split:
                leaked.append(number)
    return {
        "features: {count} image(s) have numbers that are not finite": broken,
        f"features: {{count}} image(s) whose {part.repeats} rows are not equal": uneven,
        f"{LEAKAGE}: {{count}} image(s) of {part.split} have the features of an image of another split": leaked,
    }


def num_real(rows: Shaped[np.ndarray, "N C"]) -> int:
    """Return how many rows an item has without the rows of zeros with which an array pads shorter items."""
    return int(np.flatnonzero(rows.any(axis=1)).max(initial=-1)) + 1
