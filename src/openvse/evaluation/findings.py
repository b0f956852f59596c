"""What a report on a run shows of an evaluation, for every task: figures, and the best and the worst queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from openvse.evaluation.metrics import Metrics
from openvse.evaluation.reliability import Reliability
from openvse.evaluation.win_loss import Shown


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
