"""The places under a data set's root where a file or folder may lie; a loader and its facts name the same ones."""

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
    """Return the first of some paths under the root that is a file; raise DataError when none is."""
    path = first_file(root, names)
    if path is None:
        raise DataError(f"{root}: no {' or '.join(names)}; get the captions of {name} from its owners")
    return path
