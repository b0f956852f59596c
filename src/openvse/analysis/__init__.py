"""Experiments about the methods themselves, and their figures."""

from __future__ import annotations

from openvse.analysis.patterns import PATTERNS
from openvse.analysis.synthetic import DESIGNS, Found, Schedule, find, find_all
from openvse.analysis.synthetic_report import PUBLISHED, SyntheticReport, import_figure
from openvse.analysis.unfinished import Unfinished

__all__ = [
    "DESIGNS",
    "PATTERNS",
    "PUBLISHED",
    "Found",
    "Schedule",
    "SyntheticReport",
    "Unfinished",
    "find",
    "find_all",
    "import_figure",
]
