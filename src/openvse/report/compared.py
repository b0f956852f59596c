"""The rows of a comparison as one table for a paper or a README, in Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openvse.errors import OpenVSEError
from openvse.evaluation.comparison import Comparison, Row
from openvse.evaluation.comparison_text import counted, shown_metrics
from openvse.evaluation.report import metric_title
from openvse.output.documents import CONFIDENCE, markdown_table
from openvse.report.rows import latex_text
from openvse.report.run import read_run
from openvse.tasks.runs import NamedRun

_SIGNED = re.compile(r"[+-]\d+\.\d")


@dataclass(frozen=True)
class RowFacts:
    """What the runs of a row say about their training; empty if one of them does not say it.

    Attributes:
        validation: the metrics of the best model of each run on validation.
        minutes: the training time of each run.
    """

    validation: tuple[Mapping[str, float], ...] = ()
    minutes: tuple[float, ...] = ()


def row_facts(runs: Sequence[NamedRun]) -> RowFacts:
    """Return what the folders of the runs of a row say; ensembles and models without their run say nothing."""
    validation: list[Mapping[str, float]] = []
    minutes: list[float] = []
    for run in runs:
        if len(run.models) > 1:
            continue
        try:
            read = read_run(run.source)
        except OpenVSEError:  # a model whose records are gone can still be compared
            continue
        measured = read.config.provenance.get("validation")
        if isinstance(measured, Mapping) and isinstance(measured.get("metrics"), Mapping):
            validation.append(measured["metrics"])
        if (seconds := read.seconds()) is not None:
            minutes.append(seconds[0] / 60)
    count = len(runs)
    return RowFacts(
        tuple(validation) if len(validation) == count else (),
        tuple(minutes) if len(minutes) == count else (),
    )


def compared_markdown(comparison: Comparison, facts: Mapping[str, RowFacts]) -> str:
    """Return one table with a line for each row, and below it how it was measured.

    Args:
        comparison: the comparison, with its contrasts.
        facts: what the runs of a row say about their training, by the name of the row.
    """
    header, lines = compared_table(comparison, facts)
    notes = "\n".join(f"- {line}" for line in compared_notes(comparison, facts))
    return f"{markdown_table(header, lines)}\n\n{notes}\n"


def compared_latex(comparison: Comparison, facts: Mapping[str, RowFacts]) -> str:
    r"""Return the same table as a ``tabular`` with the package booktabs, with how it was measured as comments."""
    header, lines = compared_table(comparison, facts)
    rows = [*map(_latex, (header, *lines))]
    return "\n".join(
        [
            *(f"% {line}" for line in compared_notes(comparison, facts)),
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def compared_table(
    comparison: Comparison, facts: Mapping[str, RowFacts]
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines: the seeds, validation, each metric, the difference to the first row, minutes.

    A column that would be empty in every row is left out.
    """
    main, names = _metrics(comparison)
    against = {each.second: each.differences[main] for each in comparison.contrasts}
    columns: dict[str, list[str]] = {"": [row.name for row in comparison.rows]}
    columns["seeds"] = [str(len(row.runs)) for row in comparison.rows]
    columns[f"validation {metric_title(main)}"] = [
        _spread([each[main] for each in facts[row.name].validation if main in each])
        for row in comparison.rows
    ]
    for name in names:
        columns[metric_title(name)] = [_figure(row, name) for row in comparison.rows]
    columns[f"{metric_title(main)}, difference"] = [
        f"{found.change:+.1f} ({found.interval[0]:+.1f} to {found.interval[1]:+.1f})"
        if (found := against.get(row.name)) is not None
        else ""
        for row in comparison.rows
    ]
    columns["minutes"] = [_range(facts[row.name].minutes) for row in comparison.rows]
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    return list(shown), [list(line) for line in zip(*shown.values(), strict=True)]


def compared_notes(comparison: Comparison, facts: Mapping[str, RowFacts]) -> list[str]:
    """Return what a reader needs to know about the table, a line at a time."""
    folds = f", mean of {comparison.folds} folds" if comparison.folds > 1 else ""
    lines = [f"on {comparison.name}: {counted(comparison.size)}{folds}"]
    if any(row.spread for row in comparison.rows):
        lines.append("±: standard deviation over the seeds of a row")
    lines.append(
        f"difference: to {comparison.rows[0].name}, with its {CONFIDENCE:.0%} interval (paired bootstrap over images, "
        f"{comparison.resamples:,} resamples, seed {comparison.seed}); an interval that holds 0 shows no difference"
    )
    if any(row.spread for row in comparison.rows):
        lines.append("the bootstrap also draws the seeds of a row again")
    if any(len(row.runs) == 1 for row in comparison.rows):
        lines.append("a row of one seed: its interval leaves out how far another seed would move it")
    if any(facts[row.name].minutes for row in comparison.rows):
        lines.append("minutes: training time of a run, from the fastest to the slowest of a row")
    warned = (line for row in comparison.rows for run in row.runs for line in run.warnings)
    return [*lines, *comparison.problems, *dict.fromkeys(warned)]


def _metrics(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the metric that rows are compared by, and all metrics of the table; RSUM stands behind its recalls."""
    names = shown_metrics(comparison)
    return names[0], [*names[1:], names[0]] if names[0] == "rsum" else names


def _figure(row: Row, name: str) -> str:
    return _spread([run.metrics[name] for run in row.runs])


def _spread(values: Sequence[float]) -> str:
    """Return the mean, and the standard deviation (divided by n - 1) of several values; "" for none."""
    if len(values) < 2:
        return "".join(f"{value:.1f}" for value in values)
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.1f} ± {deviation:.1f}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = (f"{value:.0f}" if value >= 1 else "< 1" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _latex(line: Sequence[str]) -> str:
    """Return a line of the table; in its figures, signs are those of mathematics."""
    name, *figures = map(latex_text, line)
    signed = (_SIGNED.sub(r"$\g<0>$", each).replace("±", r"$\pm$").replace("< ", "$<$ ") for each in figures)
    return " & ".join([name, *signed]) + r" \\"
