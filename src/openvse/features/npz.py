"""A folder with an ``.npz`` file for each image."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from openvse.errors import BadFeaturesError, DataError
from openvse.features.entries import Entry, Local, local_of


def read_npz(source: Path, ids: Path | None = None) -> Iterator[Entry]:
    """Read the ``.npz`` files of a folder, at any depth; the id of an item is its path without the suffix.

    Arrays are found by their usual names (see ``entries``); objects in a file are never unpickled.

    Raises:
        DataError: ids are given, although the names of the files are the ids.
    """
    if ids is not None:
        raise DataError(f"{source} names its items by its files: leave --ids out")
    for path in sorted(source.rglob("*.npz")) if source.is_dir() else [source]:
        name = path.relative_to(source if source.is_dir() else source.parent).as_posix()
        yield Entry(name.removesuffix(".npz"), name, partial(_read, path))


def _read(path: Path) -> Local:
    try:
        with np.load(path, allow_pickle=False) as fields:
            return local_of(fields)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise BadFeaturesError(f"it cannot be read ({error}): cut off or damaged") from error
