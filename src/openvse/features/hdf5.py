"""HDF5 files: a group or data set for each image, or one data set for all images along with their ids."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from openvse.errors import DataError, install
from openvse.features.arrays import num_real
from openvse.features.entries import (
    BOXES,
    COUNT,
    FEATURES,
    HEIGHT,
    WIDTH,
    FeatureEntry,
    Local,
    as_rows,
    local_of,
    read_id_file,
    reading_item,
)

IDS = ("ids", "image_ids", "image_id", "img_ids", "img_id")

_CACHE_BYTES = (
    1 << 26
)  # what h5py keeps of a data set that is stored in chunks, of which each holds many items
_MOST_IDS = _MOST_PART = 1 << 30
DEEPEST = 8
"""The largest depth of nested groups, since a link can lead back to its own group."""


def read_hdf5(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read an HDF5 file, one item at a time.

    Either each item is a group with ``features`` (and ``boxes``, ``image_w``, ``image_h``, as data sets or attributes)
    or a data set ``[N, C]``; its path in the file is then its id. Or there is one data set ``features``
    ``[items, N, C]``, with the ids in a data set ``ids`` or in a text file; there may also be data sets of boxes, sizes
    and ``num_boxes``. Without ``num_boxes``, rows of zeros at the end of an item are padding.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"HDF5 needs the package h5py: {install('hdf5')}") from error
    try:
        file = h5py.File(source, "r", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        raise DataError(f"{source} is not a complete HDF5 file ({error}): give it again") from error
    try:
        with file:
            yield from _read_file(source, file, ids)
    except RuntimeError as error:  # raised by h5py if the tables of the file are damaged
        raise DataError(f"{source} is damaged ({error}): give it again") from error


def _is_group(node: Any) -> bool:
    return hasattr(node, "keys")


def _read_file(source: Path, file: Any, ids: Path | None) -> Iterator[FeatureEntry]:
    name = next((name for name in FEATURES if name in file and not _is_group(file[name])), None)
    known = next((name for name in IDS if name in file), None)
    if name is not None:
        yield from _read_whole(source, file, name, _ids(source, file, name, known, ids))
    elif ids is not None:
        raise DataError(f"{source} names its items itself: leave --ids out")
    else:
        yield from _read_items(source.name, file, "")


def _read_items(place: str, group: Mapping[str, Any], prefix: str) -> Iterator[FeatureEntry]:
    if prefix.count("/") > DEEPEST:
        raise DataError(
            f"{place} nests groups without end ({prefix[:40]}...): remove the links that lead back"
        )
    for name in group:
        path = f"{prefix}{name}"
        node: Any = group.get(name)  # None for a broken link
        if not _is_group(node):
            yield FeatureEntry(path, f"{place}, {path}", partial(_read_one, {"features": node}))
        elif any(key in node and not _is_group(node[key]) for key in FEATURES):
            yield FeatureEntry(path, f"{place}, {path}", partial(_read_one, ChainMap(node, node.attrs)))
        else:
            yield from _read_items(place, node, f"{path}/")


def _read_one(fields: Mapping[str, Any]) -> Local:
    with reading_item():
        return local_of(fields)


def _ids(source: Path, file: Any, name: str, known: str | None, ids: Path | None) -> list[str]:
    count = len(file[name])
    if ids is not None:
        return read_id_file(ids, count, source.name)
    if known is None:
        raise DataError(f"{source} does not say which item is which: give --ids FILE, with one id per line")
    if (size := int(file[known].nbytes)) > _MOST_IDS:
        raise DataError(f"{source} has {known} of {size:,} bytes, which name no items: give --ids FILE")
    names = [item.decode() if isinstance(item, bytes) else str(item) for item in np.asarray(file[known])]
    if len(names) != count:
        raise DataError(f"{source} has {len(names)} {known} for {count} items: give --ids FILE")
    return names


def _read_whole(source: Path, file: Any, name: str, ids: list[str]) -> Iterator[FeatureEntry]:
    beside = [
        key for key in (*BOXES, *COUNT, *WIDTH, *HEIGHT) if key in file and file[key].shape[:1] == (len(ids),)
    ]
    columns = {key: file[key] for key in (name, *beside)}
    for key, column in columns.items():
        part = column.chunks or (1, *column.shape[1:])  # what a row takes, or what is decompressed for it
        if column.external or column.is_virtual or math.prod(part) * column.dtype.itemsize > _MOST_PART:
            raise DataError(
                f"{source}: {key} is in another file, or in parts too large to read: write it anew"
            )
    for row, item in enumerate(ids):
        yield FeatureEntry(item, f"{source.name}, item {row}", partial(_read_row, columns, name, row))


def _read_row(columns: Mapping[str, Any], name: str, row: int) -> Local:
    with reading_item():
        fields = {key: column[row] for key, column in columns.items()}
    if not any(key in fields for key in COUNT):
        rows = as_rows(fields[name])
        rows = rows[: num_real(rows)]  # without padding
        fields |= {name: rows} | {key: fields[key][: len(rows)] for key in BOXES if key in fields}
    return local_of(fields)
