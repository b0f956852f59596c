"""The figures of reported runs as a table: for the page, and as rows in Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openvse.evaluation.metrics import RECALL_AT
from openvse.evaluation.places import SEVERAL
from openvse.evaluation.report import metric_title
from openvse.output.documents import CONFIDENCE, markdown_table
from openvse.report.measure import MeasuredReport

_RECALLS = tuple(f"{side}_r{k}" for side in ("i2t", "t2i") for k in RECALL_AT)
_PLACES = tuple(f"{side}_{name}" for side in ("i2t", "t2i") for name in SEVERAL)
_SPECIAL = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


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


def shown_metrics(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return the metrics that tables show: RSUM, recalls and the ranks for retrieval, all scores for answers."""
    there = list(dict.fromkeys(name for each in reports if each.findings for name in each.findings.metrics))
    if "rsum" not in there:
        return there
    ranks = [f"{side}_{name}" for side in ("i2t", "t2i") for name in ("medr", "meanr")]
    return [name for name in ("rsum", *_RECALLS, *ranks, *_PLACES) if name in there]


def figure_rows(reports: Sequence[MeasuredReport], names: Sequence[str]) -> list[Figures]:
    """Return the rows of all runs with their intervals, and then what they compare with, each only once.

    Args:
        reports: the runs; those that were not evaluated have no row.
        names: the metrics of the columns.
    """
    rows: list[Figures] = []
    before: list[Figures] = []
    beside: dict[tuple[str, tuple[str, ...]], Figures] = {}
    several = len(reports) > 1
    for each in reports:
        if each.findings is None:
            continue
        rows.append(Figures(each.run.name, _cells(each.findings.metrics, names), "run"))
        if each.findings.intervals:
            bounds = each.findings.intervals
            cells = tuple(f"{bounds[n][0]:.1f} to {bounds[n][1]:.1f}" if n in bounds else "" for n in names)
            rows.append(Figures(f"{CONFIDENCE:.0%} interval", cells, "interval"))
        if each.before is not None:
            label, metrics = each.before
            label = f"{each.run.name}, {label}" if several else label
            before.append(Figures(label, _cells(metrics, names), "beside"))
        for label, metrics in each.findings.beside.items():
            cells = _cells(metrics, names)
            beside.setdefault((label, cells), Figures(label, cells, "beside"))
    return [*rows, *before, *beside.values()]


def markdown_rows(reports: Sequence[MeasuredReport]) -> str:
    """Return the table in Markdown, with the data set, how it was measured, and leakage below it."""
    names = shown_metrics(reports)
    rows = [
        [f"**{row.label}**", *(f"**{cell}**" if cell else "" for cell in row.cells)]
        if row.kind == "run"
        else [row.label, *row.cells]
        for row in figure_rows(reports, names)
    ]
    lines = [f"- {line}" for line in remarks(reports)]
    return "\n\n".join([markdown_table(["", *map(metric_title, names)], rows), "\n".join(lines)]) + "\n"


def latex_rows(reports: Sequence[MeasuredReport]) -> str:
    r"""Return the rows for a ``tabular`` with the package booktabs, with how it was measured as comments."""
    names = shown_metrics(reports)
    lines = [f"% {line}" for line in remarks(reports)]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(names)}}}", r"\toprule"]
    lines.append(" & ".join(["", *(latex_text(metric_title(name)) for name in names)]) + r" \\")
    lines.append(r"\midrule")
    last = "run"
    for row in figure_rows(reports, names):
        if row.kind == "beside" and last != "beside":
            lines.append(r"\midrule")
        last = row.kind
        cells = [
            latex_text(cell).replace(" to ", "--") if row.kind == "interval" else latex_text(cell)
            for cell in row.cells
        ]
        if row.kind == "interval":
            cells = [rf"{{\scriptsize {cell}}}" if cell else "" for cell in cells]
        lines.append(" & ".join([latex_text(row.label), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def remarks(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return what a reader needs to know about the table, a line at a time: leakage first, and who is meant."""
    there = [each for each in reports if each.findings is not None]
    leaks = [line for each in there for line in each.leaks]
    told = {each.run.name: _notes(each) for each in there}
    shared = [line for line in next(iter(told.values()), []) if all(line in lines for lines in told.values())]
    own = [
        f"{name}: {line}" if len(there) > 1 else line
        for name, lines in told.items()
        for line in lines
        if line not in shared
    ]
    sides = any(name.startswith(("i2t_", "t2i_")) for name in shown_metrics(reports))
    return [
        *leaks,
        *shared,
        *own,
        *(["i2t: images ask for texts; t2i: texts ask for images"] if sides else []),
    ]


def _notes(each: MeasuredReport) -> list[str]:
    """Return how a run was measured and what was left out, without leakage."""
    assert each.findings is not None
    size, *others = each.findings.notes or ("",)
    leaks = {line.replace(each.run.name, "the model", 1) for line in each.leaks}
    problems = [line for line in each.findings.problems if line not in leaks]
    return [f"on {each.findings.data}: {size}", *others, *problems]


def _cells(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{metrics[name]:.1f}" if name in metrics else "" for name in names)


def latex_text(text: str) -> str:
    """Return a text as LaTeX prints it, with its special characters escaped."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
