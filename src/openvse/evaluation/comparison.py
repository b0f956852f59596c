"""Runs side by side on one test set: seeds as one row, each row against the first by paired bootstrap and sign test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.evaluation.metrics import Metrics, Replicates, pool_of
from openvse.output.documents import CONFIDENCE

POWER = 0.8
"""The share of test sets in which the smallest difference would be significant."""


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models.

    Attributes:
        first: the metric of the first model.
        second: the metric of the second model.
        change: second minus first.
        interval: the percentile interval of the change, at the level ``CONFIDENCE``.
        smallest: the smallest difference that a test set of this size would show: with the standard deviation s of the
            resampled changes, ``(z_{1 - alpha/2} + z_{POWER}) s``, about 2.8 s. A test at the level alpha = 1 -
            CONFIDENCE finds a true difference of this size on a share POWER of such test sets.
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

    ``p`` is the two-sided p-value of the exact sign test. Equal queries do not count.
    """

    better: int
    worse: int
    equal: int
    p: float


def paired_differences(
    first: Mapping[str, float], second: Mapping[str, float], drawn_first: Replicates, drawn_second: Replicates
) -> dict[str, Difference]:
    """Return the difference of each metric that has a value on some resample of both models, with its interval.

    Args:
        first: the metrics of the first model.
        second: the metrics of the second model.
        drawn_first: the metrics of the first model on every resample of the test set, NaN where one has no value.
        drawn_second: the same for the second model, on the same resamples in the same order.
    """
    differences = {}
    normal = NormalDist()
    factor = normal.inv_cdf((1.0 + CONFIDENCE) / 2.0) + normal.inv_cdf(POWER)
    for name in (name for name in drawn_first if name in drawn_second):
        one, other = drawn_first[name], drawn_second[name]
        changes = other - one
        changes = changes[~np.isnan(changes)]
        if len(changes):
            low, high = np.percentile(changes, (50.0 * (1.0 - CONFIDENCE), 50.0 * (1.0 + CONFIDENCE)))
            change, smallest = second[name] - first[name], factor * float(np.std(changes))
            differences[name] = Difference(first[name], second[name], change, (float(low), float(high)), smallest)
    return differences


def sign_test(first: Float[np.ndarray, "Q"], second: Float[np.ndarray, "P"]) -> Signs:
    """Compare two models query by query.

    Args:
        first: the result of the first model on each query. More is better.
        second: the same for the second model.

    Returns:
        The counts, and the p-value of the exact two-sided sign test (Dixon and Mood, 1946). If both models were equally
        good, each of the n queries with different results would be better or worse with probability 1/2, and
        ``p = min(1, 2 P(X <= min(better, worse)))`` for X ~ Binomial(n, 1/2).

    Raises:
        DataError: the numbers of queries differ, or a value is NaN.
    """
    if first.shape != second.shape:
        raise DataError(f"{len(first)} and {len(second)} queries cannot be compared: ask both models the same")
    if np.isnan(first).any() or np.isnan(second).any():
        raise DataError("the result of a query is NaN: leave the query out for both models")
    better, worse = int((second > first).sum()), int((second < first).sum())
    return Signs(better, worse, len(first) - better - worse, _two_sided(better, worse))


def _two_sided(better: int, worse: int) -> float:
    """Return the p-value in exact integer arithmetic. Only the last division rounds."""
    count, fewer = better + worse, min(better, worse)
    term = total = 1
    for successes in range(fewer):
        term = term * (count - successes) // (successes + 1)
        total += term
    return min(1.0, float(2 * total / (1 << count)))


@dataclass(frozen=True)
class MeasuredRun:
    """One run on a test set.

    Attributes:
        replicates: its metrics on every resample. All runs have the same resamples.
        queries: its result on each query of each direction. More is better (for retrieval, minus the rank).
        outcomes: its answers to each query, in the form of its task, or None if unknown.
    """

    source: str
    model: str
    metrics: Metrics
    replicates: Replicates
    queries: Mapping[str, Float[np.ndarray, "Q"]]
    warnings: tuple[str, ...] = ()
    outcomes: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed, or a single run."""

    name: str
    runs: tuple[MeasuredRun, ...]

    @property
    def mean(self) -> Metrics:
        """The mean of each metric over the runs."""
        return {name: float(np.mean([run.metrics[name] for run in self.runs])) for name in self.runs[0].metrics}

    @property
    def spread(self) -> Metrics:
        """The standard deviation of each metric over the runs (divided by n - 1), empty for one run."""
        if len(self.runs) < 2:
            return {}
        values = {name: [run.metrics[name] for run in self.runs] for name in self.runs[0].metrics}
        return {name: float(np.std(each, ddof=1)) for name, each in values.items()}

    def queries(self) -> dict[str, Float[np.ndarray, "Q"]]:
        """Return the mean result of each query over the runs."""
        first = self.runs[0].queries
        return {side: np.mean([run.queries[side] for run in self.runs], axis=0) for side in first}

    def replicates(self, generator: np.random.Generator) -> Replicates:
        """Return the mean over the runs on every resample. A resample of several runs draws the same number of runs.

        Drawing the runs too makes the interval valid for another training with other seeds, as far as a few runs can
        show. All runs share the drawn images.
        """
        names = self.runs[0].replicates
        resamples, count = len(next(iter(names.values()))), len(self.runs)
        chosen = generator.integers(count, size=(resamples, count))
        drawn = {name: np.stack([run.replicates[name] for run in self.runs], axis=1) for name in names}
        return {name: np.take_along_axis(values, chosen, axis=1).mean(axis=1) for name, values in drawn.items()}


@dataclass(frozen=True)
class RowContrast:
    """A row against the first row: the differences (second minus first), and the exact sign test of each direction."""

    first: str
    second: str
    differences: Mapping[str, Difference]
    signs: Mapping[str, Signs]


@dataclass(frozen=True)
class Comparison:
    """All rows, and each row against the first one.

    ``size`` has the number of items of each kind. ``folds`` parts were evaluated separately and averaged.
    """

    name: str
    size: Mapping[str, int]
    seed: int
    resamples: int
    rows: tuple[Row, ...] = ()
    contrasts: tuple[RowContrast, ...] = ()
    problems: tuple[str, ...] = ()
    folds: int = 1

    def warnings(self) -> list[str]:
        """Return the skipped items and the remarks on each run."""
        return [*self.problems, *(line for row in self.rows for run in row.runs for line in run.warnings)]

    def about(self) -> str:
        """Return the numbers of items, such as "1,000 images, 5,000 texts", and of folds."""
        counted = ", ".join(f"{count:,} {what}" for what, count in self.size.items())
        pool, folds = pool_of(next(iter(self.size.values()), 0), self.folds)
        return f"{counted}, mean of {folds} of {pool} images" if folds else counted


def contrast_rows(comparison: Comparison) -> Comparison:
    """Compare every row with the first. Raise DataError unless two or more answered the same queries."""
    first, *others = comparison.rows
    if not others:
        raise DataError(f"there is one row, {first.name}: name runs of another recipe, or give each run a row")
    contrasts = []
    for other in others:
        generator = np.random.default_rng(comparison.seed)
        drawn = first.replicates(generator), other.replicates(generator)
        differences = paired_differences(first.mean, other.mean, *drawn)
        contrasts.append(RowContrast(first.name, other.name, differences, _signs(first, other)))
    return replace(comparison, contrasts=tuple(contrasts))


def _signs(first: Row, second: Row) -> dict[str, Signs]:
    """Return the sign test of each direction.

    With several runs, a row is better on a query if it is better in more of the pairs of runs. Means of ranks would be
    unfair: ranks are skewed, so the mean of several runs is more often worse than a single run that is equally good.
    """
    one, other = first.runs[0].queries, second.runs[0].queries
    if {side: len(each) for side, each in one.items()} != {side: len(each) for side, each in other.items()}:
        raise DataError(f"{first.name} and {second.name} have answered different queries: ask both the same")
    pairs = [(a.queries, b.queries) for a in first.runs for b in second.runs]
    better = {side: np.sum([np.sign(b[side] - a[side]) for a, b in pairs], axis=0) for side in one}
    return {side: sign_test(np.zeros(len(each)), each) for side, each in better.items()}
