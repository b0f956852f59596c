"""The commands; each file registers its own, and imports what is heavy only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (
    ask,
    blend,
    calibrate,
    compare,
    convert,
    data,
    data_import,
    demo,
    duplicates,
    encode,
    evaluate,
    extract,
    indexing,
    join,
    recipes,
    report,
    search,
    synthetic,
    train,
)

__all__ = [
    "ask",
    "blend",
    "calibrate",
    "compare",
    "convert",
    "data",
    "data_import",
    "demo",
    "duplicates",
    "encode",
    "evaluate",
    "extract",
    "indexing",
    "join",
    "recipes",
    "report",
    "search",
    "synthetic",
    "train",
]
