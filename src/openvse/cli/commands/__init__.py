"""The commands; each file registers its own, and imports what is heavy only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (
    ask,
    calibrate,
    convert,
    data,
    data_import,
    demo,
    evaluate,
    extract,
    recipes,
    search,
    synthetic,
    train,
)

__all__ = [
    "ask",
    "calibrate",
    "convert",
    "data",
    "data_import",
    "demo",
    "evaluate",
    "extract",
    "recipes",
    "search",
    "synthetic",
    "train",
]
