"""Baselines that do not see the image: the most frequent answers."""

from __future__ import annotations

from collections import Counter, defaultdict

from openvse.corpus import QuestionSet
from openvse.encoders.word_splitters import split_words
from openvse.errors import DataError
from openvse.vqa.answers import are_votes, main_answers


def most_frequent_answers(
    training: QuestionSet, questions: QuestionSet, *, num_words: int = 0
) -> tuple[str, ...]:
    """Answer each question with the most frequent answer to training questions that begin with the same words.

    A training question counts once, for its most frequent answer; if answers are not votes, it counts once for each
    of them. Of equally frequent answers, the first in alphabetical order is taken. If no training question begins
    with these words, one word less is compared.

    Args:
        training: questions with answers.
        questions: Q questions.
        num_words: the number of first words that must agree; with 0, all questions get the same answer.

    Returns:
        An answer to each question, in its normal form.

    Raises:
        DataError: no training question has an answer.
    """
    votes = are_votes(question.answers for question in training.questions)
    counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for question in training.questions:
        words = tuple(split_words(question.text))
        for answer in main_answers(question.answers, votes=votes):
            for length in range(min(num_words, len(words)) + 1):
                counts[words[:length]][answer] += 1
    if not counts:
        raise DataError(f"{training.name}: no question has an answer; give training questions with answers")
    best = {
        start: min(answers, key=lambda answer: (-answers[answer], answer))
        for start, answers in counts.items()
    }
    starts = [tuple(split_words(question.text)[:num_words]) for question in questions.questions]
    return tuple(
        next(best[start[:length]] for length in range(len(start), -1, -1) if start[:length] in best)
        for start in starts
    )
