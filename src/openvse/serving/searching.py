"""Questions to the index: gathered, answered by the newest state of it, and ranked again by a second model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from openvse.encoders import UnknownWord
from openvse.errors import DataError, ModelError
from openvse.search import Chances, Condition, Hit, Query, parse_condition
from openvse.serving.catalog import Catalog

if TYPE_CHECKING:  # it needs PyTorch
    from openvse.search import HitReranker

_CURVE_KNOTS = 41
_WILD = 8


@dataclass(frozen=True)
class Ask:
    """A query, and which of its hits are wanted.

    Attributes:
        query: what to look for; ``like`` holds the number of an item as text.
        top_k: hits of the page.
        skip: hits before it.
        min_score: the lowest score.
        min_precision: the lowest probability.
        expected: how many images are expected to be relevant.
        where: conditions.
    """

    query: Query
    top_k: int = 50
    skip: int = 0
    min_score: float | None = None
    min_precision: float | None = None
    expected: float | None = None
    where: tuple[Condition, ...] = ()

    @property
    def company(self) -> tuple[object, ...]:
        """What has to be equal for two queries to be searched by one call."""
        return self.where, self.expected, self.query.is_sentence


@dataclass(frozen=True)
class Found:
    """A page of hits.

    Attributes:
        catalog: the state of the index that was searched.
        hits: the hits, best first.
        was: the rank of each hit before it was ranked again, by its id; empty otherwise.
        searched: how many items were compared.
        more: whether there may be further hits.
        curve: score and probability at some places; empty where the model keeps no curve for such a query.
        unknown_words: words of the query that the model does not know.
    """

    catalog: Catalog
    hits: list[Hit]
    searched: int
    more: bool
    curve: list[tuple[float, float]] = field(default_factory=list)
    was: dict[str, int] = field(default_factory=dict)
    unknown_words: tuple[UnknownWord, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the page for a reply."""
        return {
            "hits": [self.catalog.describe_hit(hit, self.was.get(hit.id)) for hit in self.hits],
            "searched": self.searched,
            "more": self.more,
            "curve": self.curve,
            "unknown_words": [{"word": word.word, "read_as": word.read_as} for word in self.unknown_words],
        }


def search_together(catalog: Catalog, asks: Sequence[Ask]) -> list[Found]:
    """Answer several questions; those of the same conditions are searched together.

    Raises:
        OpenVSEError: one of them cannot be answered.
    """
    groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, ask in enumerate(asks):
        groups[ask.company].append(number)
    found: dict[int, Found] = {}
    if (
        len(groups) > 1
    ):  # one call of the encoder for all: the groups then find their sentences among the known ones
        catalog.model.encode_text([text for ask in asks for text in _texts(ask.query)])
    for numbers in groups.values():
        some = [asks[number] for number in numbers]
        first = some[0]
        # One hit more than wanted says whether there is another page.
        wanted = max(ask.skip + ask.top_k for ask in some) + 1
        queries = [ask.query for ask in some]
        results = catalog.engine.find(queries, wanted, where=first.where, expected=first.expected)
        for number, ask, hits in zip(numbers, some, results, strict=True):
            found[number] = _page(catalog, ask, hits)
    return [found[number] for number in range(len(asks))]


def _texts(query: Query) -> list[str]:
    return [text for text in (query.text, *query.avoid) if text.strip()]


def _page(catalog: Catalog, ask: Ask, hits: Sequence[Hit]) -> Found:
    chances = catalog.engine.chances(ask.where, ask.expected, ask.min_precision)
    chances.check([ask.query])
    good = [hit for hit in hits if _is_good(hit, ask)]
    page = good[ask.skip : ask.skip + ask.top_k]
    return Found(
        catalog,
        page,
        chances.gallery,
        len(good) > ask.skip + ask.top_k,
        _curve(chances) if ask.query.is_sentence else [],
        unknown_words=hits[0].unknown_words if hits else (),
    )


def _is_good(hit: Hit, ask: Ask) -> bool:
    lowest = -math.inf if ask.min_score is None else ask.min_score
    likely = ask.min_precision is None or (hit.probability or 0.0) >= ask.min_precision
    return hit.score >= lowest and likely


def _curve(chances: Chances) -> list[tuple[float, float]]:
    """Return the probability of some scores in the range of the curve."""
    if chances.curve is None:
        return []
    scores = np.linspace(chances.curve.scores[0], chances.curve.scores[-1], _CURVE_KNOTS)
    likely = chances.curve.probabilities(scores, chances.gallery, chances.expected)
    return [
        (round(score, 4), round(chance, 6))
        for score, chance in zip(scores.tolist(), likely.tolist(), strict=True)
    ]


def rerank(found: Found, ask: Ask, reranker: HitReranker) -> Found:
    """Return hits, from the first on, ranked again by a second model.

    Raises:
        DataError: the query is not just a sentence.
    """
    if not ask.query.is_sentence:
        raise DataError(
            "only a query that is just a sentence is ranked again: leave out images, items and avoid"
        )
    was = {hit.id: hit.rank for hit in found.hits[: reranker.top]}
    hits = reranker([ask.query.text], [found.hits])[0]
    page = hits[ask.skip : ask.skip + ask.top_k]
    more = found.more or len(hits) > ask.skip + ask.top_k
    return Found(found.catalog, page, found.searched, more, [], was, found.unknown_words)


def conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Return the conditions that texts mean.

    Raises:
        DataError: one cannot be understood, or holds a number that is out of any range.
    """
    parsed = []
    for text in texts:
        try:
            condition = parse_condition(text)
        except (ValueError, OverflowError, OSError) as error:
            raise DataError(f"{text!r} holds a number or a date that is out of range") from error
        if condition.value.count("*") > _WILD:
            raise DataError(f"{text!r} has more than {_WILD} stars: give a simpler pattern")
        if any(isinstance(value, int) and abs(value) >= 1 << 63 for value in condition.sql()[1]):
            raise DataError(f"{text!r} holds a number or a date that is out of range")
        parsed.append(condition)
    return tuple(parsed)


def check_precision_reachable(catalog: Catalog, ask: Ask) -> None:
    """Raise ModelError or DataError where a wanted probability cannot be had for a query."""
    if ask.min_precision is not None and catalog.engine.calibration is None:
        raise ModelError(
            "min_precision needs the curve from score to probability, which this model does not keep: fit it with "
            "'openvse calibrate', or give min_score"
        )
    if ask.min_precision is not None and not ask.query.is_sentence:
        raise DataError("min_precision needs a query that is just a sentence: give min_score")
