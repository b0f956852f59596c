"""The content of report pages, for every task: the figures of models, and single queries with their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from openvse.evaluation.metrics import Metrics
from openvse.evaluation.reliability import Reliability
from openvse.media.packed import ImageFile


@dataclass(frozen=True)
class Shown:
    """A query, an answer or a result, as a page shows it: a text, an image, or both."""

    text: str = ""
    image: ImageFile | None = None


@dataclass(frozen=True)
class AnsweredQuery:
    """One query with the results of one model, or of each of two models.

    Attributes:
        answers: the first results of the model, best first, or the first result of each model.
        results: the quality of each model's answer, such as "right at 12".
        right: a right answer. A report on one model leaves it out if it is among the results.
    """

    query: Shown
    answers: tuple[Shown, ...]
    hits: tuple[bool, ...]
    results: tuple[str, ...]
    right: Shown | None


@dataclass(frozen=True)
class AnsweredQueries:
    """Queries of one direction at both ends of a list, each end from its extreme.

    A model answers them best and worst, or the second model gains and loses most on them.
    """

    title: str
    best: tuple[AnsweredQuery, ...]
    worst: tuple[AnsweredQuery, ...]


def largest_changes(gains: Float[np.ndarray, "Q"], count: int) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "W"]]:
    """Return the positions of the largest gains and of the largest losses, at most ``count`` each, without zeros."""
    order = np.argsort(-gains, kind="stable")
    better, worse = order[gains[order] > 0], order[gains[order] < 0][::-1]
    return better[:count], worse[:count]


def one_per_image(numbers: Iterable[int], images: Sequence[int], count: int) -> Iterator[int]:
    """Yield queries in their order, at most one for each image, so that its sentences do not fill a list."""
    seen: set[int] = set()
    for number in numbers:
        if images[number] not in seen and len(seen) < count:
            seen.add(images[number])
            yield number


@dataclass(frozen=True)
class Findings:
    """The result of an evaluation in the form that a report shows.

    ``beside`` has figures to compare with (published ones, chance, baselines), ``notes`` the conditions, ``problems``
    omitted items and leakage, and ``digest`` distinguishes other data of the same name.
    """

    data: str
    size: Mapping[str, int]
    metrics: Metrics
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    beside: Mapping[str, Metrics] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    reliability: Reliability | None = None
    queries: tuple[AnsweredQueries, ...] = ()
    digest: str = ""
