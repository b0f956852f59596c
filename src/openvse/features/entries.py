"""Files of features made elsewhere (NumPy, HDF5, the tables of bottom-up attention), and their import into a store.

Their entries are items with their local features, and boxes if there are any.
"""

from __future__ import annotations

import binascii
import math
import re
import zipfile
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped

from openvse.errors import BadFeaturesError, DataError, importing
from openvse.features.arrays import ArrayRows, num_real
from openvse.features.extract import FeatureStoreWriter
from openvse.features.store import IMPORTED, MANIFEST, FeatureStore, StoreDtype
from openvse.files import read_lines
from openvse.media.listing import walk_files
from openvse.pipeline import Pace
from openvse.registry import Registry

FEATURES = ("features", "x", "feat", "feats", "image_features")
BOXES = ("boxes", "bbox", "image_bb")
COUNT = ("num_boxes", "num_bbox")
WIDTH = ("image_w", "img_w", "image_width")
HEIGHT = ("image_h", "img_h", "image_height")
"""The names of the features in the files of common tools, in the order of search."""

BEYOND = 0.01
"""How far a box may extend beyond its image, as a fraction of it, since detectors round. The excess is cut off."""

_MOST = 1 << 28  # bytes that the features of an item may take
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    TokenError,
)


@dataclass(frozen=True)
class Local:
    """The local features of one item as the file holds them.

    Attributes:
        features: one row for each local feature.
        boxes: left, top, right and bottom of each feature, in pixels or as fractions of the image.
        size: width and height of the image in pixels, which boxes in pixels need.
    """

    features: Shaped[np.ndarray, "N C"]
    boxes: Shaped[np.ndarray, "..."] | None = None
    size: tuple[float, float] | None = None

    def relative_boxes(self) -> Float[np.ndarray, "N 4"] | None:
        """Return the boxes as fractions of the image's width and height, or None if there are none.

        Boxes without a number above 1 are already fractions.

        Raises:
            BadFeaturesError: there is not one box per feature, boxes in pixels lack the size of the image, or boxes
                extend beyond the image.
        """
        if self.boxes is None:
            return None
        if self.boxes.shape != (len(self.features), 4) or self.boxes.dtype.kind not in "fiu":
            stored = f"{self.boxes.dtype} {list(self.boxes.shape)}"
            raise BadFeaturesError(f"its boxes are {stored}, not [{len(self.features)}, 4]: give one for each feature")
        boxes = self.boxes.astype(np.float32)
        if boxes.max(initial=0.0) > 1:
            if self.size is None or min(self.size) <= 0:
                raise BadFeaturesError("its boxes are in pixels, but the size of its image is missing: use --no-boxes")
            boxes /= np.array([*self.size, *self.size], np.float32)
        if not (boxes.min(initial=0.0) >= -BEYOND and boxes.max(initial=0.0) <= 1 + BEYOND):
            of_size = "" if self.size is None else f" of {self.size[0]:g} x {self.size[1]:g}"
            raise BadFeaturesError(f"its boxes extend beyond its image{of_size}, or are not numbers: check the size")
        return boxes.clip(0, 1)


@dataclass(frozen=True)
class FeatureEntry:
    """One item of a file, whose features are read on demand.

    Attributes:
        id: the identifier in the file.
        place: the place of the item in the file, for messages.
        read: a function that returns the features. It raises BadFeaturesError if they cannot be used.
    """

    id: str
    place: str
    read: Callable[[], Local]


@contextmanager
def reading_item() -> Iterator[None]:
    """Turn the errors of readers of damaged files into BadFeaturesError, so that only this item is left out."""
    try:
        yield
    except _DAMAGE as error:
        raise BadFeaturesError(f"it cannot be read ({error}): cut off or damaged") from error


def check_bytes(size: int) -> None:
    """Raise BadFeaturesError for an array too large in memory to be features."""
    if size > _MOST:
        raise BadFeaturesError(f"it would take {size:,} bytes, but at most {_MOST:,} are read for an item")


def local_of(fields: Mapping[str, Any]) -> Local:
    """Return the features of an item from named arrays, for instance from an ``.npz`` file.

    Features that are stored as ``[C, N]``, as some tools do, are transposed if boxes or their count give N.
    """
    features = as_rows(_first(fields, FEATURES))
    boxes = None if (stored := _first(fields, BOXES)) is None else np.asarray(stored)
    count = entry_number(fields, COUNT)
    number = int(count) if count is not None else len(features) if boxes is None else len(boxes)
    if features.shape[0] != number == features.shape[1]:
        features = features.T
    if not 0 <= number <= len(features):
        raise BadFeaturesError(f"it has {number} boxes and {len(features)} local features")
    width, height = entry_number(fields, WIDTH), entry_number(fields, HEIGHT)
    size = None if width is None or height is None else (width, height)
    return Local(features[:number], None if boxes is None else boxes[:number], size)


def as_rows(array: Any) -> Shaped[np.ndarray, "N C"]:
    """Return features as rows ``[N, C]``. Raise BadFeaturesError if they are no numbers, or have more axes."""
    if array is None:
        raise BadFeaturesError(f"it has no features: store them under one of {', '.join(FEATURES)}")
    rows = np.asarray(array)
    if rows.dtype.kind not in "fiu":
        raise BadFeaturesError(f"its features are {rows.dtype}, not numbers")
    check_bytes(rows.nbytes)
    while rows.ndim > 2 and rows.shape[0] == 1:
        rows = rows[0]
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2:
        raise BadFeaturesError(f"its features have shape {list(rows.shape)}, not [N, C]")
    return rows


def read_id_file(path: Path, count: int, what: str) -> list[str]:
    """Return ``count`` identifiers, one a line. Raise DataError if the file has another number of lines."""
    try:
        ids = read_lines(path)
    except (OSError, ValueError) as error:
        raise DataError(f"ids {path} cannot be read ({error}): give a text file with one id per line") from error
    if len(ids) != count:
        raise DataError(f"ids {path} has {len(ids)} lines for the {count} items of {what}: give one id per item")
    return [item.strip() for item in ids]


def entry_number(fields: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the number under the first of some names, or None. Raise BadFeaturesError if it is no number."""
    number = _first(fields, names)
    try:
        return None if number is None else float(np.asarray(number).item())
    except (TypeError, ValueError) as error:
        raise BadFeaturesError(f"its {names[0]} is not a number") from error


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    field = next((fields[name] for name in names if name in fields), None)
    if getattr(field, "external", None) or getattr(field, "is_virtual", False):
        raise BadFeaturesError("its numbers are in another file than the HDF5 file: copy them into it")
    check_bytes(int(getattr(field, "nbytes", 0)))
    return field


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
    check_bytes(math.prod(rows.shape[1:]) * rows.dtype.itemsize)
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


def _files(source: Path, suffix: str, read: Callable[[Path], Local], ids: Path | None) -> Iterator[FeatureEntry]:
    """Yield an entry for each file with a suffix, whose name is the id."""
    if ids is not None:
        raise DataError(f"{source} names its items by its files: leave --ids out")
    for path in _below(source, f"*{suffix}"):
        name = path.relative_to(source if source.is_dir() else source.parent).as_posix()
        yield FeatureEntry(name.removesuffix(suffix), name, partial(read, path))


def _below(source: Path, pattern: str) -> list[Path]:
    """Return the plain files below a folder whose names fit a pattern, or else a file alone."""
    return sorted(path for path in walk_files(source) if path.match(pattern)) if source.is_dir() else [source]


def _read_npz(path: Path) -> Local:
    with reading_item(), np.load(path, allow_pickle=False) as fields:
        check_bytes(sum(each.file_size for each in fields.zip.infolist()))
        return local_of(fields)


IDS = ("ids", "image_ids", "image_id", "img_ids", "img_id")

_CACHE_BYTES = 1 << 26  # h5py's cache of a data set stored in chunks of many items
_MOST_IDS = _MOST_PART = 1 << 30
_DEEPEST = 8  # nested groups


def read_hdf5(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read an HDF5 file, one item at a time.

    Either each item is a group with ``features`` (and ``boxes``, ``image_w``, ``image_h``, as data sets or attributes)
    or a data set ``[N, C]``. Its path in the file is then its id. Or there is one data set ``features``
    ``[items, N, C]``, with the ids in a data set ``ids`` or in a text file, and optional data sets of boxes, sizes and
    ``num_boxes``. Without ``num_boxes``, rows of zeros at the end of an item are padding.
    """
    with importing("HDF5 needs the package h5py", "hdf5", DataError):
        import h5py
    try:
        file = h5py.File(source, "r", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        raise DataError(f"{source} is not a complete HDF5 file ({error}): copy or download it again") from error
    try:
        with file:
            yield from _read_file(source, file, ids)
    except RuntimeError as error:  # raised by h5py if the tables of the file are damaged
        raise DataError(f"{source} is damaged ({error}): copy or download it again") from error


def _is_group(node: Any) -> bool:
    return hasattr(node, "keys")


def _leads_away(group: Any, names: Iterable[str]) -> bool:
    """Return whether one of some names in a group is a link to another file, which would be opened, even a pipe."""
    return any(type(group.get(name, getlink=True)).__name__ == "ExternalLink" for name in names)


def _read_file(source: Path, file: Any, ids: Path | None) -> Iterator[FeatureEntry]:
    if _leads_away(file, {*file}.intersection((*FEATURES, *IDS, *BOXES, *COUNT, *WIDTH, *HEIGHT))):
        raise DataError(f"{source} has links to other files: copy what they name into it")
    name = next((name for name in FEATURES if name in file and not _is_group(file[name])), None)
    known = next((name for name in IDS if name in file), None)
    if name is not None:
        yield from _read_whole(source, file, name, _ids(source, file, name, known, ids))
    elif ids is not None:
        raise DataError(f"{source} names its items itself: leave --ids out")
    else:
        yield from _read_items(source.name, file, "", set())


def _read_items(place: str, group: Mapping[str, Any], prefix: str, seen: set[object]) -> Iterator[FeatureEntry]:
    if group in seen or prefix.count("/") > _DEEPEST:
        raise DataError(f"{place} nests groups without end ({prefix[:40]}...): remove the links that lead back")
    seen.add(group)
    for name in group:
        path = f"{prefix}{name}"
        node: Any = None if _leads_away(group, [name]) else group.get(name)  # None for a broken link
        node = None if _is_group(node) and _leads_away(node, node) else node
        if not _is_group(node):
            yield FeatureEntry(path, f"{place}, {path}", partial(_read_one, {"features": node}))
        elif any(key in node and not _is_group(node[key]) for key in FEATURES):
            yield FeatureEntry(path, f"{place}, {path}", partial(_read_one, ChainMap(node, node.attrs)))
        else:
            yield from _read_items(place, node, f"{path}/", seen)


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
    beside = [key for key in (*BOXES, *COUNT, *WIDTH, *HEIGHT) if key in file and file[key].shape[:1] == (len(ids),)]
    columns = {key: file[key] for key in (name, *beside)}
    for key, column in columns.items():
        part = column.chunks or (1, *column.shape[1:])  # a row, or the chunk decompressed for it
        if column.external or column.is_virtual or math.prod(part) * column.dtype.itemsize > _MOST_PART:
            raise DataError(f"{source}: {key} is in another file, or in parts too large to read: write the file again")
    for row, item in enumerate(ids):
        yield FeatureEntry(item, f"{source.name}, item {row}", partial(_read_row, columns, name, row))


def _read_row(columns: Mapping[str, Any], name: str, row: int) -> Local:
    check_bytes(sum(column.nbytes // len(column) for column in columns.values()))
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
    for path in _below(source, "*.tsv*"):
        yield from _read_table(path)


def _read_table(path: Path) -> Iterator[FeatureEntry]:
    names: list[str] = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(f"{path}, line {number} is longer than {LONGEST_LINE} bytes: this is not a table")
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
    if (count := int(entry_number(row, COUNT) or 0)) < 1:
        raise BadFeaturesError("it has no boxes and so no features")
    return local_of(row | {name: _floats(row[name], name, count) for name in ("features", "boxes") if name in row})


def _floats(text: bytes, what: str, count: int) -> Float[np.ndarray, "count _"]:
    # A writer that turned bytes into text in Python 3 left b'...' around them.
    text = text[2:-1] if text[:2] == b"b'" else text
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise BadFeaturesError(f"its {what} are not base64 ({error}): cut off or damaged") from error
    if not content or len(content) % (4 * count):
        raise BadFeaturesError(f"its {what} have {len(content)} bytes, which do not make {count} rows of float32")
    return np.frombuffer(content, "<f4").reshape(count, -1)


FEATURE_FILES: Registry[Iterator[FeatureEntry]] = Registry(
    "kind of feature files", {"hdf5": read_hdf5, "npy": read_npy, "npz": read_npz, "tsv": read_tsv}
)
"""Readers by name: ``(source: Path, ids: Path | None) -> Iterator[FeatureEntry]``."""

_SUFFIXES = {".tsv": "tsv", ".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5"}


def _detect(source: Path) -> str:
    paths = _below(source, "*")
    # Parts of a large table are named table.tsv.0, table.tsv.1.
    kinds = {_SUFFIXES.get(suffix) for path in paths for suffix in path.suffixes[-2:]} - {None}
    if len(kinds) == 1:
        return str(kinds.pop())
    listed = ", ".join(sorted(map(str, kinds)))
    content = f"files of several kinds ({listed})" if kinds else "no feature files"
    raise DataError(f"{source} holds {content}: give .tsv, .npz, .npy or .h5, or --kind {'|'.join(FEATURE_FILES)}")


_NUMBER = re.compile(r"(?:^|_)0*(\d+)$")


class ImageNames:
    """Finds the image that a name means.

    A name may be the identifier itself, its last part, this part without its suffix, or the number at its end:
    ``391895``, ``COCO_val2014_000000391895`` and ``val2014/COCO_val2014_000000391895.jpg`` are the same image. A name
    that could mean two images matches none.
    """

    def __init__(self, image_ids: Sequence[str]) -> None:
        self._exact = frozenset(image_ids)
        self._known: dict[str, str | None] = {}
        for image_id in self._exact:
            for form in set(_forms(image_id)):
                self._known[form] = None if form in self._known else image_id

    def find(self, name: str) -> str | None:
        """Return the identifier that a name means, or None."""
        if name in self._exact:
            return name
        return next((image_id for form in _forms(name) if (image_id := self._known.get(form))), None)


def _forms(name: str) -> Iterator[str]:
    path = PurePosixPath(name)
    yield from (name, path.name, path.stem)
    if number := _NUMBER.search(path.stem):
        yield number[1]


@dataclass
class ImportReport:
    """The result of an import.

    Attributes:
        done: the number of items that were added.
        existing: the number of items that the store already had.
        unmatched: names that do not match an image of the given data set.
        failed: place and reason of each item that cannot be used.
        seconds: the wall time.
    """

    done: int = 0
    existing: int = 0
    unmatched: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def seen(self) -> int:
        """The number of items that are finished so far."""
        return self.done + self.existing + len(self.unmatched) + len(self.failed)


def import_features(
    source: str | Path,
    store: str | Path,
    *,
    kind: str | None = None,
    ids: str | Path | None = None,
    image_ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    dtype: StoreDtype = "float16",
    boxes: bool = True,
    progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Add the features of files that other tools made to a feature store. Items that it already has are skipped.

    The files are read one item (or block of items) at a time, so that memory does not depend on their size. The first
    item that can be used determines the width, and whether the store keeps boxes. An item that cannot be used (NaN or
    infinity, another width, no features, damage, a repeated id) is reported and left out. The store is committed every
    few seconds, so that an interrupted import continues from there.

    Args:
        source: the file or folder.
        store: the folder of the store, which is created if it is missing.
        kind: a name in ``FEATURE_FILES``. None infers it.
        ids: a text file with one id per line, for files that do not name their items.
        image_ids: the images of a data set, to which the names in the files are matched. None keeps the names.
        fingerprint: the maker of the features that the store records. None uses the name of the store's folder.
        dtype: the number format of the store.
        boxes: whether to keep boxes, if the files have any.
        progress: a function called after every item.

    Raises:
        DataError: the source is missing or of an unknown kind, or none of its items can be used.
        StoreError: the store holds other features, is being written by another process, or cannot be written.
    """
    source, store = Path(source), Path(store)
    if not source.is_file() and not source.is_dir():
        raise DataError(f"{source}: there is no such file or folder: check the path")
    if (source / MANIFEST).exists():
        raise DataError(f"{source} is already a feature store: use it directly")
    entries = FEATURE_FILES.get(kind or _detect(source))(source, None if ids is None else Path(ids))
    names = None if image_ids is None else ImageNames(image_ids)
    with ExitStack() as stack:
        under_way = _Import(store, fingerprint, dtype, boxes, stack)
        for entry in entries:
            under_way.take(entry, entry.id if names is None else names.find(entry.id))
            if progress is not None:
                progress(under_way.report)
    return under_way.finished(source)


class _Import:
    """A running import: the store, opened with the width of the first item, and the outcome of each item."""

    def __init__(self, store: Path, fingerprint: str | None, dtype: StoreDtype, boxes: bool, stack: ExitStack) -> None:
        self.report = ImportReport()
        self._store, self._dtype, self._boxes, self._stack = store, dtype, boxes, stack
        self._fingerprint = fingerprint or f"{IMPORTED}{store.resolve().name}"
        self._writer: FeatureStoreWriter | None = None
        self._seen: set[str] = set()
        self._pace = Pace(0)
        if (store / MANIFEST).exists():
            before = FeatureStore(store, fingerprint)
            if fingerprint is None and before.fingerprint.startswith(IMPORTED):
                self._fingerprint = before.fingerprint  # even if its folder has another name now
            self._boxes = boxes and before.has_boxes
            self._writer = self._open(before.dim)

    def take(self, entry: FeatureEntry, item: str | None) -> None:
        """Add one item, or record why it cannot be added."""
        if item is None:
            self.report.unmatched.append(entry.id)
            return
        try:
            if item in self._seen:
                raise BadFeaturesError("its id came before, and the first item counts")
            if self._writer is not None and item in self._writer:
                self.report.existing += 1
            else:
                self._add(item, entry.read())
                self.report.done += 1
            self._seen.add(item)
        except BadFeaturesError as error:
            self.report.failed.append((f"{entry.place} ({item:.80})", str(error)))
        self.report.seconds = self._pace.seconds
        if self._writer is not None:
            self._pace.keep(self._writer.commit)

    def finished(self, source: Path) -> ImportReport:
        """Return the report. Raise an error if no item was imported."""
        report = self.report
        if report.done or report.existing:
            return report
        if report.failed:
            place, reason = report.failed[0]
            raise DataError(f"{source}: none of {report.seen} items can be used (first: {place}: {reason})")
        if report.unmatched:
            raise DataError(
                f"{source}: none of its {report.seen} items is an image of the data set "
                f"(first: {report.unmatched[0]!r}): give the data set that the features were made from"
            )
        raise DataError(f"{source} holds no items: give the file or folder with the features")

    def _add(self, item: str, local: Local) -> None:
        with np.errstate(over="ignore"):  # the store refuses infinity
            rows = np.array(local.features, np.float32)
        if 0 in rows.shape:
            raise BadFeaturesError("it has no local features")
        if self._writer is None:
            self._boxes = self._boxes and local.boxes is not None
        boxes = local.relative_boxes() if self._boxes else None
        if self._writer is None:
            self._writer = self._open(rows.shape[1])
        self._writer.add(item, torch.from_numpy(rows), None if boxes is None else torch.from_numpy(boxes))

    def _open(self, dim: int) -> FeatureStoreWriter:
        return self._stack.enter_context(
            FeatureStoreWriter(
                self._store, fingerprint=self._fingerprint, dim=dim, dtype=self._dtype, boxes=self._boxes
            )
        )
