"""Experiments on the methods themselves, and their results."""

from __future__ import annotations

from openvse.experiments.patterns import PATTERNS
from openvse.experiments.synthetic import DESIGNS, DesignResult, Schedule, find, find_all
from openvse.experiments.synthetic_report import PUBLISHED, SyntheticReport
from openvse.experiments.unfinished import Unfinished

__all__ = [
    "DESIGNS",
    "PATTERNS",
    "PUBLISHED",
    "DesignResult",
    "Schedule",
    "SyntheticReport",
    "Unfinished",
    "find",
    "find_all",
]
