"""Features that other tools wrote: NumPy files, HDF5 files and the tables of bottom-up attention."""

from __future__ import annotations

import binascii
import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from openvse.errors import BadFeaturesError, DataError, install
from openvse.features.arrays import ArrayRows, num_real
from openvse.features.entries import (
    BOXES,
    COUNT,
    FEATURES,
    HEIGHT,
    WIDTH,
    FeatureEntry,
    Local,
    as_rows,
    check_bytes,
    entry_number,
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
    """Read the ``.npz`` files of a folder, at any depth. The id of an item is its path without the suffix.

    Arrays are found by their usual names (see ``entries``). Objects in a file are never unpickled.
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


IDS = ("ids", "image_ids", "image_id", "img_ids", "img_id")

_CACHE_BYTES = 1 << 26  # h5py's cache of a data set stored in chunks of many items
_MOST_IDS = _MOST_PART = 1 << 30
DEEPEST = 8
"""The largest depth of nested groups, since a link can lead back to its own group."""


def read_hdf5(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read an HDF5 file, one item at a time.

    Either each item is a group with ``features`` (and ``boxes``, ``image_w``, ``image_h``, as data sets or attributes)
    or a data set ``[N, C]``. Its path in the file is then its id. Or there is one data set ``features``
    ``[items, N, C]``, with the ids in a data set ``ids`` or in a text file, and optional data sets of boxes, sizes and
    ``num_boxes``. Without ``num_boxes``, rows of zeros at the end of an item are padding.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"HDF5 needs the package h5py: {install('hdf5')}") from error
    try:
        file = h5py.File(source, "r", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        raise DataError(
            f"{source} is not a complete HDF5 file ({error}): copy or download it again"
        ) from error
    try:
        with file:
            yield from _read_file(source, file, ids)
    except RuntimeError as error:  # raised by h5py if the tables of the file are damaged
        raise DataError(f"{source} is damaged ({error}): copy or download it again") from error


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
        part = column.chunks or (1, *column.shape[1:])  # a row, or the chunk decompressed for it
        if column.external or column.is_virtual or math.prod(part) * column.dtype.itemsize > _MOST_PART:
            raise DataError(
                f"{source}: {key} is in another file, or in parts too large to read: write the file again"
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


COLUMNS = {
    6: "image_id image_w image_h num_boxes boxes features",
    10: "image_id image_h image_w objects_id objects_conf attrs_id attrs_conf num_boxes boxes features",
}
"""Columns by their count: bottom-up attention (Anderson et al., CVPR 2018), and LXMERT."""

LONGEST_LINE = 1 << 28
"""The longest line in bytes. 100 regions of 2,048 numbers take 1.1 MB."""


def read_tsv(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read a ``.tsv`` file, or the files of a folder one after the other, line by line.

    Numbers are little-endian float32. The first line may hold the names of the columns.
    """
    if ids is not None:
        raise DataError(f"{source} names its items itself: leave --ids out")
    for path in sorted(source.rglob("*.tsv*")) if source.is_dir() else [source]:
        yield from _read_table(path)


def _read_table(path: Path) -> Iterator[FeatureEntry]:
    names: list[str] = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number} is longer than {LONGEST_LINE} bytes: this is not a table"
                )
            cells = line.rstrip(b"\r\n").split(b"\t")
            if not names:
                names = _columns(path, cells)
                if cells[0] in (b"image_id", b"img_id"):
                    continue
            if line.strip():
                item = cells[names.index("image_id")] if len(cells) == len(names) else cells[0]
                yield FeatureEntry(
                    item.decode(errors="surrogateescape").strip(),
                    f"{path.name}, line {number}",
                    partial(_parse, names, cells),
                )


def _columns(path: Path, cells: list[bytes]) -> list[str]:
    """Return the names of the columns, from a header or from their number."""
    if cells[0] in (b"image_id", b"img_id"):
        names = [cell.decode(errors="replace").strip().replace("img_", "image_") for cell in cells]
    else:
        names = COLUMNS.get(len(cells), "").split()
    if not {"image_id", "num_boxes", "features"} <= set(names):
        raise DataError(
            f"{path} is not a table of features: its first line has {len(cells)} columns, but needs "
            + " or ".join(f"{count} ({text})" for count, text in COLUMNS.items())
        )
    return names


def _parse(names: list[str], cells: list[bytes]) -> Local:
    if len(cells) != len(names):
        raise BadFeaturesError(f"it has {len(cells)} of {len(names)} columns: the line is cut off or damaged")
    row = dict(zip(names, cells, strict=True))
    count = int(entry_number(row, COUNT) or 0)
    if count < 1:
        raise BadFeaturesError("it has no boxes and so no features")
    return local_of(
        row | {name: _floats(row[name], name, count) for name in ("features", "boxes") if name in row}
    )


def _floats(text: bytes, what: str, count: int) -> Float[np.ndarray, "count _"]:
    # A writer that turned bytes into text in Python 3 left b'...' around them.
    text = text[2:-1] if text[:2] == b"b'" else text
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise BadFeaturesError(f"its {what} are not base64 ({error}): cut off or damaged") from error
    if not content or len(content) % (4 * count):
        raise BadFeaturesError(
            f"its {what} have {len(content)} bytes, which do not divide into {count} rows of float32"
        )
    return np.frombuffer(content, "<f4").reshape(count, -1)
