"""A report as one web page that holds its images and figures itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from openvse.evaluation.report import metric_title
from openvse.output.charts import CHART_STYLE, COLOURS
from openvse.output.documents import CONFIDENCE, html_page
from openvse.report.measure import MeasuredReport
from openvse.report.page_curves import curve_sections
from openvse.report.page_queries import query_sections
from openvse.report.page_runs import run_sections
from openvse.report.page_start import start_sections
from openvse.report.published import published_elsewhere
from openvse.report.rows import Figures, figure_rows, remarks, shown_metrics


def report_page(reports: Sequence[MeasuredReport]) -> str:
    """Return an HTML page about runs, whose figures on a test set stand first.

    Args:
        reports: at least one run.
    """
    names = ", ".join(each.run.name for each in reports)
    style = files("openvse.report").joinpath("report.css").read_text(encoding="utf-8")
    sections = [
        *(f'<p class="leak">{escape(line)}</p>' for each in reports for line in each.leaks),
        *(_legend(reports) if len(reports) > 1 else ()),
        *_figures(reports),
        *start_sections(reports),
        *run_sections(reports),
        *curve_sections(reports),
        *query_sections(reports),
    ]
    data = dict.fromkeys(each.findings.data for each in reports if each.findings is not None)
    note = f"on {', '.join(data)}" if data else "without figures on a test set"
    return html_page(f"openvse report: {names}", "\n".join(sections), note=note, style=CHART_STYLE + style)


def _legend(reports: Sequence[MeasuredReport]) -> list[str]:
    keys = "".join(
        f'<li><span class="key k{number % COLOURS}"></span>{escape(each.run.name)}</li>'
        for number, each in enumerate(reports)
    )
    return [f'<ul class="legend">{keys}</ul>']


def _figures(reports: Sequence[MeasuredReport]) -> list[str]:
    """Return the table of figures, with the notes below it; nothing if nothing was evaluated."""
    names = shown_metrics(reports)
    if not names:
        return []
    leaks = {line for each in reports for line in each.leaks}
    rows = figure_rows(reports, names)
    intervals = any(row.kind == "interval" for row in rows)
    told = [*([f"below a figure: its {CONFIDENCE:.0%} interval"] if intervals else []), *remarks(reports)]
    notes = "".join(f"<li>{escape(line)}</li>" for line in told if line not in leaks)
    return [
        f"<section>\n<h2>Figures</h2>\n{_table(rows, names)}\n"
        f'<ul class="notes">{notes}</ul>\n{_published(reports, names)}</section>'
    ]


def _table(rows: Sequence[Figures], names: Sequence[str]) -> str:
    """Return a table with a line for each metric, which fits on a phone; an interval stands below its figure."""
    columns = [row for row in rows if row.kind != "interval"]
    below = {id(run): rows[at + 1] for at, run in enumerate(rows[:-1]) if rows[at + 1].kind == "interval"}
    head = "".join(f'<th class="{row.kind}">{escape(row.label)}</th>' for row in columns)
    lines = []
    for number, name in enumerate(names):
        cells = []
        for row in columns:
            interval = below[id(row)].cells[number] if id(row) in below else ""
            small = f"<small>{escape(interval)}</small>" if interval else ""
            cells.append(f'<td class="{row.kind}">{escape(row.cells[number])}{small}</td>')
        lines.append(f'<tr><th scope="row">{escape(metric_title(name))}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="wide"><table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table></div>"
    )


def _published(reports: Sequence[MeasuredReport], names: Sequence[str]) -> str:
    """Return a table of what papers publish for other methods on the same data, a line for each source."""
    elsewhere = published_elsewhere(reports)
    shown = [name for name in names if any(name in metrics for metrics in elsewhere.values())]
    if not shown:
        return ""
    head = "".join(f"<th>{escape(metric_title(name))}</th>" for name in shown)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(source)}</th>'
        + "".join(f"<td>{metrics[name]:.1f}</td>" if name in metrics else "<td></td>" for name in shown)
        + "</tr>"
        for source, metrics in elsewhere.items()
    )
    return (
        "<details><summary>Published figures of other methods on the same data</summary>\n"
        f'<div class="wide published"><table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{lines}\n'
        "</tbody>\n</table></div></details>\n"
    )
