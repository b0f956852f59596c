"""Entries of a file of features made elsewhere: items with their local features, and boxes if there are any."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from openvse.errors import BadFeaturesError, DataError
from openvse.files import read_lines

FEATURES = ("features", "x", "feat", "feats", "image_features")
BOXES = ("boxes", "bbox", "image_bb")
COUNT = ("num_boxes", "num_bbox")
WIDTH = ("image_w", "img_w", "image_width")
HEIGHT = ("image_h", "img_h", "image_height")
"""The names of the features in the files of common tools, in the order of search."""

BEYOND = 0.01
"""How far a box may extend beyond its image, as a fraction of it, since detectors round. The excess is cut off."""

_MOST = 1 << 28  # bytes that the features of an item may take
_DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, TokenError),
)


@dataclass(frozen=True)
class Local:
    """The local features of one item as the file holds them.

    Attributes:
        features: one row for each local feature.
        boxes: left, top, right and bottom of each feature, in pixels or as fractions of the image.
        size: width and height of the image in pixels, which boxes in pixels need.
    """

    features: Shaped[np.ndarray, "N C"]
    boxes: Shaped[np.ndarray, "..."] | None = None
    size: tuple[float, float] | None = None

    def relative_boxes(self) -> Float[np.ndarray, "N 4"] | None:
        """Return the boxes as fractions of the image's width and height, or None if there are none.

        Boxes without a number above 1 are already fractions.

        Raises:
            BadFeaturesError: there is not one box per feature, boxes in pixels lack the size of the image, or boxes
                extend beyond the image.
        """
        if self.boxes is None:
            return None
        if self.boxes.shape != (len(self.features), 4) or self.boxes.dtype.kind not in "fiu":
            stored = f"{self.boxes.dtype} {list(self.boxes.shape)}"
            raise BadFeaturesError(
                f"its boxes are {stored}, not [{len(self.features)}, 4]: give one for each local feature"
            )
        boxes = self.boxes.astype(np.float32)
        if boxes.max(initial=0.0) > 1:
            if self.size is None or min(self.size) <= 0:
                raise BadFeaturesError(
                    "its boxes are in pixels, but the size of its image is missing: use --no-boxes"
                )
            boxes /= np.array([*self.size, *self.size], np.float32)
        if not (boxes.min(initial=0.0) >= -BEYOND and boxes.max(initial=0.0) <= 1 + BEYOND):
            of_size = "" if self.size is None else f" of {self.size[0]:g} x {self.size[1]:g}"
            raise BadFeaturesError(
                f"its boxes extend beyond its image{of_size}, or are not numbers: check the size"
            )
        return boxes.clip(0, 1)


@dataclass(frozen=True)
class FeatureEntry:
    """One item of a file, whose features are read on demand.

    Attributes:
        id: the identifier in the file.
        place: the place of the item in the file, for messages.
        read: a function that returns the features. It raises BadFeaturesError if they cannot be used.
    """

    id: str
    place: str
    read: Callable[[], Local]


@contextmanager
def reading_item() -> Iterator[None]:
    """Turn the errors of readers of damaged files into BadFeaturesError, so that only this item is left out."""
    try:
        yield
    except _DAMAGE as error:
        raise BadFeaturesError(f"it cannot be read ({error}): cut off or damaged") from error


def check_bytes(size: int) -> None:
    """Raise BadFeaturesError for an array too large in memory to be features."""
    if size > _MOST:
        raise BadFeaturesError(f"it would take {size:,} bytes, but at most {_MOST:,} are read for an item")


def local_of(fields: Mapping[str, Any]) -> Local:
    """Return the features of an item from named arrays, for instance from an ``.npz`` file.

    Features that are stored as ``[C, N]``, as some tools do, are transposed if boxes or their count give N.
    """
    features = as_rows(_first(fields, FEATURES))
    boxes = None if (stored := _first(fields, BOXES)) is None else np.asarray(stored)
    count = entry_number(fields, COUNT)
    number = int(count) if count is not None else len(features) if boxes is None else len(boxes)
    if features.shape[0] != number == features.shape[1]:
        features = features.T
    if not 0 <= number <= len(features):
        raise BadFeaturesError(f"it has {number} boxes and {len(features)} local features")
    width, height = entry_number(fields, WIDTH), entry_number(fields, HEIGHT)
    size = None if width is None or height is None else (width, height)
    return Local(features[:number], None if boxes is None else boxes[:number], size)


def as_rows(array: Any) -> Shaped[np.ndarray, "N C"]:
    """Return features as rows ``[N, C]``. Raise BadFeaturesError if they are no numbers, or have more axes."""
    if array is None:
        raise BadFeaturesError(f"it has no features: store them under one of {', '.join(FEATURES)}")
    rows = np.asarray(array)
    if rows.dtype.kind not in "fiu":
        raise BadFeaturesError(f"its features are {rows.dtype}, not numbers")
    while rows.ndim > 2 and rows.shape[0] == 1:
        rows = rows[0]
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2:
        raise BadFeaturesError(f"its features have shape {list(rows.shape)}, not [N, C]")
    return rows


def read_id_file(path: Path, count: int, what: str) -> list[str]:
    """Return ``count`` identifiers, one a line. Raise DataError if the file has another number of lines."""
    try:
        ids = read_lines(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"ids {path} cannot be read ({error}): give a text file with one id per line"
        ) from error
    if len(ids) != count:
        raise DataError(
            f"ids {path} has {len(ids)} lines for the {count} items of {what}: give one id per item"
        )
    return [item.strip() for item in ids]


def entry_number(fields: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the number under the first of some names, or None. Raise BadFeaturesError if it is no number."""
    number = _first(fields, names)
    try:
        return None if number is None else float(np.asarray(number).item())
    except (TypeError, ValueError) as error:
        raise BadFeaturesError(f"its {names[0]} is not a number") from error


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    field = next((fields[name] for name in names if name in fields), None)
    if getattr(field, "external", None) or getattr(field, "is_virtual", False):
        raise BadFeaturesError("its numbers are in another file than the HDF5 file: copy them into it")
    check_bytes(int(getattr(field, "nbytes", 0)))
    return field
