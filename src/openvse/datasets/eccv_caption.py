"""ECCV Caption: all captions that fit some of COCO's images, and the reverse (Chun et al., ECCV 2022)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import DataError

I2T, T2I, ORIGINAL = (
    "eccv_image_to_caption.json",
    "eccv_caption_to_image.json",
    "original_caption_to_image.json",
)

Positives = Mapping[int, tuple[int, ...]]
"""The positive items of each query, as numbers of COCO."""


@dataclass(frozen=True)
class EccvCaption:
    """The positives of ECCV Caption.

    Attributes:
        i2t: the captions that fit each image that is a query.
        t2i: the images that fit each caption that is a query; not the reverse of ``i2t``, as queries were chosen.
        captions: the captions of the gallery (25,000, five for each of COCO's 5,000 test images), or None if the file
            that lists them is not there.
    """

    i2t: Positives
    t2i: Positives
    captions: frozenset[int] | None = None


def read_eccv_caption(folder: Path) -> EccvCaption:
    """Read the JSON files of the package ``eccv_caption``: objects of a query's number and a list of positives.

    Args:
        folder: the folder ``eccv_caption/data`` of the package or repository, or one above it.

    Raises:
        DataError: a file is missing or has another form.
    """
    places = (folder, folder / "data", folder / "eccv_caption" / "data")
    root = next((place for place in places if (place / I2T).is_file()), None)
    if root is None:
        raise DataError(
            f"{folder}: no {I2T} of ECCV Caption: give the folder eccv_caption/data of the package eccv_caption"
        )
    original = _read(root / ORIGINAL) if (root / ORIGINAL).is_file() else None
    return EccvCaption(
        _read(root / I2T), _read(root / T2I), None if original is None else frozenset(original)
    )


def _read(path: Path) -> dict[int, tuple[int, ...]]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        found = {
            int(query): tuple(dict.fromkeys(int(item) for item in items)) for query, items in tree.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not in the form of ECCV Caption ({error}): download it again") from error
    if not found or not all(found.values()):
        raise DataError(f"{path}: a query without a positive item, or no queries: download it again")
    return found
