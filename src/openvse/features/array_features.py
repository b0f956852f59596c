"""Local features that come with a data set as arrays: a ``FeatureSource`` with one file for each split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from openvse.corpus.splits import LEAKAGE
from openvse.errors import DataError
from openvse.features.array_rows import ArrayRows, uneven_groups
from openvse.features.items import as_inputs, num_real, positions_of
from openvse.types import Inputs


@dataclass(frozen=True)
class ArrayPart:
    """The images of one split.

    Attributes:
        split: "train", "validation" or "test".
        rows: the file.
        ids: an identifier for each image.
        repeats: the number of equal rows per image, of which the first is read.
    """

    split: str
    rows: ArrayRows
    ids: tuple[str, ...]
    repeats: int = 1


class ArrayFeatures:
    """Local features of images in ``.npy`` files, read a batch at a time; a ``FeatureSource``.

    Args:
        parts: the files; an image that is in several is read from the last.

    Raises:
        DataError: the files differ in C.
    """

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
        self._position_of = dict(zip(places, range(len(places)), strict=True))
        self._places = np.array(list(places.values()), dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: object) -> bool:
        return item in self._position_of

    @property
    def dim(self) -> int:
        """C, the width of a local feature."""
        return self.parts[0].rows.shape[2]

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of the items.

        Raises:
            StoreError: some items are missing; the first three are named.
        """
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
        return as_inputs(stored[:, : int(lengths.max(initial=0))], lengths)

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
    """Return the images of a file with each fault; record in ``split_of`` which features were seen."""
    broken: list[int] = []
    uneven: list[int] = []
    leaked: list[int] = []
    for start, rows in part.rows.blocks(part.repeats):
        first = start // part.repeats
        images = np.ascontiguousarray(rows[:: part.repeats])
        broken += (first + np.flatnonzero(~np.isfinite(images).all(axis=(1, 2)))).tolist()
        uneven += (first + uneven_groups(rows, part.repeats)).tolist()
        for number, image in enumerate(images, start=first):
            digest = hashlib.blake2b(image.data, digest_size=16).digest()
            if split_of.setdefault(digest, part.split) != part.split:
                leaked.append(number)
    return {
        "features: {count} image(s) have numbers that are not finite": broken,
        f"features: {{count}} image(s) whose {part.repeats} rows are not equal": uneven,
        f"{LEAKAGE}: {{count}} image(s) of {part.split} have the features of one of another split": leaked,
    }
