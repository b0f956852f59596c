"""``.npy`` files: a folder with one for each image, or one array for all images and a file of ids."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from openvse.errors import BadFeaturesError, DataError
from openvse.features.array_rows import ArrayRows
from openvse.features.entries import Entry, Local, as_rows, read_id_file, without_padding


def read_npy(source: Path, ids: Path | None = None) -> Iterator[Entry]:
    """Read a folder of ``.npy`` files, ``[N, C]`` or ``[C]`` each, or one array ``[items, N, C]`` or ``[items, C]``.

    In a folder, the id of an item is the path of its file without the suffix. A single array needs a text file with one
    id per line: ``ids``, or ``NAME_ids.txt`` or ``ids.txt`` next to ``NAME.npy``. It is read one item at a time, and
    rows of zeros at the end of an item are padding.

    Raises:
        DataError: the array cannot be read, ids are missing or of another number, or ids are given for a folder.
    """
    if source.is_dir():
        if ids is not None:
            raise DataError(f"{source} names its items by its files: leave --ids out")
        for path in sorted(source.rglob("*.npy")):
            name = path.relative_to(source).as_posix()
            yield Entry(name.removesuffix(".npy"), name, partial(_read_file, path))
        return
    rows = ArrayRows(source, integers=True)
    for position, item in enumerate(read_id_file(ids or _ids_beside(source), len(rows), source.name)):
        yield Entry(item, f"{source.name}, item {position}", partial(_read_item, rows, position))


def _read_file(path: Path) -> Local:
    try:
        return Local(as_rows(np.load(path, mmap_mode="r", allow_pickle=False)))
    except (OSError, ValueError, EOFError) as error:
        raise BadFeaturesError(f"it cannot be read ({error}): cut off or damaged") from error


def _read_item(rows: ArrayRows, position: int) -> Local:
    return Local(without_padding(rows.read(position)[0]))


def _ids_beside(path: Path) -> Path:
    for name in (f"{path.stem}_ids.txt", f"{path.stem.removesuffix('_ims')}_ids.txt", "ids.txt"):
        if (path.parent / name).is_file():
            return path.parent / name
    raise DataError(f"{path} does not say which item is which: give --ids FILE, with one id per line")
