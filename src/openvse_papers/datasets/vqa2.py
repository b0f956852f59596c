"""VQA 2.0 (Goyal et al., CVPR 2017): the original questions and annotations about COCO's images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from openvse.datasets.layout import first_file, reading_json
from openvse.errors import DataError
from openvse_papers.datasets.coco import find_image_folder, image_folders
from openvse_papers.datasets.layout import first_folder, published
from openvse_papers.vqa.questions import Question, QuestionSet, build_questions

EntryT = TypeVar("EntryT")

FOLDERS = ("", "annotations/", "questions/")
"""The possible folders of the JSON files under the root."""


@dataclass(frozen=True)
class QuestionPart:
    """A part of the data set in its published form. The first of its files of questions that exists counts.

    ``annotations`` is "" if they are not published. ``images`` is the folder of the images, and the beginning of their
    names. The paper trains on train2014 and reports on val2014.
    """

    questions: tuple[str, ...]
    annotations: str
    images: str
    split: str


TRAIN = QuestionPart(
    ("v2_OpenEnded_mscoco_train2014_questions.json",),
    "v2_mscoco_train2014_annotations.json",
    "train2014",
    "train",
)
VALIDATION = QuestionPart(
    ("v2_OpenEnded_mscoco_val2014_questions.json",),
    "v2_mscoco_val2014_annotations.json",
    "val2014",
    "validation",
)
TEST = QuestionPart(
    (
        "v2_OpenEnded_mscoco_test2015_questions.json",
        "v2_OpenEnded_mscoco_test-dev2015_questions.json",  # a part of the other
    ),
    "",
    "test2015",
    "test",
)
PARTS = (TRAIN, VALIDATION, TEST)


VQA2 = published("vqa2")


def open_vqa2(root: Path, *, require_images: bool = True) -> QuestionSet:
    """Open VQA 2.0, with ten answers to each question about an image of COCO, and the type of the answer.

    train2014 is training, val2014 validation and test2015 the test, whose answers are not published. Each part may be
    missing. The identifiers of images are their file names, ``COCO_val2014_000000391895.jpg``, as in the data set
    ``coco``, so that features of its images fit.
    """
    there = {part: path for part in PARTS if (path := _find(root, *part.questions))}
    if not there:
        raise DataError(f"{root}: no {PARTS[0].questions[0]}, nor val2014's: see openvse list data vqa2")
    if require_images and not any(first_folder(root, image_folders(part.images)) for part in there):
        names = " or ".join(f"{part.images}/" for part in there)
        raise DataError(f"{root}: no image folder {names}: see openvse list data vqa2")
    stray: list[int] = []
    questions = [question for part, path in there.items() for question in _read(part, path, root, stray)]
    opened = build_questions("vqa2", questions, require_images=require_images)
    if stray:
        line = f"skipped {len(stray)} annotation(s) of questions that are not there (first: {stray[0]})"
        opened = replace(opened, problems=(*opened.problems, line))
    return opened


def detect_vqa2(root: Path) -> bool:
    """Return whether a folder holds questions of VQA 2.0."""
    return any(_find(root, *part.questions) for part in PARTS)


def _find(root: Path, *names: str) -> Path | None:
    return first_file(root, [f"{folder}{name}" for name in names for folder in FOLDERS])


def _read(part: QuestionPart, path: Path, root: Path, stray: list[int]) -> Iterator[Question]:
    """Yield the questions of a part, and put the identifiers of annotations without a question into ``stray``."""
    answers = _read_annotations(part, root) if part.annotations else {}
    folder = find_image_folder(root, part.images)

    @cache  # an image has many questions
    def image(number: int) -> tuple[str, Path]:
        name = f"COCO_{part.images}_{number:012d}.jpg"
        return name, folder / name

    def question(entry: dict[str, Any]) -> Question:
        kind, asks, given = answers.pop(entry["question_id"], ("", "", ()))
        number, (name, place) = str(entry["question_id"]), image(entry["image_id"])
        return Question(number, name, place, entry["question"], given, part.split, kind, asks)

    yield from _entries(path, "questions", question)
    stray += answers


def _read_annotations(part: QuestionPart, root: Path) -> dict[int, tuple[str, str, tuple[str, ...]]]:
    """Return the types of the answer and the question, and the answers of each question of a part."""
    if (path := _find(root, part.annotations)) is None:
        raise DataError(
            f"{root}: {part.questions[0]} is there without {part.annotations}: see openvse list data vqa2"
        )

    def annotation(entry: dict[str, Any]) -> tuple[int, tuple[str, str, tuple[str, ...]]]:
        kinds = sys.intern(entry["answer_type"]), sys.intern(entry.get("question_type", ""))
        return entry["question_id"], (*kinds, tuple(entry["answers"]))

    return dict(_entries(path, "annotations", annotation))


def _entries(path: Path, key: str, make: Callable[[dict[str, Any]], EntryT]) -> list[EntryT]:
    """Return the result of ``make`` for each entry of a list in a JSON file.

    An answer is reduced to its text as soon as it is parsed. As dictionaries, the 4.4 million answers of the training
    part would take gigabytes.
    """
    with reading_json(path, "the format of VQA 2.0", _bare_answer) as tree:
        return [make(entry) for entry in tree[key]]


def _bare_answer(entry: dict[str, Any]) -> Any:
    return sys.intern(entry["answer"]) if "answer_id" in entry else entry
