"""Data sets by name: the loader of each, and what is known of its published copy."""

from __future__ import annotations

from openvse.datasets.check import Finding, check_data, describe_data
from openvse.datasets.datasets import DATASETS, find_loader, open_corpus
from openvse.datasets.known import FACTS
from openvse.datasets.question_sets import QUESTION_SETS, open_questions

__all__ = [
    "DATASETS",
    "FACTS",
    "QUESTION_SETS",
    "Finding",
    "check_data",
    "describe_data",
    "find_loader",
    "open_corpus",
    "open_questions",
]
