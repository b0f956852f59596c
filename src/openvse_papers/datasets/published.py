"""The published data sets with their facts, and questions about images, by name or path.

Questions are DAQUAR (Malinowski and Fritz, NIPS 2014), about indoor photographs of NYU Depth v2, VQA 2.0 (Goyal et al.,
CVPR 2017), the original questions and annotations about COCO's images, or your own: a folder of images with a metadata
file, or only that file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from openvse.corpus.splits import hashed_splits
from openvse.datasets.folder import METADATA, metadata_files
from openvse.datasets.parquet import ARROW_SUFFIXES
from openvse.datasets.registry import DataSet, open_named
from openvse.datasets.rows import (
    IMAGE_FIELDS,
    field_names,
    first_file,
    numbered_objects,
    read_rows,
    reading_json,
    table_lines,
)
from openvse.errors import DataError
from openvse_papers.datasets import captioned
from openvse_papers.datasets.captioned import find_image_folder, first_folder, image_folders, published, read_splits
from openvse_papers.vqa.answers import Question, QuestionSet, build_questions, numbered

# Lines alternate between "question in the image1 ?" and its answers.
ALL_QUESTIONS = "all_qa_pairs.txt"
BY_IMAGE = {"train": "qa.894.raw.train.txt", "test": "qa.894.raw.test.txt"}
LISTS = {"train": ("train_images_list.txt",), "test": ("test_images_list.txt",)}
IMAGES = published("daquar").places("image files")
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
    read, splits = _read_daquar(root)
    place = next((pattern for pattern in IMAGES if any(root.glob(pattern))), None)
    if place is None and require_images:
        raise DataError(f"{root}: no image1.jpg or image1.png in images/: see openvse list data daquar")
    folder = (root / (place or IMAGES[0])).parent
    suffix = next((s for s in _SUFFIXES if any(folder.glob(f"image[0-9]*{s}"))), _SUFFIXES[0])
    note, splits = _with_validation({each.image_id: splits.get(each.image_id, "") for each in read})
    questions = (replace(each, path=folder / f"{each.image_id}{suffix}", split=splits[each.image_id]) for each in read)
    opened = build_questions("daquar", numbered(questions), require_images=require_images)
    return replace(opened, problems=(note, *opened.problems))


def detect_daquar(root: Path) -> bool:
    """Return whether a folder holds DAQUAR's questions."""
    return any((root / name).is_file() for name in (BY_IMAGE["train"], ALL_QUESTIONS))


def _read_daquar(root: Path) -> tuple[list[Question], dict[str, str]]:
    """Return all questions, without the files of their images, and each image's published split, if it has one."""
    if (root / ALL_QUESTIONS).is_file():
        listed = {image: max(where) for image, where in read_splits(root, LISTS).items()}
        return list(_read_pairs(root / ALL_QUESTIONS)), listed
    parts = {split: list(_read_pairs(root / name)) for split, name in BY_IMAGE.items() if (root / name).is_file()}
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
        note = "no lists of DAQUAR's images: figures on a split by hash are not comparable with published ones"
        return note, dict.fromkeys(splits, "")
    cut = dict(zip(train, hashed_splits(train, (0.9, 0.1, 0.0)), strict=True))
    validation = sum(split == "validation" for split in cut.values())
    note = (
        f"DAQUAR has no published validation split: {validation} of its {len(train)} training images validate, "
        "chosen by a hash of their names"
    )
    return note, splits | cut


EntryT = TypeVar("EntryT")

FOLDERS = ("", "annotations/", "questions/")
"""The possible folders of the JSON files under the root."""


@dataclass(frozen=True)
class QuestionPart:
    """A part of the data set in its published form. The first of its files of questions that exists counts.

    ``images`` is the folder of the images, and the beginning of their names. The paper trains on train2014 and reports
    on val2014. The answers of the test are not published.
    """

    images: str
    split: str
    names: tuple[str, ...]
    annotated: bool = True

    @property
    def questions(self) -> tuple[str, ...]:
        """The possible names of the file of questions."""
        return tuple(f"v2_OpenEnded_mscoco_{name}_questions.json" for name in self.names)


PARTS = (
    QuestionPart("train2014", "train", ("train2014",)),
    QuestionPart("val2014", "validation", ("val2014",)),
    QuestionPart("test2015", "test", ("test2015", "test-dev2015"), annotated=False),  # the second is a part
)


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
    questions = [question for part, path in there.items() for question in _read_vqa2(part, path, root, stray)]
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


def _read_vqa2(part: QuestionPart, path: Path, root: Path, stray: list[int]) -> Iterator[Question]:
    """Yield the questions of a part, and put the identifiers of annotations without a question into ``stray``."""
    answers = _read_annotations(part, root) if part.annotated else {}
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
    name = f"v2_mscoco_{part.images}_annotations.json"
    if (path := _find(root, name)) is None:
        raise DataError(f"{root}: {part.questions[0]} is there without {name}: see openvse list data vqa2")

    def annotation(entry: dict[str, Any]) -> tuple[int, tuple[str, str, tuple[str, ...]]]:
        kinds = sys.intern(entry["answer_type"]), sys.intern(entry.get("question_type", ""))
        return entry["question_id"], (*kinds, tuple(entry["answers"]))

    return dict(_entries(path, "annotations", annotation))


def _entries(path: Path, key: str, make: Callable[[dict[str, Any]], EntryT]) -> list[EntryT]:
    """Return the result of ``make`` for each entry of a list in a JSON file.

    An answer is reduced to its text as soon as it is parsed. As dictionaries, the 4.4 million answers of the training
    part would take gigabytes.
    """

    def bare(entry: dict[str, Any]) -> Any:
        return sys.intern(entry["answer"]) if "answer_id" in entry else entry

    with reading_json(path, "the format of VQA 2.0", bare) as tree:
        return [make(entry) for entry in tree[key]]


TABLES = (".csv", ".tsv", ".jsonl")
"""The suffixes of files of questions."""

_CAPTIONS = ("caption", "captions", "text")  # a column "description" may belong to a question
_OPTIONAL = ("split", "question_id", "kind")


def open_question_folder(root: Path, *, require_images: bool = True) -> QuestionSet:
    """Open questions about the images of a folder.

    A line of ``metadata.jsonl`` is ``{"file_name": "a.jpg", "question": "how many dogs?", "answers": ["2", "two"]}``,
    with ``answer`` for a single one, or ``{"file_name": "a.jpg", "questions": [{"question": ..., "answers": [...]}]}``.
    ``split``, ``question_id`` and ``kind`` ("yes/no", "number", "other") are optional. ``metadata.csv`` has the columns
    ``file_name``, ``question`` and ``answer``, and optionally these three. Rows with the same image, question and
    identifier are one question with several answers, in the order of the rows. As with captions, there may instead be a
    metadata file in each of the subfolders train, validation and test.

    Four or more answers to every question are treated as votes of annotators (see ``are_votes``).
    Image identifiers are paths relative to the folder.
    """
    folder = root.parent if root.is_file() else root
    files = [root] if root.is_file() else metadata_files(root)
    if not files:
        raise DataError(f"{root}: no {' or '.join(METADATA)} there or in train/, validation/, test/: write one")
    questions = [question for file in files for question in _read_folder(file, folder)]
    name = root.stem if root.is_file() else root.resolve().name
    return build_questions(name, numbered(questions), require_images=require_images)


def holds_questions(file: Path) -> bool:
    """Return whether the first line of a metadata file or table is about questions rather than captions."""
    if file.suffix.lower() in ARROW_SUFFIXES:
        return False
    fields = set(field_names(file))
    if file.suffix.lower() == ".jsonl":
        return not fields.isdisjoint({"question", "questions"})
    return "question" in fields and fields.isdisjoint(_CAPTIONS)


def _read_folder(file: Path, root: Path) -> Iterator[Question]:
    """Yield the questions of one metadata file, with identifiers of images relative to the root."""
    folder = file.parent.relative_to(root)
    objects = chain.from_iterable(each for _, each in numbered_objects(file, _questions))
    for question in objects if file.suffix.lower() == ".jsonl" else _read_table(file):
        image_id = (folder / question.image_id).as_posix()
        path = file.parent / question.image_id
        yield replace(question, image_id=image_id, path=path, split=question.split or folder.name)


def _read_table(file: Path) -> Iterator[Question]:
    """Yield one question for all rows with the same image, text and identifier."""
    rows: dict[tuple[str, str, str], tuple[list[str], str, str]] = {}
    columns = (IMAGE_FIELDS, ("question",), ("answer",))
    for line, (name, text, answer, split, number, kind) in read_rows(file, columns, _OPTIONAL):
        given, *about = rows.setdefault((name, text, number), ([], split, kind))
        given.append(answer)
        if about != [split, kind]:
            raise DataError(
                f"{file}, line {line}: {text!r} about {name!r} has another split or kind than before: give it the same"
            )
    for (name, text, number), (given, split, kind) in rows.items():
        yield Question(number, name, Path(name), text, given, split, kind)


def _questions(entry: Any) -> list[Question]:
    match entry:
        case {"file_name": str(name), "questions": list(asked)}:
            if not all(isinstance(each, dict) for each in asked):
                raise DataError(f'the questions of {name!r} must be objects {{"question": ..., "answers": [...]}}')
            return [_question(name, {"split": entry.get("split"), **each}) for each in asked]
        case {"file_name": str(name), "question": _}:
            return [_question(name, entry)]
        case _:
            raise DataError('write {"file_name": "a.jpg", "question": "how many dogs?", "answers": ["2"]}')


def _question(name: str, entry: dict[str, Any]) -> Question:
    text, answers = entry.get("question"), entry.get("answers", entry.get("answer", []))
    answers = answers if isinstance(answers, list) else [answers]
    words = all(isinstance(answer, str | int | float) and not isinstance(answer, bool) for answer in answers)
    if not isinstance(text, str) or not words:
        raise DataError(f"the question about {name!r} must be a string, and its answers strings or numbers")
    split, number, kind = (str(entry.get(key) or "") for key in _OPTIONAL)
    return Question(number, name, Path(name), text, [str(answer) for answer in answers], split, kind)


COCO = DataSet(captioned.open_coco, captioned.COCO)
DAQUAR = DataSet(open_daquar, published("daquar"))
FLICKR30K = DataSet(captioned.FLICKR30K_LAYOUT.open, captioned.FLICKR30K_LAYOUT.facts)
FLICKR8K = DataSet(captioned.FLICKR8K_LAYOUT.open, captioned.FLICKR8K_LAYOUT.facts)
MRW = DataSet(captioned.open_mrw, captioned.MRW)
MSR_VTT = DataSet(captioned.open_msr_vtt, captioned.MSR_VTT)
MSR_VTT_1K_A = DataSet(captioned.open_msr_vtt_1k_a, captioned.MSR_VTT_1K_A)
MSVD = DataSet(captioned.open_msvd, captioned.MSVD)
PRECOMPUTED = DataSet(captioned.open_precomputed, published("precomputed"))
QUESTION_FOLDER = DataSet(open_question_folder, own=True)
TGIF = DataSet(captioned.open_tgif, captioned.TGIF)
VATEX = DataSet(captioned.open_vatex, captioned.VATEX)
VQA2 = DataSet(open_vqa2, published("vqa2"))

_LAYOUTS: Sequence[tuple[str, Callable[[Path], bool]]] = (
    ("precomputed", lambda root: captioned.find_folder(root) is not None),
    ("coco", lambda root: any(piece.find(root) for piece in captioned.COCO.pieces if not piece.media)),
    ("vqa2", detect_vqa2),
    ("daquar", detect_daquar),
    ("flickr8k", captioned.FLICKR8K_LAYOUT.fits),  # files that fit both sets of Flickr are Flickr8k's
    ("flickr30k", captioned.FLICKR30K_LAYOUT.fits),
)


def detect_published(root: Path) -> str:
    """Return the name of the published data set or questions that fit a path, or "". A metadata file comes first."""
    tables = [root] if root.suffix.lower() in TABLES else metadata_files(root)[:1]
    if root.is_file() or tables:
        return "question_folder" if any(map(holds_questions, tables)) else ""
    return next((name for name, fits in _LAYOUTS if fits(root)), "")


def open_questions(source: str | Path, *, require_images: bool = True, allow_outside: bool = False) -> QuestionSet:
    """Open questions about images.

    Args:
        source: ``NAME:ROOT``, for instance ``vqa2:/data/vqa``, or a path whose kind is detected: a folder with the
            files of VQA 2.0 or DAQUAR, a folder with ``metadata.jsonl`` or ``metadata.csv``, or such a file.
        require_images: False if stored features replace the image files.

    Raises:
        DataError: the source is missing, its kind cannot be detected, the data hold captions, or they cannot be used.
        RecipeError: the name is unknown.
    """
    _, opened = open_named(source, _detect_questions, require_images=require_images, allow_outside=allow_outside)
    if not isinstance(opened, QuestionSet):
        raise DataError(f"{source} holds captions and no questions: give data with questions")
    return opened


def _detect_questions(root: Path) -> str:
    """Return the name of the question set that fits a path."""
    if root.is_file() and root.suffix.lower() not in TABLES:
        allowed = ", ".join(TABLES)
        raise DataError(f"{root}: not a file of questions: give one of {allowed}, or a folder")
    if not any(map(holds_questions, metadata_files(root)[:1])):
        fits = dict(_LAYOUTS)
        return next((name for name in ("vqa2", "daquar") if fits[name](root)), "question_folder")
    return "question_folder"
