"""Whether a difference of two models on the same test set is real: a paired bootstrap, and an exact sign test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.evaluation.metrics import Replicates
from openvse.output.documents import CONFIDENCE

POWER = 0.8
"""The share of test sets in which the smallest difference would show."""


@dataclass(frozen=True)
class Difference:
    """How a metric differs between two models.

    Attributes:
        first: the metric of the first model.
        second: the metric of the second model.
        change: second minus first.
        interval: the percentile interval of the change, at the level ``CONFIDENCE``.
        smallest: the smallest difference that a test set of this size would show: with the standard deviation s of
            the resampled changes, ``(z_{1 - alpha/2} + z_{POWER}) s``, about 2.8 s. A true difference of this size is
            found by a test at the level alpha = 1 - CONFIDENCE on a share POWER of such test sets.
    """

    first: float
    second: float
    change: float
    interval: tuple[float, float]
    smallest: float

    @property
    def verdict(self) -> int:
        """1 if the interval is above 0, -1 if it is below 0, and 0 if it holds 0."""
        low, high = self.interval
        return int(low > 0) - int(high < 0)


@dataclass(frozen=True)
class Signs:
    """The numbers of queries of one direction on which the second model is better, worse, or equal.

    Attributes:
        better: the number of queries that the second model answers better.
        worse: the number of queries that it answers worse.
        equal: the number of queries with equal results.
        p: the two-sided p-value of the exact sign test; equal queries do not count.
    """

    better: int
    worse: int
    equal: int
    p: float


def paired_difference(
    first: float,
    second: float,
    drawn_first: Float[np.ndarray, "R"],
    drawn_second: Float[np.ndarray, "P"],
    *,
    confidence: float = CONFIDENCE,
) -> Difference:
    """Return the difference of a metric with its interval.

    Args:
        first: the metric of the first model.
        second: the metric of the second model.
        drawn_first: the metric of the first model on every resample of the test set; NaN where it has no value.
        drawn_second: that of the second model, on the same resamples in the same order.
        confidence: the level of the interval.

    Raises:
        DataError: the numbers of resamples differ, or none has a value.
    """
    if len(drawn_first) != len(drawn_second):
        raise DataError(
            f"{len(drawn_first)} and {len(drawn_second)} resamples are no pairs: draw the same resamples for both"
        )
    changes = drawn_second - drawn_first
    changes = changes[~np.isnan(changes)]
    if not len(changes):
        raise DataError("there is no resample with a value of both models: draw some")
    low, high = np.percentile(changes, (50.0 * (1.0 - confidence), 50.0 * (1.0 + confidence)))
    normal = NormalDist()
    factor = normal.inv_cdf((1.0 + confidence) / 2.0) + normal.inv_cdf(POWER)
    return Difference(
        first, second, second - first, (float(low), float(high)), factor * float(np.std(changes))
    )


def paired_differences(
    first: Mapping[str, float],
    second: Mapping[str, float],
    drawn_first: Replicates,
    drawn_second: Replicates,
) -> dict[str, Difference]:
    """Return the difference of each metric that has a value on some resample of both; see ``paired_difference``."""
    return {
        name: paired_difference(first[name], second[name], drawn_first[name], drawn_second[name])
        for name in drawn_first
        if name in drawn_second and not np.isnan(drawn_second[name] - drawn_first[name]).all()
    }


def sign_test(first: Float[np.ndarray, "Q"], second: Float[np.ndarray, "P"]) -> Signs:
    """Compare two models query by query.

    Args:
        first: how well the first model answers each query; more is better.
        second: the same of the second model.

    Returns:
        The counts, and the p-value of the exact two-sided sign test (Dixon and Mood, 1946): if both models were
        equally good, each of the n queries with different results would be better or worse with probability 1/2, and
        ``p = min(1, 2 P(X <= min(better, worse)))`` for X ~ Binomial(n, 1/2).

    Raises:
        DataError: the numbers of queries differ, or a value is NaN.
    """
    if first.shape != second.shape:
        raise DataError(
            f"{len(first)} and {len(second)} queries cannot be compared: ask both models the same"
        )
    if np.isnan(first).any() or np.isnan(second).any():
        raise DataError("the result of a query is NaN: leave the query out for both models")
    better, worse = int((second > first).sum()), int((second < first).sum())
    return Signs(better, worse, len(first) - better - worse, _two_sided(better, worse))


def _two_sided(better: int, worse: int) -> float:
    """Return the p-value in exact integer arithmetic; only the last division rounds."""
    count, fewer = better + worse, min(better, worse)
    term = total = 1
    for successes in range(fewer):
        term = term * (count - successes) // (successes + 1)
        total += term
    return min(1.0, float(2 * total / (1 << count)))
