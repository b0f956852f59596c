"""Accuracies of predicted answers: VQA's accuracy, exact matches of sets, and WUPS.

The votes of annotators count in the first. WUPS gives partial credit to words of similar meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import prod

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse_papers.vqa.answers import normalize_answer, vote_score

THRESHOLDS = (0.9, 0.0)
"""The thresholds for DAQUAR. At 0.9 only near synonyms count fully, at 0.0 every similarity does."""

_DOWN_WEIGHT = 0.1


def answer_accuracy(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, votes: bool
) -> Float[np.ndarray, "Q"]:
    """Return the score of each predicted answer, from 0 to 1.

    With votes it is VQA's accuracy (Antol et al., ICCV 2015): the mean, over the subsets that leave out one annotator,
    of min(annotators in the subset who gave the answer / 3, 1). Otherwise an answer equal to one of the annotated
    answers scores 1. Answers are compared in their normal form.

    Deviation: the official code does not normalise answers if all annotators agree.

    Args:
        predictions: an answer to each of Q questions.
        answers: the answers of all annotators to each question, at least one.

    Raises:
        DataError: the numbers of the two differ, or a question has no answer.
    """
    _check(len(predictions), answers)
    annotators = np.array([len(given) for given in answers], dtype=np.int64)
    question = np.repeat(np.arange(len(answers)), annotators)
    answer_ids, predicted = _numbered([*chain.from_iterable(answers)], predictions)
    matches = np.bincount(question[answer_ids == predicted[question]], minlength=len(answers))
    return vote_score(matches, annotators) if votes else (matches > 0).astype(np.float64)


def exact_match(
    predictions: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]
) -> Float[np.ndarray, "Q"]:
    """Return 1 for each question whose predicted answers are those given, and 0 for the others.

    It is DAQUAR's accuracy (Malinowski and Fritz, NIPS 2014). Answers are compared in their normal form. Their order
    and repetitions do not matter.

    Args:
        predictions: the members of the predicted set for each of Q questions.
        answers: the members of the given set, at least one.

    Raises:
        DataError: the numbers of the two differ, or a question has no answer.
    """
    _check(len(predictions), answers)
    equal = [
        set(map(normalize_answer, predicted)) == set(map(normalize_answer, given))
        for predicted, given in zip(predictions, answers, strict=True)
    ]
    return np.array(equal, dtype=np.float64)


def _numbered(given: Sequence[str], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Give answers with the same normal form the same number."""
    numbers: dict[str, int] = {}
    both = [numbers.setdefault(normalize_answer(answer), len(numbers)) for answer in (*given, *predicted)]
    return np.array(both[: len(given)], dtype=np.int64), np.array(both[len(given) :], dtype=np.int64)


def _check(num_predictions: int, answers: Sequence[Sequence[str]]) -> None:
    if num_predictions != len(answers):
        raise DataError(
            f"got {num_predictions} predictions for {len(answers)} questions: give one for each question"
        )
    empty = next((number for number, given in enumerate(answers) if not given), None)
    if empty is not None:
        raise DataError(f"question number {empty} has no answer to compare with: leave it out")


def wups(
    predictions: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    similarity: Callable[[str, str], float],
    *,
    threshold: float,
) -> Float[np.ndarray, "Q"]:
    """Return the WUPS of each question, from 0 to 1 (Malinowski and Fritz, NIPS 2014, section 4).

    For a predicted set A and the given set T it is the smaller of two products: over a in A of the largest s(a, t)
    for t in T, and over t in T of the largest s(a, t) for a in A. s is Wu and Palmer's similarity, times 0.1 if it is
    below the threshold, 0.9 or 0. An empty prediction scores 0.
    """
    _check(len(predictions), answers)

    def closeness(one: str, other: str) -> float:
        value = similarity(one, other)
        return value if value >= threshold else _DOWN_WEIGHT * value

    def covered(words: Iterable[str], others: Iterable[str]) -> float:
        return prod(max(closeness(word, other) for other in others) for word in words)

    scores = []
    for predicted, given in zip(predictions, answers, strict=True):
        guesses, true = set(map(normalize_answer, predicted)), set(map(normalize_answer, given))
        scores.append(min(covered(guesses, true), covered(true, guesses)) if guesses else 0.0)
    return np.array(scores, dtype=np.float64)
