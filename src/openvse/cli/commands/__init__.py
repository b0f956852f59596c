"""The commands of the search half; each file registers its own, and imports what is heavy only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (
    duplicates,
    indexing,
    search,
    serve,
)

__all__ = [
    "duplicates",
    "indexing",
    "search",
    "serve",
]
