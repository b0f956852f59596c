"""The commands of the search half. Each file registers its own, and imports heavy modules only when it runs."""

from __future__ import annotations

from openvse.cli.commands import (  # noqa: F401 - each registers itself
    duplicates,
    indexing,
    search,
    serve,
)
