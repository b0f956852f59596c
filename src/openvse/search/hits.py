"""Hits of a search: what they are, and how probable they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from openvse.encoders import UnknownWord
from openvse.errors import DataError, ModelError
from openvse.media.segments import ClipSegment
from openvse.model import Calibration
from openvse.model.calibration import check_precision
from openvse.search.query import Query


@dataclass(frozen=True)
class Hit:
    """An image that answers a query.

    Attributes:
        rank: 1 is the best.
        score: similarity of query and image.
        id: path below the indexed folder.
        path: where the image is.
        unknown_words: words of the query that the model does not know; the same for all hits of a query.
        start: where a segment of a clip begins, in seconds; None for an item that is a whole file.
        end: where it ends.
        probability: that the image is relevant to the sentence, among as many images as were searched; None where the
            model keeps no curve from score to probability, and for a query that is not just a sentence.
    """

    rank: int
    score: float
    id: str
    path: Path
    unknown_words: tuple[UnknownWord, ...] = ()
    probability: float | None = None
    start: float | None = None
    end: float | None = None

    @property
    def source(self) -> Path | ClipSegment:
        """What a model or a page reads of the hit: its file, or a part of it."""
        if self.start is None or self.end is None:
            return self.path
        return ClipSegment(self.path, self.start, self.end)


def best_of_files(hits: Sequence[Hit]) -> list[Hit]:
    """Return the first hit of each file."""
    first: dict[Path, Hit] = {}
    for hit in hits:
        first.setdefault(hit.path, hit)
    return list(first.values())


@dataclass(frozen=True)
class Chances:
    """Gives hits their probabilities, and leaves out those that are not probable enough.

    Args:
        curve: of the model whose scores the hits have; None gives no probabilities.
        gallery: the number of images that were searched.
        expected: how many of them are expected to be relevant to a sentence; None takes that of the curve's data.
        min_precision: the lowest probability of a hit; None takes all hits.

    Raises:
        DataError: a number is outside its range.
        ModelError: ``min_precision`` is given without a curve.
    """

    curve: Calibration | None
    gallery: int
    expected: float | None = None
    min_precision: float | None = None

    def __post_init__(self) -> None:
        if self.min_precision is None:
            return
        check_precision(self.min_precision)
        if self.curve is None:
            raise ModelError(
                "a wanted precision needs the curve from score to probability, which this model does not keep for such "
                "an index: fit it with 'openvse calibrate MODEL --on DATA', on captioned images that the model was not "
                "trained on"
            )

    def check(self, queries: Sequence[Query]) -> None:
        """Raise DataError where a precision is wanted for a query that is not just a sentence."""
        if self.min_precision is not None and not all(query.is_sentence for query in queries):
            raise DataError(
                "a wanted precision needs queries that are just a sentence: leave out images, items and what is to be "
                "avoided"
            )

    @property
    def highest(self) -> float | None:
        """The probability of the best possible score; None without a curve."""
        return None if self.curve is None else self.curve.highest(self.gallery, self.expected)

    def of(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits of a sentence with their probabilities, without those that are not probable enough."""
        if self.curve is None:
            return list(hits)
        scores = np.array([hit.score for hit in hits], dtype=np.float64)
        chances = self.curve.probabilities(scores, self.gallery, self.expected).tolist()
        lowest = 0.0 if self.min_precision is None else self.min_precision
        return [
            replace(hit, probability=chance)
            for hit, chance in zip(hits, chances, strict=True)
            if chance >= lowest
        ]
