"""VQA 2.0 (Goyal et al., CVPR 2017): the owners' questions and annotations about COCO's pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from openvse.corpus.questions import Question, QuestionSet, build_questions
from openvse.errors import DataError

EntryT = TypeVar("EntryT")

FOLDERS = ("", "annotations", "questions")
"""Where the JSON files may lie under the root."""


@dataclass(frozen=True)
class Part:
    """A part as its owners publish it.

    Attributes:
        questions: its file of questions; of several the first that is there counts.
        annotations: its file of annotations, or "" where they are not published.
        pictures: the folder of its pictures, and how their names begin.
        split: which split it is; the paper trains on train2014 and reports on val2014.
    """

    questions: tuple[str, ...]
    annotations: str
    pictures: str
    split: str


PARTS = (
    Part(
        ("v2_OpenEnded_mscoco_train2014_questions.json",),
        "v2_mscoco_train2014_annotations.json",
        "train2014",
        "train",
    ),
    Part(
        ("v2_OpenEnded_mscoco_val2014_questions.json",),
        "v2_mscoco_val2014_annotations.json",
        "val2014",
        "validation",
    ),
    Part(
        (
            "v2_OpenEnded_mscoco_test2015_questions.json",
            "v2_OpenEnded_mscoco_test-dev2015_questions.json",  # a part of the other
        ),
        "",
        "test2015",
        "test",
    ),
)


def open_vqa2(root: Path, *, strict: bool = False, require_images: bool = True) -> QuestionSet:
    """Open VQA 2.0: ten answers to each question about a picture of COCO, with the type of the answer.

    train2014 is training, val2014 validation and test2015 the test, whose answers are not published. Each part may
    be absent. Pictures are called by their file names, ``COCO_val2014_000000391895.jpg``, as in the data set
    ``coco``, so that features of its pictures fit.

    Args:
        root: the folder of the JSON files (or of ``annotations/`` and ``questions/`` with them), and of
            ``train2014/``, ``val2014/`` and ``test2015/`` (also below ``images/``).
        strict: see ``build_questions``.
        require_images: see ``build_questions``.

    Raises:
        DataError: no questions, no annotations of train2014 or val2014, or no pictures are found; a file has another
            format; and as ``build_questions`` does.
    """
    there = {part: path for part in PARTS if (path := _find(root, *part.questions))}
    if not there:
        raise DataError(f"{root}: no {PARTS[0].questions[0]}, nor that of val2014; see openvse data vqa2")
    folder = next((f for f in (root / "images", root) if any((f / p.pictures).is_dir() for p in there)), None)
    if folder is None and require_images:
        names = " or ".join(part.pictures for part in there)
        raise DataError(f"{root}: no picture folder {names}; see openvse data vqa2")
    stray: list[int] = []
    questions = [
        question
        for part, path in there.items()
        for question in _read(part, path, root, folder or root, stray)
    ]
    found = build_questions("vqa2", questions, strict=strict, require_images=require_images)
    if stray:
        line = f"skipped {len(stray)} annotation(s) of questions that are not there (first: {stray[0]})"
        found = replace(found, problems=(*found.problems, line))
    return found


def detect_vqa2(root: Path) -> bool:
    """Say whether a folder holds questions of VQA 2.0."""
    return any(_find(root, *part.questions) for part in PARTS)


def _find(root: Path, *names: str) -> Path | None:
    places = (root / folder / name for name in names for folder in FOLDERS)
    return next((path for path in places if path.is_file()), None)


def _read(part: Part, path: Path, root: Path, images: Path, stray: list[int]) -> Iterator[Question]:
    """Yield the questions of a part; put the identifiers of annotations that have none into ``stray``."""
    answers = _read_annotations(part, root) if part.annotations else {}

    @cache  # a picture has many questions
    def picture(number: int) -> tuple[str, Path]:
        name = f"COCO_{part.pictures}_{number:012d}.jpg"
        return name, images / part.pictures / name

    def question(entry: dict[str, Any]) -> Question:
        kind, given = answers.pop(entry["question_id"], ("", ()))
        number, (name, place) = str(entry["question_id"]), picture(entry["image_id"])
        return Question(number, name, place, entry["question"], given, part.split, kind)

    yield from _entries(path, "questions", question)
    stray += answers


def _read_annotations(part: Part, root: Path) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the type of the answer and the answers of each question of a part."""
    path = _find(root, part.annotations)
    if path is None:
        raise DataError(
            f"{root}: {part.questions[0]} is there without {part.annotations}; see openvse data vqa2"
        )

    def annotation(entry: dict[str, Any]) -> tuple[int, tuple[str, tuple[str, ...]]]:
        return entry["question_id"], (sys.intern(entry["answer_type"]), tuple(entry["answers"]))

    return dict(_entries(path, "annotations", annotation))


def _entries(path: Path, key: str, make: Callable[[dict[str, Any]], EntryT]) -> list[EntryT]:
    """Return what ``make`` makes of each entry of a list in a JSON file.

    An answer becomes its text as soon as it is parsed: as dictionaries the 4.4 million of the training part would take
    gigabytes.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"), object_hook=_bare_answer)
        return [make(entry) for entry in tree[key]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not in the format of VQA 2.0 ({error!r}); download it again") from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}); check the path") from error


def _bare_answer(entry: dict[str, Any]) -> Any:
    return sys.intern(entry["answer"]) if "answer_id" in entry else entry
