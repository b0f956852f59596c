"""DAQUAR (Malinowski and Fritz, NIPS 2014): questions about indoor photographs of NYU Depth v2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.corpus.splits import hashed_splits
from openvse.datasets.rows import table_lines
from openvse.errors import DataError
from openvse_papers.datasets.layout import published, read_splits
from openvse_papers.vqa.questions import Question, QuestionSet, build_questions, numbered

DAQUAR = published("daquar")

# Lines alternate between "question in the image1 ?" and its answers.
ALL_QUESTIONS = "all_qa_pairs.txt"
BY_IMAGE = {"train": "qa.894.raw.train.txt", "test": "qa.894.raw.test.txt"}
LISTS = {"train": ("train_images_list.txt",), "test": ("test_images_list.txt",)}
IMAGES = DAQUAR.places("image files")
_SUFFIXES = (".jpg", ".png")

# "... in the image1 ?", "... of image1 ?", "... on this image1 ?"
_QUESTION = re.compile(r"(.*?)(?:\s+(?:in|of|on))?(?:\s+(?:the|this))?\s+(image\d+)\s*\?\s*")


def open_daquar(root: Path, *, require_images: bool = True) -> QuestionSet:
    """Open DAQUAR with all its answers, in the split by image.

    It reads the original ``qa.894.raw.train.txt`` and ``qa.894.raw.test.txt``, which are split by image. Alternatively
    it reads ``all_qa_pairs.txt`` with ``train_images_list.txt`` and ``test_images_list.txt``. Without these lists a
    hash splits the images. There is no published validation split. A hash of their names selects a tenth of the
    training images, and ``problems`` reports it.

    The name of the image at the end of a question ("... in the image1 ?") is left out. Several answers to a question
    are a set, whose members are separated by ", " in the files.
    """
    read, splits = _read(root)
    place = next((pattern for pattern in IMAGES if any(root.glob(pattern))), None)
    if place is None and require_images:
        raise DataError(f"{root}: no image1.jpg or image1.png in images/: see openvse list data daquar")
    folder = (root / (place or IMAGES[0])).parent
    suffix = next((s for s in _SUFFIXES if any(folder.glob(f"image[0-9]*{s}"))), _SUFFIXES[0])
    note, splits = _with_validation({each.image_id: splits.get(each.image_id, "") for each in read})
    questions = (
        replace(each, path=folder / f"{each.image_id}{suffix}", split=splits[each.image_id]) for each in read
    )
    opened = build_questions("daquar", numbered(questions), require_images=require_images)
    return replace(opened, problems=(note, *opened.problems))


def detect_daquar(root: Path) -> bool:
    """Return whether a folder holds DAQUAR's questions."""
    return any((root / name).is_file() for name in (BY_IMAGE["train"], ALL_QUESTIONS))


def _read(root: Path) -> tuple[list[Question], dict[str, str]]:
    """Return all questions, without the files of their images, and each image's published split, if it has one."""
    if (root / ALL_QUESTIONS).is_file():
        listed = {image: max(where) for image, where in read_splits(root, LISTS).items()}
        return list(_read_pairs(root / ALL_QUESTIONS)), listed
    parts = {
        split: list(_read_pairs(root / name)) for split, name in BY_IMAGE.items() if (root / name).is_file()
    }
    if "train" not in parts:
        names = f"{BY_IMAGE['train']} nor {ALL_QUESTIONS}"
        raise DataError(f"{root}: neither {names} is there: see openvse list data daquar")
    own = {each.image_id: split for split, part in parts.items() for each in part}
    return [each for part in parts.values() for each in part], own


def _read_pairs(path: Path) -> Iterator[Question]:
    """Yield the questions of a file that alternates between questions and answers."""
    lines = [line.strip() for line in table_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    for number in range(0, len(lines), 2):
        if (question := _QUESTION.fullmatch(lines[number])) is None or number + 1 == len(lines):
            raise DataError(
                f"{path}, line {number + 1}: write a question that ends with the name of its image "
                "(in the image1 ?), and its answer in the next line"
            )
        yield Question("", question[2], Path(question[2]), question[1], lines[number + 1].split(", "))


def _with_validation(splits: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Select validation images from the training images that have questions, and return a note about it."""
    if not (train := [name for name, split in splits.items() if split == "train"]):
        note = (
            "no lists of DAQUAR's images: figures on a split by hash are not comparable with published ones"
        )
        return note, dict.fromkeys(splits, "")
    cut = dict(zip(train, hashed_splits(train, (0.9, 0.1, 0.0)), strict=True))
    validation = sum(split == "validation" for split in cut.values())
    note = (
        f"DAQUAR has no published validation split: {validation} of its {len(train)} training images validate, "
        "chosen by a hash of their names"
    )
    return note, splits | cut
