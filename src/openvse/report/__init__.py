"""Reports on runs: one web page, or rows of a table, about what was trained, how it went and what it reaches."""

from __future__ import annotations

from openvse.report.compared import RowFacts, compared_latex, compared_markdown, row_facts
from openvse.report.measure import MeasuredReport, measure_run
from openvse.report.page import report_page
from openvse.report.records import RunRecords, read_records
from openvse.report.rows import latex_rows, markdown_rows
from openvse.report.run import ReportedRun, read_run

__all__ = [
    "MeasuredReport",
    "ReportedRun",
    "RowFacts",
    "RunRecords",
    "compared_latex",
    "compared_markdown",
    "latex_rows",
    "markdown_rows",
    "measure_run",
    "read_records",
    "read_run",
    "report_page",
    "row_facts",
]
