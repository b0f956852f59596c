"""Later judgements of COCO's pairs (Crisscrossed Captions, ECCV Caption), and their numbers of images and captions."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.corpus import Corpus
from openvse.datasets.layout import first_file, reading_json
from openvse.errors import DataError
from openvse.files import read_lines
from openvse_papers.datasets.coco import KARPATHY, OFFICIAL, official_captions

_NUMBER = re.compile(r"(\d+)\.\w+$")


def image_numbers(corpus: Corpus) -> Int[np.ndarray, "I"]:
    """Return COCO's number of each image, from its file name. Raise DataError if a name has another form."""
    matches = [_NUMBER.search(name) for name in corpus.image_ids]
    for name, match in zip(corpus.image_ids, matches, strict=True):
        if match is None:
            raise DataError(
                f"{corpus.name}: image {name!r} has no number of COCO in its name: give the data set coco"
            )
    return np.array([int(match[1]) for match in matches if match], dtype=np.int64)


def caption_numbers(root: Path, corpus: Corpus) -> Int[np.ndarray, "T"]:
    """Return COCO's number of each text of a corpus, from the corpus's own file."""
    numbered = _from_karpathy(root) or {
        name: _tidy(captions) for part in OFFICIAL for name, captions in official_captions(root, part)
    }
    numbers = np.full(len(corpus.captions), -1, dtype=np.int64)
    place: defaultdict[int, int] = defaultdict(int)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        known = numbered.get(corpus.image_ids[image], [])
        number, caption = known[place[image]] if place[image] < len(known) else (-1, "")
        place[image] += 1
        if caption != corpus.captions[text]:
            raise DataError(
                f"{root}: caption {place[image]} of {corpus.image_ids[image]} differs from the data set as it was "
                f"opened with: give the folder of COCO as it was published"
            )
        numbers[text] = number
    return numbers


def _from_karpathy(root: Path) -> dict[str, list[tuple[int, str]]]:
    if (path := first_file(root, KARPATHY)) is None:
        return {}
    with reading_json(path, "Karpathy's format with numbers of captions") as tree:
        return {
            entry["filename"]: _tidy([(int(each["sentid"]), each["raw"]) for each in entry["sentences"]])
            for entry in tree["images"]
        }


def _tidy(captions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return captions as a corpus has them: with tidy white space, and without empty ones."""
    return [(number, tidied) for number, caption in captions if (tidied := " ".join(caption.split()))]


# Crisscrossed Captions: people's ratings of pairs of COCO's images and captions (Parekh et al., EACL 2021).

POSITIVE = 3.0
"""The lowest rating, from 0 to 5, of a pair with a caption that counts as positive for retrieval."""

POSITIVE_IMAGES = 2.5
"""The lowest rating of a positive pair of images, in VSE-infinity's released code."""

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
    """Pairs of items, by COCO's numbers, with the mean rating of their annotators, from 0 (unrelated) to 5."""

    first: Int[np.ndarray, "P"]
    second: Int[np.ndarray, "P"]
    ratings: Float[np.ndarray, "P"]


def read_cxc(folder: Path, split: str) -> dict[str, RatedPairs]:
    """Read the ratings of image-text (``sits``), text-text (``sts``) and image-image (``sis``) pairs.

    Format: ``sits_test.csv`` and so on, each with a header and the columns of ``HEADERS``. A caption is
    ``COCO_val2014:sentid:732091``, an image is ``COCO_val2014_000000365325.jpg``.
    """
    if (part := {"test": "test", "validation": "val"}.get(split)) is None:
        raise DataError(f"Crisscrossed Captions has no split {split!r}: give --split test or validation")
    if (file := first_file(folder, [f"sits_{part}.csv", f"data/sits_{part}.csv"])) is None:
        raise DataError(
            f"{folder}: no sits_{part}.csv of Crisscrossed Captions: give the data/ folder of "
            f"github.com/google-research-datasets/Crisscrossed-Captions"
        )
    return {task: _read_ratings(file.with_name(f"{task}_{part}.csv"), task) for task in HEADERS}


def _read_ratings(path: Path, task: str) -> RatedPairs:
    expected = HEADERS[task]
    rows = []
    try:
        lines = csv.reader(f"{line}\n" for line in read_lines(path))
        if (header := tuple(next(lines, ()))) != expected:
            raise DataError(
                f"{path}: its columns are {', '.join(header) or 'missing'}, instead of {', '.join(expected)}: give "
                f"the file with aggregated scores, of the published version"
            )
        rows = [_rating(path, task, number, line) for number, line in enumerate(lines, 2)]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: it cannot be read ({error}): download it again") from error
    if not rows:
        raise DataError(f"{path}: it holds no pairs: download it again")
    first, second, ratings = zip(*rows, strict=True)
    return RatedPairs(np.array(first, dtype=np.int64), np.array(second, dtype=np.int64), np.array(ratings))


def _rating(path: Path, task: str, number: int, line: list[str]) -> tuple[int, int, float]:
    if len(line) == len(HEADERS[task]) and line[3] in _METHODS[task]:
        one, other = (_IMAGE.search(each) or _CAPTION.search(each) for each in line[:2])
        rating = float(line[2]) if re.fullmatch(r"\d+(\.\d+)?", line[2]) else math.nan
        if one and other and 0 <= rating <= 5:
            return int(one[1]), int(other[1]), rating
    raise DataError(
        f"{path}, line {number}: {','.join(line)!r} is no rated pair: download the published file again"
    )


# ECCV Caption: all captions that fit some of COCO's images, and the reverse (Chun et al., ECCV 2022).

I2T, T2I, ORIGINAL = (
    "eccv_image_to_caption.json",
    "eccv_caption_to_image.json",
    "original_caption_to_image.json",
)

Positives = Mapping[int, tuple[int, ...]]
"""The positive items of each query, as numbers of COCO."""


@dataclass(frozen=True)
class EccvCaption:
    """The positives of ECCV Caption. ``t2i`` is not the reverse of ``i2t``, because queries were chosen.

    ``captions`` are the gallery, five for each of COCO's 5,000 test images. It is None if the file that lists them is
    missing.
    """

    i2t: Positives
    t2i: Positives
    captions: frozenset[int] | None = None


def read_eccv_caption(folder: Path) -> EccvCaption:
    """Read the JSON files of the package ``eccv_caption``: objects of a query's number and a list of positives."""
    if (i2t := first_file(folder, [I2T, f"data/{I2T}", f"eccv_caption/data/{I2T}"])) is None:
        raise DataError(
            f"{folder}: no {I2T} of ECCV Caption: give the folder eccv_caption/data of the package eccv_caption"
        )
    original = first_file(i2t.parent, [ORIGINAL])
    return EccvCaption(
        _read_positives(i2t),
        _read_positives(i2t.with_name(T2I)),
        frozenset(_read_positives(original)) if original else None,
    )


def _read_positives(path: Path) -> dict[int, tuple[int, ...]]:
    with reading_json(path, "the format of ECCV Caption") as tree:
        positives = {int(query): tuple(dict.fromkeys(map(int, items))) for query, items in tree.items()}
    if not positives or not all(positives.values()):
        raise DataError(f"{path}: a query without a positive item, or no queries: download it again")
    return positives
