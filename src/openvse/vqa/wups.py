"""WUPS, an accuracy that gives partial credit to words of similar meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.vqa.answers import normalize_answer

THRESHOLDS = (0.9, 0.0)
"""The thresholds for DAQUAR: at 0.9 only near synonyms count fully, at 0.0 every similarity does."""

_DOWN_WEIGHT = 0.1


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
    below the threshold. An empty prediction scores 0.

    Args:
        predictions: the members of the predicted set for each of Q questions.
        answers: the members of the given set, at least one.
        similarity: the similarity of two answers in their normal form, 1 for equal ones; ``WordNet.similarity``.
        threshold: 0.9 or 0.0.

    Raises:
        DataError: the numbers of the two differ, or a question has no answer.
    """
    if len(predictions) != len(answers) or not all(answers):
        raise DataError(
            f"{len(predictions)} predictions for {len(answers)} questions: give one for each that has an answer"
        )

    def closeness(one: str, other: str) -> float:
        value = similarity(one, other)
        return value if value >= threshold else _DOWN_WEIGHT * value

    def covered(words: Iterable[str], others: Iterable[str]) -> float:
        return prod(max(closeness(word, other) for other in others) for word in words)

    scores = []
    for predicted, given in zip(predictions, answers, strict=True):
        said, true = set(map(normalize_answer, predicted)), set(map(normalize_answer, given))
        scores.append(min(covered(said, true), covered(true, said)) if said else 0.0)
    return np.array(scores, dtype=np.float64)
