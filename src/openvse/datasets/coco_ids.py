"""COCO's own numbers of images and captions, by which later judgements of its pairs name them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from jaxtyping import Int

from openvse.corpus import Corpus
from openvse.datasets.coco import KARPATHY, OFFICIAL
from openvse.datasets.places import first_file
from openvse.errors import DataError

_NUMBER = re.compile(r"(\d+)\.\w+$")


def image_numbers(corpus: Corpus) -> Int[np.ndarray, "I"]:
    """Return COCO's number of each image, from its file name (``COCO_val2014_000000391895.jpg`` is 391895).

    Raises:
        DataError: an image has another kind of name.
    """
    found = [_NUMBER.search(name) for name in corpus.image_ids]
    for name, match in zip(corpus.image_ids, found, strict=True):
        if match is None:
            raise DataError(
                f"{corpus.name}: image {name!r} has no number of COCO in its name: give the data set coco"
            )
    return np.array([int(match[1]) for match in found if match], dtype=np.int64)


def caption_numbers(root: Path, corpus: Corpus) -> Int[np.ndarray, "T"]:
    """Return COCO's number of each text of a corpus, from the file that the corpus was opened from.

    Args:
        root: the folder of the data set coco.
        corpus: the corpus, or a split of it.

    Raises:
        DataError: the file has no numbers of captions, or has other captions than the corpus.
    """
    numbered = _from_karpathy(root) or _from_official(root)
    numbers = np.full(len(corpus.captions), -1, dtype=np.int64)
    place: defaultdict[int, int] = defaultdict(int)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        known = numbered.get(corpus.image_ids[image], [])
        number, said = known[place[image]] if place[image] < len(known) else (-1, "")
        place[image] += 1
        if said != corpus.captions[text]:
            raise DataError(
                f"{root}: caption {place[image]} of {corpus.image_ids[image]} is not the one that the data set was "
                f"opened with: give the folder of COCO as it was published"
            )
        numbers[text] = number
    return numbers


def _from_karpathy(root: Path) -> dict[str, list[tuple[int, str]]]:
    path = first_file(root, KARPATHY)
    if path is None:
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        return {
            entry["filename"]: _tidy([(int(each["sentid"]), each["raw"]) for each in entry["sentences"]])
            for entry in entries
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: it has no numbers of captions ({error!r}); download it again") from error


def _from_official(root: Path) -> dict[str, list[tuple[int, str]]]:
    numbered: dict[str, list[tuple[int, str]]] = {}
    for part in OFFICIAL:
        path = first_file(root, (f"annotations/captions_{part}.json", f"captions_{part}.json"))
        if path is None:
            raise DataError(f"{root}: no {KARPATHY[0]} and no captions_{part}.json; see openvse data coco")
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            captions: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
            for each in sorted(tree["annotations"], key=lambda annotation: annotation["id"]):
                captions[each["image_id"]].append((int(each["id"]), each["caption"]))
            numbered |= {image["file_name"]: _tidy(captions[image["id"]]) for image in tree["images"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not in COCO's format ({error!r}); download it again") from error
    return numbered


def _tidy(captions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return captions as a corpus has them: with tidy white space, and without empty ones."""
    return [(number, tidied) for number, said in captions if (tidied := " ".join(said.split()))]
