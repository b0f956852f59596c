"""Data sets by name: the loader of each, and the facts of its published copy."""

from __future__ import annotations

from openvse.datasets.check import Finding, check_data, describe_data, leakage_between_splits
from openvse.datasets.layout import OWN_DATA
from openvse.datasets.opening import open_corpus, open_questions
from openvse.datasets.registry import DATASETS, FACTS, DataSets, Loader

__all__ = [
    "DATASETS",
    "FACTS",
    "OWN_DATA",
    "DataSets",
    "Finding",
    "Loader",
    "check_data",
    "describe_data",
    "leakage_between_splits",
    "open_corpus",
    "open_questions",
]
