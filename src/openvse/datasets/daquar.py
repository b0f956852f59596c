"""DAQUAR (Malinowski and Fritz, NIPS 2014): questions about indoor photographs of NYU Depth v2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.corpus.facts import Facts, Form, Piece
from openvse.corpus.questions import Question, QuestionSet, build_questions, numbered
from openvse.corpus.splits import hashed_splits
from openvse.datasets.rows import read_lines, read_rows
from openvse.errors import DataError

# Lines alternate between "question in the image1 ?" and its answers. The first two hold all questions.
ALL_QUESTIONS = ("all_qa_pairs.txt", "data.csv")
BY_IMAGE = {"train": "qa.894.raw.train.txt", "test": "qa.894.raw.test.txt"}
BY_QUESTION = ("data_train.csv", "data_eval.csv")
LISTS = {"train": "train_images_list.txt", "test": "test_images_list.txt"}
IMAGES = ("images/image[0-9]*.*", "nyu_depth_images/image[0-9]*.*", "image[0-9]*.*")
_SUFFIXES = (".jpg", ".png")

_MPI = (
    "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/vision-and-language/"
    "visual-turing-challenge"
)

DAQUAR = Facts(
    name="daquar",
    title="12,468 questions about 1,449 indoor photographs (Malinowski, Fritz, NIPS 2014)",
    pieces=(
        Piece("image files", IMAGES, f"nyu_depth_images.tar of {_MPI}", media=True),
        Piece(
            "questions about training images",
            (BY_IMAGE["train"], *ALL_QUESTIONS, BY_QUESTION[0]),
            f"{BY_IMAGE['train']} of {_MPI}; tables that are passed around are read too",
        ),
        Piece(
            "questions about test images",
            (BY_IMAGE["test"], *ALL_QUESTIONS, BY_QUESTION[1]),
            f"{BY_IMAGE['test']} of the same page",
        ),
        Piece(
            "the split by image",
            (BY_IMAGE["train"], LISTS["train"]),
            f"the two files above; with tables, {LISTS['train']} and {LISTS['test']}",
        ),
    ),
    forms=(Form("the split by image, validation by a hash", (715, 79, 653), 12_468),),
    licence="for research only; do not redistribute the images, which are NYU Depth v2's",
    texts="questions",
)

# "... in the image1 ?", "... of image1 ?", "... on this image1 ?"
_QUESTION = re.compile(r"(.*?)(?:\s+(?:in|of|on))?(?:\s+(?:the|this))?\s+(image\d+)\s*\?\s*")


def open_daquar(root: Path, *, require_images: bool = True) -> QuestionSet:
    """Open DAQUAR with all its answers, in the split by image.

    It reads ``all_qa_pairs.txt`` or ``data.csv``, or the original ``qa.894.raw.train.txt`` and
    ``qa.894.raw.test.txt``, or ``data_train.csv`` and ``data_eval.csv``. The split of the two tables is by question and
    is not used: the same images are in both. ``train_images_list.txt`` and ``test_images_list.txt``, or the two
    original files, split by image. There is no published validation split: a hash of their names selects a tenth of the
    training images, and ``problems`` says so. Without lists a hash splits all images.

    The name of the image at the end of a question ("... in the image1 ?") is left out. Several answers to a question
    are a set, whose members are separated by ", " in the files.
    """
    read, splits = _read(root)
    place = next((pattern for pattern in IMAGES if any(root.glob(pattern))), None)
    if place is None and require_images:
        raise DataError(f"{root}: no image1.jpg or image1.png in images/; see openvse list data daquar")
    folder = (root / (place or IMAGES[0])).parent
    suffix = next((s for s in _SUFFIXES if any(folder.glob(f"image[0-9]*{s}"))), _SUFFIXES[0])
    note, splits = _with_validation({each.image_id: splits.get(each.image_id, "") for each in read})
    questions = (
        replace(each, path=folder / f"{each.image_id}{suffix}", split=splits[each.image_id]) for each in read
    )
    opened = build_questions("daquar", numbered(questions), require_images=require_images)
    return replace(opened, problems=(note, *opened.problems))


def detect_daquar(root: Path) -> bool:
    """Return whether a folder holds questions of DAQUAR."""
    if (root / BY_IMAGE["train"]).is_file() or (root / ALL_QUESTIONS[0]).is_file():
        return True
    return (root / LISTS["train"]).is_file() and any(
        (root / name).is_file() for name in (*ALL_QUESTIONS, *BY_QUESTION)
    )


def _read(root: Path) -> tuple[list[Question], dict[str, str]]:
    """Return all questions, without the files of their images, and the published split of each image that has one."""
    lists = {split: root / name for split, name in LISTS.items() if (root / name).is_file()}
    listed = {
        name: split
        for split, path in lists.items()
        for name in filter(None, map(str.strip, read_lines(path)))
    }
    for name in ALL_QUESTIONS:
        if (root / name).is_file():
            return list(_read_file(root / name)), listed
    if (root / BY_IMAGE["train"]).is_file():
        parts = {
            split: list(_read_file(root / name))
            for split, name in BY_IMAGE.items()
            if (root / name).is_file()
        }
        own = {each.image_id: split for split, part in parts.items() for each in part}
        return [each for part in parts.values() for each in part], own
    tables = [root / name for name in BY_QUESTION if (root / name).is_file()]
    if not tables:
        names = ", ".join((*ALL_QUESTIONS, *BY_IMAGE.values(), *BY_QUESTION))
        raise DataError(f"{root}: none of {names}; see openvse list data daquar")
    return [each for table in tables for each in _read_file(table)], listed


def _read_file(path: Path) -> Iterator[Question]:
    if path.suffix == ".csv":
        columns = (("image_id",), ("question",), ("answer",))
        yield from (_question(*cells) for _, cells in read_rows(path, columns))
    else:
        yield from _read_pairs(path)


def _read_pairs(path: Path) -> Iterator[Question]:
    """Yield the questions of a file that alternates between questions and answers."""
    lines = [line.strip() for line in read_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    for number in range(0, len(lines), 2):
        question = _QUESTION.fullmatch(lines[number])
        if question is None or number + 1 == len(lines):
            raise DataError(
                f"{path}, line {number + 1}: write a question that ends with the name of its image "
                "(in the image1 ?), and its answer in the next line"
            )
        yield _question(question[2], question[1], lines[number + 1])


def _question(image: str, text: str, answers: str) -> Question:
    return Question("", image, Path(image), text, answers.split(", "))


def _with_validation(splits: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Select validation images from the training images that have questions; return a note about it."""
    train = [name for name, split in splits.items() if split == "train"]
    if not train:
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
