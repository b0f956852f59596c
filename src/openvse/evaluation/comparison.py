"""Runs side by side on the same test set: several seeds as one row, and each row against the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.evaluation.metrics import Metrics, Replicates
from openvse.evaluation.paired import Difference, Signs, paired_differences, sign_test


@dataclass(frozen=True)
class MeasuredRun:
    """One run on a test set.

    Attributes:
        source: the run, as it was named.
        model: the fingerprint of its model.
        metrics: its metrics.
        replicates: its metrics on every resample; the resamples are the same for all runs.
        queries: how well it answers each query of each direction; more is better (for retrieval, minus the rank).
        warnings: what a reader should know before reading its figures, such as leakage.
    """

    source: str
    model: str
    metrics: Metrics
    replicates: Replicates
    queries: Mapping[str, Float[np.ndarray, "Q"]]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed, or a single run.

    Attributes:
        name: the name of the row.
        runs: the runs.
    """

    name: str
    runs: tuple[MeasuredRun, ...]

    @property
    def mean(self) -> Metrics:
        """The mean of each metric over the runs."""
        return {
            name: float(np.mean([run.metrics[name] for run in self.runs])) for name in self.runs[0].metrics
        }

    @property
    def spread(self) -> Metrics:
        """The standard deviation of each metric over the runs (divided by n - 1); empty for one run."""
        if len(self.runs) < 2:
            return {}
        values = {name: [run.metrics[name] for run in self.runs] for name in self.runs[0].metrics}
        return {name: float(np.std(each, ddof=1)) for name, each in values.items()}

    def queries(self) -> dict[str, Float[np.ndarray, "Q"]]:
        """Return the mean result of each query over the runs."""
        first = self.runs[0].queries
        return {side: np.mean([run.queries[side] for run in self.runs], axis=0) for side in first}

    def replicates(self, generator: np.random.Generator) -> Replicates:
        """Return the mean over the runs on every resample; of several runs, each resample draws as many again.

        Drawing the runs too makes the interval that of another training with other seeds, as far as a few runs can
        tell. Images are drawn for all runs alike.
        """
        names = self.runs[0].replicates
        resamples, count = len(next(iter(names.values()))), len(self.runs)
        chosen = generator.integers(count, size=(resamples, count))
        drawn = {name: np.stack([run.replicates[name] for run in self.runs], axis=1) for name in names}
        return {
            name: np.take_along_axis(values, chosen, axis=1).mean(axis=1) for name, values in drawn.items()
        }


@dataclass(frozen=True)
class Contrast:
    """A row against the first row.

    Attributes:
        first: the name of the first row.
        second: the name of the other row.
        differences: the difference of each metric, second minus first.
        signs: the exact sign test of each direction.
    """

    first: str
    second: str
    differences: Mapping[str, Difference]
    signs: Mapping[str, Signs]


@dataclass(frozen=True)
class Comparison:
    """All rows, and each row against the first one.

    Attributes:
        name: the data set and split.
        size: the number of items of each kind, such as ``{"images": 1000, "texts": 5000}``.
        seed: the seed of the bootstrap.
        resamples: the number of resamples.
        rows: the rows.
        contrasts: one for each row but the first.
        problems: what was skipped, one line each.
        folds: the number of parts that were evaluated separately and averaged.
    """

    name: str
    size: Mapping[str, int]
    seed: int
    resamples: int
    rows: tuple[Row, ...]
    contrasts: tuple[Contrast, ...] = ()
    problems: tuple[str, ...] = ()
    folds: int = 1


def contrast_rows(comparison: Comparison) -> Comparison:
    """Return a comparison with every row against the first one.

    Raises:
        DataError: there are fewer than two rows, or rows have not answered the same queries.
    """
    first, *others = comparison.rows
    if not others:
        raise DataError(
            f"there is only one row, {first.name}, and nothing to compare it with: name runs of another recipe, or "
            f"give each run a row of its own"
        )
    contrasts = tuple(
        Contrast(
            first.name,
            other.name,
            paired_differences(first.mean, other.mean, *_drawn(first, other, comparison.seed)),
            _signs(first, other),
        )
        for other in others
    )
    return replace(comparison, contrasts=contrasts)


def _drawn(first: Row, second: Row, seed: int) -> Sequence[Replicates]:
    generator = np.random.default_rng(seed)
    return [first.replicates(generator), second.replicates(generator)]


def _signs(first: Row, second: Row) -> dict[str, Signs]:
    one, other = first.queries(), second.queries()
    if {side: len(each) for side, each in one.items()} != {side: len(each) for side, each in other.items()}:
        raise DataError(f"{first.name} and {second.name} have answered different queries: ask both the same")
    return {side: sign_test(one[side], other[side]) for side in one}
