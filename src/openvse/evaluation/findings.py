"""What a report on a run shows of an evaluation, for every task: figures, and the best and the worst queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from openvse.evaluation.metrics import Metrics
from openvse.evaluation.reliability import Reliability
from openvse.media.packed import ImageFile


@dataclass(frozen=True)
class Shown:
    """A query, an answer or what was found, as a page shows it: a text, an image, or both."""

    text: str = ""
    image: ImageFile | None = None


@dataclass(frozen=True)
class Example:
    """One query, and what both models made of it.

    Attributes:
        query: the query.
        right: a right answer to it.
        found: the first result of each model.
        results: what the first result of each model is, and how good, such as "first hit; right at 3".
        hits: whether the first result of each model is right.
    """

    query: Shown
    right: Shown
    found: tuple[Shown, Shown]
    results: tuple[str, str]
    hits: tuple[bool, bool]


@dataclass(frozen=True)
class Examples:
    """The largest gains and losses of one direction.

    Attributes:
        title: what kind of queries they are.
        better: the queries on which the second model is better, the largest gain first.
        worse: the queries on which it is worse, the largest loss first.
    """

    title: str
    better: tuple[Example, ...]
    worse: tuple[Example, ...]


def largest_changes(
    gains: Float[np.ndarray, "Q"], count: int
) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "W"]]:
    """Return the positions of the largest gains and of the largest losses, at most ``count`` each; 0 is neither."""
    order = np.argsort(-gains, kind="stable")
    better, worse = order[gains[order] > 0], order[gains[order] < 0][::-1]
    return better[:count], worse[:count]


@dataclass(frozen=True)
class AnsweredQuery:
    """One query and what the model has found for it.

    Attributes:
        query: the query.
        found: the first results, best first.
        hits: whether each of them is right.
        right: a right answer, if none of the first results is one.
        result: how good the answer is, such as "right at 12".
    """

    query: Shown
    found: tuple[Shown, ...]
    hits: tuple[bool, ...]
    right: Shown | None
    result: str


@dataclass(frozen=True)
class AnsweredQueries:
    """The best and the worst queries of one direction.

    Attributes:
        title: what kind of queries they are.
        best: the queries that the model answers best, the best first.
        worst: the queries that it answers worst, the worst first.
    """

    title: str
    best: tuple[AnsweredQuery, ...]
    worst: tuple[AnsweredQuery, ...]


@dataclass(frozen=True)
class Findings:
    """The result of an evaluation in the form that a report shows.

    Attributes:
        data: the data set and split.
        size: what published figures of the same protocol have, such as ``{"num_images": 1000, "folds": 1}``.
        metrics: the metrics, in percent or as ranks.
        intervals: the lower and upper bound of each metric that has an interval.
        beside: figures to compare with (published ones, chance, baselines), by label.
        notes: how it was measured, one line each.
        problems: what was left out, and leakage, one line each.
        reliability: how far the model's probabilities hold, if it knows any.
        queries: the best and the worst queries of each direction.
    """

    data: str
    size: Mapping[str, int]
    metrics: Metrics
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    beside: Mapping[str, Metrics] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    reliability: Reliability | None = None
    queries: tuple[AnsweredQueries, ...] = ()
