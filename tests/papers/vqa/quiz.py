"""Small sets of questions for the tests of scores and baselines."""

from collections.abc import Sequence
from pathlib import Path

from openvse_papers.vqa.answers import Question, QuestionSet


def quiz(*questions: tuple[str, str, Sequence[str]] | tuple[str, str, Sequence[str], str]) -> QuestionSet:
    """Return a set of (image, text, answers[, kind])."""
    found = tuple(
        Question(f"q{number}", image, Path(image), text, tuple(answers), "test", *kind)
        for number, (image, text, answers, *kind) in enumerate(questions)
    )
    return QuestionSet("quiz", found)
