"""An index of format 1."""

from __future__ import annotations

import json
from pathlib import Path

from openvse.search.index import MANIFEST


def without_checksums(path: Path) -> Path:
    """Make an index one of format 1, which has no checksums, and return it."""
    fields = json.loads((path / MANIFEST).read_text())
    del fields["checksums"], fields["model_place"]
    (path / MANIFEST).write_text(json.dumps(fields | {"version": 1}))
    return path
