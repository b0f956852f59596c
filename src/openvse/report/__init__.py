"""Runs on a page or in a table: their training, progress and results."""

from __future__ import annotations

from openvse.report.page import runs_page
from openvse.report.run import MeasuredReport, ReportedRun, measure_run, read_run, weighed
from openvse.report.tables import (
    RowFacts,
    compared_notes,
    compared_table,
    comparison_text,
    comparison_values,
    remarks,
    row_facts,
    shown_metrics,
    table_with_notes,
)

__all__ = [
    "MeasuredReport",
    "ReportedRun",
    "RowFacts",
    "compared_notes",
    "compared_table",
    "comparison_text",
    "comparison_values",
    "measure_run",
    "read_run",
    "remarks",
    "row_facts",
    "runs_page",
    "shown_metrics",
    "table_with_notes",
    "weighed",
]
