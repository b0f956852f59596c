"""Your own questions: a folder of images with a metadata file, or only that file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from openvse.datasets.folder import METADATA, metadata_files
from openvse.datasets.parquet import ARROW_SUFFIXES
from openvse.datasets.rows import IMAGE_FIELDS, field_names, numbered_objects, read_rows
from openvse.errors import DataError
from openvse_papers.vqa.questions import Question, QuestionSet, build_questions, numbered

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
        raise DataError(
            f"{root}: no {' or '.join(METADATA)} there or in train/, validation/, test/: write one"
        )
    questions = [question for file in files for question in _read(file, folder)]
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


def _read(file: Path, root: Path) -> Iterator[Question]:
    """Yield the questions of one metadata file, with identifiers of images relative to the root."""
    folder = file.parent.relative_to(root)
    lines = file.suffix.lower() == ".jsonl"
    for question in (
        chain.from_iterable(each for _, each in numbered_objects(file, _questions))
        if lines
        else _read_table(file)
    ):
        image_id = (folder / question.image_id).as_posix()
        path = file.parent / question.image_id
        yield replace(question, image_id=image_id, path=path, split=question.split or folder.name)


def _read_table(file: Path) -> Iterator[Question]:
    """Yield one question for all rows with the same image, text and identifier."""
    answers: dict[tuple[str, str, str], list[str]] = {}
    about: dict[tuple[str, str, str], tuple[str, str]] = {}
    columns = (IMAGE_FIELDS, ("question",), ("answer",))
    for line, (name, text, answer, split, number, kind) in read_rows(file, columns, _OPTIONAL):
        key = (name, text, number)
        answers.setdefault(key, []).append(answer)
        if about.setdefault(key, (split, kind)) != (split, kind):
            raise DataError(
                f"{file}, line {line}: the question {text!r} about {name!r} has another split or kind than before: "
                "give all rows of a question the same"
            )
    for (name, text, number), given in answers.items():
        split, kind = about[name, text, number]
        yield Question(number, name, Path(name), text, given, split, kind)


def _questions(entry: Any) -> list[Question]:
    match entry:
        case {"file_name": str(name), "questions": list(asked)}:
            if not all(isinstance(each, dict) for each in asked):
                raise DataError(
                    f'the questions of {name!r} must be objects {{"question": ..., "answers": [...]}}'
                )
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
