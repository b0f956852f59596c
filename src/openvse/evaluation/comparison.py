"""Runs side by side on one test set: seeds as one row, each row against the first; as text, Markdown and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from string import ascii_uppercase
from textwrap import fill
from typing import Any

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.evaluation.metrics import RECALLS, Metrics, Replicates
from openvse.evaluation.paired import POWER, Difference, Signs, paired_differences, sign_test
from openvse.evaluation.report import metric_title
from openvse.output.documents import CONFIDENCE
from openvse.output.table import COLUMNS, Table


@dataclass(frozen=True)
class MeasuredRun:
    """One run on a test set.

    Attributes:
        source: the run, as it was named.
        model: the fingerprint of its model.
        replicates: its metrics on every resample; the resamples are the same for all runs.
        queries: how well it answers each query of each direction; more is better (for retrieval, minus the rank).
        warnings: what a reader should know before reading its figures, such as leakage.
        outcomes: its answers to each query, in the form of its task; None if that is not known.
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
class RowContrast:
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
        resamples: the number of resamples.
        contrasts: one for each row but the first.
        problems: what was skipped, one line each.
        folds: the number of parts that were evaluated separately and averaged.
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
        """Return what was skipped, and what a reader should know of each run."""
        return [*self.problems, *(line for row in self.rows for run in row.runs for line in run.warnings)]

    def about(self) -> str:
        """Return the numbers of items, such as "1,000 images, 5,000 texts", and of folds."""
        counted = ", ".join(f"{count:,} {what}" for what, count in self.size.items())
        return f"{counted}, mean of {self.folds} folds" if self.folds > 1 else counted


def contrast_rows(comparison: Comparison) -> Comparison:
    """Compare every row with the first; raise DataError unless two or more answered the same queries."""
    first, *others = comparison.rows
    if not others:
        raise DataError(
            f"there is only one row, {first.name}, and nothing to compare it with: name runs of another recipe, or "
            f"give each run a row of its own"
        )
    contrasts = []
    for other in others:
        generator = np.random.default_rng(comparison.seed)
        drawn = first.replicates(generator), other.replicates(generator)
        differences = paired_differences(first.mean, other.mean, *drawn)
        contrasts.append(RowContrast(first.name, other.name, differences, _signs(first, other)))
    return replace(comparison, contrasts=tuple(contrasts))


def _signs(first: Row, second: Row) -> dict[str, Signs]:
    """Return the sign test of each direction.

    With several runs, a row is better on a query if it is better in more of the pairs of runs. The means of ranks would
    not do: ranks are skewed, so the mean of several runs is more often worse than a single run that is equally good.
    """
    one, other = first.runs[0].queries, second.runs[0].queries
    if {side: len(each) for side, each in one.items()} != {side: len(each) for side, each in other.items()}:
        raise DataError(f"{first.name} and {second.name} have answered different queries: ask both the same")
    pairs = [(a.queries, b.queries) for a in first.runs for b in second.runs]
    better = {side: np.sum([np.sign(b[side] - a[side]) for a, b in pairs], axis=0) for side in one}
    return {side: sign_test(np.zeros(len(each)), each) for side, each in better.items()}


SIDES = {"i2t": "images asking for texts", "t2i": "texts asking for images", "questions": "questions"}


def letters(comparison: Comparison) -> dict[str, str]:
    """Return a letter for each row, or a number if there are more rows than letters."""
    many = len(comparison.rows) > len(ascii_uppercase)
    return {
        row.name: str(number + 1) if many else ascii_uppercase[number]
        for number, row in enumerate(comparison.rows)
    }


def compared_metrics(comparison: Comparison) -> list[str]:
    """Return the metrics that tables show: RSUM and recalls, or whatever else has resamples."""
    there = comparison.contrasts[0].differences
    return [name for name in ("rsum", *RECALLS) if name in there] or [
        name for name in there if not name.endswith("meanr")
    ]


def row_table(comparison: Comparison) -> Table:
    """Return the table of rows; a line of spreads follows a row of several runs."""
    names = compared_metrics(comparison)
    lines = []
    for name, row in zip(letters(comparison).values(), comparison.rows, strict=True):
        lines.append([name, str(len(row.runs)), *(f"{row.mean[metric]:.1f}" for metric in names)])
        if row.spread:
            lines.append(["", "", *(f"±{row.spread[metric]:.1f}" for metric in names)])
    return Table(["", "seeds", *map(metric_title, names)], lines)


def difference_table(comparison: Comparison, contrast: RowContrast) -> Table:
    """Return the table of differences."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = []
    for metric in compared_metrics(comparison):
        difference = contrast.differences[metric]
        low, high = difference.interval
        cells = f"{difference.change:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{difference.smallest:.1f}"
        lines.append([metric_title(metric), *cells, verdict(difference, first, second)])
    header = [f"{second} - {first}", "difference", f"{CONFIDENCE:.0%} interval", "would show", ""]
    return Table(header, lines)


def sign_table(comparison: Comparison, contrast: RowContrast) -> Table:
    """Return the table of the sign tests."""
    name = letters(comparison)
    first, second = name[contrast.first], name[contrast.second]
    lines = [
        [SIDES.get(side, side), f"{test.better:,}", f"{test.worse:,}", f"{test.equal:,}", _p(test.p)]
        for side, test in contrast.signs.items()
    ]
    return Table(["queries", f"{second} better", f"{first} better", "equal", "p"], lines)


def verdict(difference: Difference, first: str, second: str) -> str:
    """Return which of two rows is better, or that the test set does not show it."""
    return {1: f"{second} is better", -1: f"{first} is better", 0: "not shown"}[difference.verdict]


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader needs to know about the figures, a sentence or two at a time."""
    yield (
        f"interval: paired bootstrap over images, {comparison.resamples:,} resamples, seed {comparison.seed}; "
        f'"not shown" means that it holds 0'
    )
    yield (
        f"would show: the smallest true difference that such a test set shows in {POWER:.0%} of cases; "
        f'a "not shown" says nothing about smaller ones'
    )
    counts = [len(row.runs) for row in comparison.rows]
    if max(counts) == 1:
        yield (
            "one run a row: an interval says how far other test images would move the difference, not how far "
            "another seed would"
        )
    else:
        yield "±: standard deviation over the seeds of a row, which the bootstrap draws again, too"
        if min(counts) == 1:
            yield "a row of one run has no spread: an interval leaves out how far another seed would move it"
    if "t2i" in comparison.contrasts[0].signs:
        yield "p: exact sign test; the texts of an image are not independent, so their p is too small"
    if len(comparison.contrasts) > 1:
        yield f"{len(comparison.contrasts)} comparisons: intervals and p are not corrected for their number"


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison for a terminal: rows by letter, their metrics, and each row against the first."""
    blocks = ["\n".join(f"{letter}  {name}" for name, letter in letters(comparison).items())]
    blocks.append(f"on {comparison.name}: {comparison.about()}")
    blocks.append(row_table(comparison).to_text())
    for contrast in comparison.contrasts:
        blocks.append(difference_table(comparison, contrast).to_text())
        blocks.append(sign_table(comparison, contrast).to_text())
    wrapped = partial(
        fill, width=COLUMNS - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    blocks.append("\n".join(map(wrapped, (*remarks(comparison), *comparison.warnings()))))
    return "\n\n".join(blocks)


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values; docs/json.md describes them."""
    return {
        "data": comparison.name,
        "size": dict(comparison.size),
        "folds": comparison.folds,
        "seed": comparison.seed,
        "resamples": comparison.resamples,
        "rows": [
            {
                "name": row.name,
                "runs": [
                    {
                        "source": run.source,
                        "model": run.model,
                        "metrics": run.metrics,
                        "warnings": [*run.warnings],
                    }
                    for run in row.runs
                ],
                "mean": row.mean,
                "spread": row.spread,
            }
            for row in comparison.rows
        ],
        "contrasts": [
            {
                "first": each.first,
                "second": each.second,
                "differences": {
                    name: {**asdict(value), "interval": [*value.interval], "shown": value.verdict != 0}
                    for name, value in each.differences.items()
                },
                "signs": {side: asdict(value) for side, value in each.signs.items()},
            }
            for each in comparison.contrasts
        ],
        "problems": [*comparison.problems],
    }


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}" if value > 0 else "< 1e-300"
