"""The possible places of a file or folder under the root of a data set, which a loader shares with its facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from openvse.errors import DataError


def first_file(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a file."""
    return next((root / name for name in names if (root / name).is_file()), None)


def first_folder(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a folder."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def require_file(name: str, root: Path, names: Sequence[str]) -> Path:
    """Return the first of some paths under the root that is a file; raise DataError if there is none."""
    path = first_file(root, names)
    if path is None:
        raise DataError(f"{root}: no {' or '.join(names)}; get the captions of {name} from its owners")
    return path
