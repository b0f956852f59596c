"""NumPy's files: ``.npy`` and ``.npz`` for each image, or one array for all images and a file of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from openvse.errors import DataError
from openvse.features.arrays import ArrayRows, num_real
from openvse.features.entries import (
    FeatureEntry,
    Local,
    as_rows,
    check_bytes,
    local_of,
    read_id_file,
    reading_item,
)


def read_npy(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read a folder of ``.npy`` files, ``[N, C]`` or ``[C]`` each, or one array ``[items, N, C]`` or ``[items, C]``.

    In a folder, the id of an item is the path of its file without the suffix. A single array needs a text file with one
    id per line: ``ids``, or ``NAME_ids.txt`` or ``ids.txt`` next to ``NAME.npy``. It is read one item at a time, and
    rows of zeros at the end of an item are padding.
    """
    if source.is_dir():
        yield from _files(source, ".npy", _read_npy, ids)
        return
    rows = ArrayRows(source, integers=True)
    for position, item in enumerate(read_id_file(ids or _ids_beside(source), len(rows), source.name)):
        yield FeatureEntry(item, f"{source.name}, item {position}", partial(_read_item, rows, position))


def _read_npy(path: Path) -> Local:
    with reading_item():
        return Local(as_rows(np.load(path, mmap_mode="r", allow_pickle=False)))


def _read_item(rows: ArrayRows, position: int) -> Local:
    item = rows.read(position)[0]
    return Local(item[: num_real(item)])  # without padding


def _ids_beside(path: Path) -> Path:
    for name in (f"{path.stem}_ids.txt", f"{path.stem.removesuffix('_ims')}_ids.txt", "ids.txt"):
        if (path.parent / name).is_file():
            return path.parent / name
    raise DataError(f"{path} does not say which item is which: give --ids FILE, with one id per line")


def read_npz(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read the ``.npz`` files of a folder, at any depth; the id of an item is its path without the suffix.

    Arrays are found by their usual names (see ``entries``); objects in a file are never unpickled.
    """
    return _files(source, ".npz", _read_npz, ids)


def _files(
    source: Path, suffix: str, read: Callable[[Path], Local], ids: Path | None
) -> Iterator[FeatureEntry]:
    """Yield an entry for each file with a suffix, whose name is the id."""
    if ids is not None:
        raise DataError(f"{source} names its items by its files: leave --ids out")
    for path in sorted(source.rglob(f"*{suffix}")) if source.is_dir() else [source]:
        name = path.relative_to(source if source.is_dir() else source.parent).as_posix()
        yield FeatureEntry(name.removesuffix(suffix), name, partial(read, path))


def _read_npz(path: Path) -> Local:
    with reading_item(), np.load(path, allow_pickle=False) as fields:
        check_bytes(sum(each.file_size for each in fields.zip.infolist()))
        return local_of(fields)
