"""Imports features that other tools made into a feature store: kinds of files, names of images, and the import."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from openvse.errors import BadFeaturesError, DataError
from openvse.features.entries import FeatureEntry, Local, read_hdf5, read_npy, read_npz, read_tsv
from openvse.features.layout import IMPORTED, MANIFEST, StoreDtype
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter
from openvse.pipeline import Pace
from openvse.registry import Registry

FEATURE_FILES: Registry[Iterator[FeatureEntry]] = Registry(
    "kind of feature files", {"hdf5": read_hdf5, "npy": read_npy, "npz": read_npz, "tsv": read_tsv}
)
"""Readers by name: ``(source: Path, ids: Path | None) -> Iterator[FeatureEntry]``."""

_SUFFIXES = {".tsv": "tsv", ".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5"}


def _detect(source: Path) -> str:
    paths = source.rglob("*") if source.is_dir() else [source]
    # Parts of a large table are named table.tsv.0, table.tsv.1.
    kinds = {_SUFFIXES.get(suffix) for path in paths for suffix in path.suffixes[-2:]} - {None}
    if len(kinds) == 1:
        return str(kinds.pop())
    listed = ", ".join(sorted(map(str, kinds)))
    content = f"files of several kinds ({listed})" if kinds else "no feature files"
    raise DataError(
        f"{source} holds {content}: give .tsv, .npz, .npy or .h5 files, or --kind {'|'.join(FEATURE_FILES)}"
    )


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
    if not source.exists():
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

    def __init__(
        self, store: Path, fingerprint: str | None, dtype: StoreDtype, boxes: bool, stack: ExitStack
    ) -> None:
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
            self.report.failed.append((f"{entry.place} ({item})", str(error)))
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
        self._writer.add(
            item,
            torch.from_numpy(rows),
            None if boxes is None else torch.from_numpy(boxes),
        )

    def _open(self, dim: int) -> FeatureStoreWriter:
        return self._stack.enter_context(
            FeatureStoreWriter(
                self._store, fingerprint=self._fingerprint, dim=dim, dtype=self._dtype, boxes=self._boxes
            )
        )
