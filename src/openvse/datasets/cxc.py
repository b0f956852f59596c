"""Crisscrossed Captions: people's ratings of pairs of COCO's images and captions (Parekh et al., EACL 2021)."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError

POSITIVE = 3.0
"""The rating, from 0 to 5, from which on a pair counts as positive for retrieval."""

HEADERS = {
    "sits": ("caption", "image", "agg_score", "sampling_method"),
    "sts": ("caption1", "caption2", "agg_score", "sampling_method"),
    "sis": ("image1", "image2", "agg_score", "sampling_method"),
}
"""The columns of the files of each task: image-text, text-text and image-image."""

_METHODS = {
    "sits": ("c2i_original", "c2i_intrasim"),
    "sts": ("c2c_cocaption", "c2c_isim"),
    "sis": ("i2i_csim",),
}
_CAPTION = re.compile(r"sentid:(\d+)$")
_IMAGE = re.compile(r"^COCO_\w+_(\d+)\.jpg$")


@dataclass(frozen=True)
class RatedPairs:
    """Pairs with the mean rating of their annotators.

    Attributes:
        first: COCO's number of the first item of each pair (a caption, for image-text pairs).
        second: that of the second item.
        ratings: from 0 (unrelated) to 5.
    """

    first: Int[np.ndarray, "P"]
    second: Int[np.ndarray, "P"]
    ratings: Float[np.ndarray, "P"]


def read_cxc(folder: Path, split: str) -> dict[str, RatedPairs]:
    """Read the ratings of image-text (``sits``), text-text (``sts``) and image-image (``sis``) pairs.

    Format: ``sits_test.csv`` and so on, each with a header and the columns of ``HEADERS``. A caption is
    ``COCO_val2014:sentid:732091``, an image is ``COCO_val2014_000000365325.jpg``.

    Args:
        folder: the folder with the files, or the repository with ``data/``.
        split: "test" or "validation", Karpathy's split of COCO.

    Raises:
        DataError: a file is missing, has other columns or a value that does not fit.
    """
    part = {"test": "test", "validation": "val"}.get(split)
    if part is None:
        raise DataError(f"Crisscrossed Captions has no split {split!r}: give --split test or validation")
    places = [folder, folder / "data"]
    root = next((place for place in places if (place / f"sits_{part}.csv").is_file()), None)
    if root is None:
        raise DataError(
            f"{folder}: no sits_{part}.csv of Crisscrossed Captions: give the data/ folder of "
            f"github.com/google-research-datasets/Crisscrossed-Captions"
        )
    return {task: _read(root / f"{task}_{part}.csv", task) for task in HEADERS}


def _read(path: Path, task: str) -> RatedPairs:
    expected = HEADERS[task]
    rows = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            header = tuple(next(lines, ()))
            if header != expected:
                raise DataError(
                    f"{path}: its columns are {', '.join(header) or 'missing'}, and not {', '.join(expected)}: give "
                    f"the file with aggregated scores, of the published version"
                )
            rows = [_row(path, task, number, line) for number, line in enumerate(lines, 2)]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: it cannot be read ({error}): download it again") from error
    if not rows:
        raise DataError(f"{path}: it holds no pairs: download it again")
    first, second, ratings = zip(*rows, strict=True)
    return RatedPairs(np.array(first, dtype=np.int64), np.array(second, dtype=np.int64), np.array(ratings))


def _row(path: Path, task: str, number: int, line: list[str]) -> tuple[int, int, float]:
    if len(line) == len(HEADERS[task]) and line[3] in _METHODS[task]:
        one, other = (_IMAGE.search(each) or _CAPTION.search(each) for each in line[:2])
        rating = float(line[2]) if re.fullmatch(r"\d+(\.\d+)?", line[2]) else math.nan
        if one and other and 0 <= rating <= 5:
            return int(one[1]), int(other[1]), rating
    raise DataError(
        f"{path}, line {number}: {','.join(line)!r} is no rated pair: download the published file again"
    )
