"""The commands of the search half; each file registers its own, and imports what is heavy only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (  # noqa: F401 - each registers itself
    duplicates,
    indexing,
    search,
    serve,
)
