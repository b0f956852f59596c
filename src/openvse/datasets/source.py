"""The sources of data sets that users type: a path, or ``NAME:ROOT``."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path


def parse_source(source: str | Path, names: Container[str]) -> tuple[str, Path]:
    """Split ``NAME:ROOT``; the name is "" if the source is a path.

    Args:
        source: what the user typed. A path may hold a colon.
        names: the registered names; another word before the colon counts as a name if no such path exists.
    """
    name, colon, root = str(source).partition(":")
    if colon and (name in names or (name.isidentifier() and len(name) > 1 and not Path(source).exists())):
        return name, Path(root).expanduser()
    return "", Path(source).expanduser()
