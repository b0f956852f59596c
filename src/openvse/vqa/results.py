"""Files of predicted answers, in the format of VQA's evaluation server and its published code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from openvse.corpus import QuestionSet
from openvse.errors import DataError
from openvse.files import write_whole


def write_results(path: Path, questions: QuestionSet, predictions: Sequence[str]) -> None:
    """Write ``[{"question_id": 262148000, "answer": "down"}, ...]``, by rename, so that a file is never incomplete.

    Identifiers that are numbers are written as numbers, as VQA's server expects.

    Args:
        path: the file; its folder is created if it is missing.
        questions: Q questions.
        predictions: an answer to each of them.

    Raises:
        DataError: the numbers of questions and predictions differ.
    """
    if len(predictions) != len(questions):
        raise DataError(
            f"{questions.name}: {len(predictions)} predictions for {len(questions)} questions; give one for each"
        )
    entries = [
        {"question_id": _number(question.question_id), "answer": answer}
        for question, answer in zip(questions.questions, predictions, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(entries, ensure_ascii=False))


def read_results(path: Path, questions: QuestionSet) -> tuple[str, ...]:
    """Return the answers in such a file of any origin, in the order of the questions.

    Answers to other questions are ignored, so a file for a whole data set serves each split.

    Raises:
        DataError: the file cannot be read, has another format, or answers a question twice or not at all.
    """
    answers: dict[str, str] = {}
    try:
        for entry in json.loads(path.read_text(encoding="utf-8")):
            number = str(entry["question_id"])
            if number in answers:
                raise DataError(f"{path}: question {number} is answered twice; answer it once")
            answers[number] = str(entry["answer"])
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}); check the path") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f'{path}: not a list of {{"question_id": 1, "answer": "yes"}} ({error!r}); write it as for VQA\'s server'
        ) from error
    missing = [
        question.question_id for question in questions.questions if question.question_id not in answers
    ]
    if missing:
        raise DataError(
            f"{path}: no answer to {len(missing)} of the {len(questions)} questions of {questions.name} "
            f"(first: {missing[0]}); answer all of them"
        )
    return tuple(answers[question.question_id] for question in questions.questions)


def _number(question_id: str) -> int | str:
    return (
        int(question_id) if question_id.isdecimal() and str(int(question_id)) == question_id else question_id
    )
