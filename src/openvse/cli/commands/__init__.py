"""The commands; each file registers its own, and imports what is heavy only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (
    analyze,
    analyze_data,
    analyze_runs,
    analyze_time,
    ask,
    blend,
    calibrate,
    compare,
    convert,
    data,
    data_import,
    demo,
    duplicates,
    evaluate,
    extract,
    indexing,
    recipes,
    search,
    synthetic,
    train,
)

__all__ = [
    "analyze",
    "analyze_data",
    "analyze_runs",
    "analyze_time",
    "ask",
    "blend",
    "calibrate",
    "compare",
    "convert",
    "data",
    "data_import",
    "demo",
    "duplicates",
    "evaluate",
    "extract",
    "indexing",
    "recipes",
    "search",
    "synthetic",
    "train",
]
