"""The figures of reported runs, and the rows of a comparison, as tables for a page, a paper or a README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openvse.errors import OpenVSEError
from openvse.evaluation.comparison import Comparison, compared_metrics
from openvse.evaluation.findings import Findings
from openvse.evaluation.metrics import RECALLS
from openvse.evaluation.places import SEVERAL
from openvse.evaluation.report import INTERVAL, interval_cells, metric_cells, metric_title
from openvse.output.documents import CONFIDENCE
from openvse.output.table import Table
from openvse.report.run import MeasuredReport, read_run
from openvse.tasks.runs import NamedRun

_PLACES = tuple(f"{side}_{name}" for side in ("i2t", "t2i") for name in SEVERAL)


@dataclass(frozen=True)
class Figures:
    """A row of figures.

    Attributes:
        label: what they belong to.
        cells: a figure for each column; empty where there is none.
        kind: "run", "interval", or "beside" for figures to compare with.
    """

    label: str
    cells: tuple[str, ...]
    kind: str


def shown_metrics(findings: Findings) -> list[str]:
    """Return the metrics that tables show: RSUM, recalls and the ranks for retrieval, all scores for answers."""
    there = [*findings.metrics]
    if "rsum" not in there:
        return there
    ranks = [f"{side}_{name}" for side in ("i2t", "t2i") for name in ("medr", "meanr")]
    return [name for name in ("rsum", *RECALLS, *ranks, *_PLACES) if name in there]


def figure_rows(name: str, findings: Findings) -> list[Figures]:
    """Return the figures of a run, their intervals, and what they compare with."""
    names = shown_metrics(findings)
    rows = [Figures(name, metric_cells(findings.metrics, names), "run")]
    if findings.intervals:
        rows.append(Figures(INTERVAL, interval_cells(findings.intervals, names), "interval"))
    beside = findings.beside.items()
    return [*rows, *(Figures(label, metric_cells(metrics, names), "beside") for label, metrics in beside)]


def figures_table(name: str, findings: Findings) -> Table:
    """Return the table of a run, what it compares with below a line."""
    rows = figure_rows(name, findings)
    kinds = [row.kind for row in rows]
    return Table(
        ["", *map(metric_title, shown_metrics(findings))],
        [[row.label, *row.cells] for row in rows],
        strong=frozenset({0}),
        small=frozenset({kinds.index("interval")} if "interval" in kinds else ()),
        ruled=frozenset({kinds.index("beside")} if "beside" in kinds else ()),
    )


def table_with_notes(table: Table, notes: Sequence[str], form: str) -> str:
    """Return a table for a paper or a README, with what a reader needs to know.

    Args:
        notes: how its figures were measured, one line each.
        form: "markdown" or "text", with the notes as a list below the table; or "latex", with the notes as comments
            above it.
    """
    if form == "latex":
        return table.to_latex(notes)
    shown = table.to_text() if form == "text" else table.to_markdown()
    return "\n\n".join([shown, "\n".join(f"- {line}" for line in notes)]) + "\n"


def remarks(measured: MeasuredReport) -> list[str]:
    """Return what a reader needs to know about the table, a line at a time: leakage first."""
    if measured.findings is None:
        return []
    size, *others = measured.findings.notes or ("",)
    leaks = {line.replace(measured.run.name, "the model", 1) for line in measured.leaks}
    problems = [line for line in measured.findings.problems if line not in leaks]
    sides = any(name.startswith(("i2t_", "t2i_")) for name in measured.findings.metrics)
    return [
        *measured.leaks,
        f"on {measured.findings.data}: {size}",
        *others,
        *problems,
        *(["i2t: images ask for texts; t2i: texts ask for images"] if sides else []),
    ]


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


def compared_table(comparison: Comparison, facts: Mapping[str, RowFacts]) -> Table:
    """Return the rows of a comparison: seeds, validation, each metric, the difference to the first row, minutes.

    A column that would be empty in every row is left out.

    Args:
        facts: what the runs of a row say about their training, by the name of the row.
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
        columns[metric_title(name)] = [
            _spread([run.metrics[name] for run in row.runs]) for row in comparison.rows
        ]
    columns[f"{metric_title(main)}, difference"] = [
        f"{contrast.change:+.1f} ({contrast.interval[0]:+.1f} to {contrast.interval[1]:+.1f})"
        if (contrast := against.get(row.name)) is not None
        else ""
        for row in comparison.rows
    ]
    columns["minutes"] = [_range(facts[row.name].minutes) for row in comparison.rows]
    return Table.of({title: cells for title, cells in columns.items() if any(cells)})


def compared_notes(comparison: Comparison, facts: Mapping[str, RowFacts]) -> list[str]:
    """Return what a reader needs to know about the table, a line at a time."""
    lines = [f"on {comparison.name}: {comparison.about()}"]
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
    return [*lines, *dict.fromkeys(comparison.warnings())]


def _metrics(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the metric that rows are compared by, and all metrics of the table; RSUM stands behind its recalls."""
    names = compared_metrics(comparison)
    return names[0], [*names[1:], names[0]] if names[0] == "rsum" else names


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
