"""Writing a feature store: append and commit. A writer that is killed at any moment can be continued."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import openvse
from openvse.errors import BadFeaturesError, StoreError
from openvse.features.store import (
    BOXES,
    FEATURES,
    HEADER_BYTES,
    IDS,
    LENGTHS,
    MANIFEST,
    StoreDtype,
    StoreManifest,
    encode_ids,
    read_ids,
)
from openvse.files import locked, replacing, writing


class FeatureStoreWriter:
    """Creates a feature store, or continues one. A context manager that commits when it ends.

    Items become part of the store with ``commit``. A writer that is killed loses only the items after its last commit.
    The next writer cuts off the remains and continues.

    Examples:
        >>> with FeatureStoreWriter("features", fingerprint="vit", dim=768) as writer:  # doctest: +SKIP
        ...     writer.add("a.jpg", local)
    """

    def __init__(
        self, path: str | Path, *, fingerprint: str, dim: int, dtype: StoreDtype = "float16", boxes: bool = False
    ) -> None:
        """Lock the store and prepare it for more items.

        Args:
            path: the folder of the store, which is created if it is missing.
            fingerprint: the encoder that makes the features.
            dim: C, the width of a local feature.
            dtype: the number format. float16 halves the disk space and holds numbers up to 65504.
            boxes: whether to keep the box of each local feature. Then every item needs boxes.

        Raises:
            StoreError: the folder holds a damaged store or one of another encoder, width or number format, or
                another process writes to it.
        """
        self.path = path = Path(path)
        with ExitStack() as opening, writing(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise StoreError(f"feature store {path} cannot be made ({error.strerror}): choose another") from error
            opening.enter_context(locked(path, "feature store", StoreError))
            if not (path / MANIFEST).exists():
                _create(path, StoreManifest(fingerprint, dim, dtype, openvse.__version__, boxes=boxes))
            self._manifest = StoreManifest.read(path)
            self._manifest.check(path, fingerprint)
            _check_numbers(path, self._manifest, dim, dtype, boxes)
            self._files = {name: opening.enter_context((path / name).open("r+b")) for name in self._manifest.file_bytes}
            for name, size in self._manifest.file_bytes.items():
                self._files[name].truncate(size)
            # The row after each item. Of the items committed before, only the last matters. Adding an item and
            # committing each change one thing, at their end, so that an interrupt leaves nothing half-done.
            self._ends = dict.fromkeys(read_ids(path, self._manifest), self._manifest.rows)
            self._open = opening.pop_all()

    def __enter__(self) -> FeatureStoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, item: object) -> bool:
        return item in self._ends

    def add(self, item: str, local: Float[Tensor, "N C"], boxes: Float[Tensor, "R 4"] | None = None) -> None:
        """Append the local features of one item, on any device. They count once they are committed.

        Boxes are left, top, right and bottom of each feature (R = N) as fractions of the image's width and height.

        Raises:
            BadFeaturesError: the identifier is already in the store or invalid, the features are empty, of another
                width, not finite, or too large for the number format, or the boxes are missing or invalid. The store
                does not change.
            DiskError: the disk is full or cannot be written to.
        """
        self._check_item(item, local)
        rows = {FEATURES: local}
        if self._manifest.boxes:
            rows[BOXES] = _checked_boxes(item, boxes, len(local))
        with writing(self.path):
            for name, values in rows.items():
                row = self._manifest.row_types[name]
                # The position is set again each time, because after a failed write it may be anywhere.
                self._files[name].seek(HEADER_BYTES + self._rows * row.itemsize)
                self._files[name].write(values.detach().float().cpu().numpy().astype(row.base, order="C").data)
        self._ends[item] = self._rows + len(local)

    def commit(self) -> None:
        """Make all added items durable. If this fails, raise DiskError and keep the last commit."""
        old = self._manifest
        if not (new := dict(islice(self._ends.items(), old.items, None))):
            return
        ids = encode_ids(new)
        lengths = np.diff(np.fromiter(new.values(), "<i8"), prepend=old.rows).tobytes()
        manifest = replace(old, items=len(self), rows=self._rows, id_bytes=old.id_bytes + len(ids))
        with writing(self.path):
            for name in self._files:
                self._append(name, {LENGTHS: lengths, IDS: ids}.get(name, b""), manifest.header(name))
            manifest = manifest.summed(self.path, old)
            manifest.write(self.path)
            self._manifest = manifest

    def close(self) -> None:
        """Commit, and release the lock of the store."""
        with writing(self.path), self._open:
            self.commit()

    @property
    def _rows(self) -> int:
        return next(reversed(self._ends.values()), 0)

    def _append(self, name: str, tail: bytes, header: bytes) -> None:
        """Write the new data after the committed data, and the header in its place, then wait for the disk."""
        file = self._files[name]
        if tail:
            file.seek(self._manifest.file_bytes[name])
            file.write(tail)
        file.seek(0)
        file.write(header)
        file.flush()
        os.fsync(file.fileno())

    def _check_item(self, item: str, local: Tensor) -> None:
        dim, dtype = self._manifest.dim, self._manifest.dtype
        if item in self:
            raise BadFeaturesError(f"feature store {self.path} already holds {item!r}: give each item its own id")
        if not item or "\n" in item or len(item) > 4096:
            raise BadFeaturesError(f"{item[:80]!r} cannot be an id of a feature store: give one short line of text")
        if local.shape[0] == 0 or local.shape[1] != dim:
            raise BadFeaturesError(f"features of {item!r} have shape {list(local.shape)}, not [N, {dim}] with N >= 1")
        peak = float(local.detach().abs().max())
        if not math.isfinite(peak):
            raise BadFeaturesError(f"features of {item!r} hold NaN or infinity: check the image and the encoder")
        largest = float(np.finfo(dtype).max)  # numpy would round the peak to float16 to compare them
        if peak > largest:
            raise BadFeaturesError(
                f"features of {item!r} reach {peak:.6g}, but {dtype} ends at {largest:.6g}: make a new store of float32"
            )


def _checked_boxes(item: str, boxes: Tensor | None, count: int) -> Tensor:
    if boxes is None or boxes.shape != (count, 4):
        given = "no boxes" if boxes is None else f"boxes {list(boxes.shape)}"
        raise BadFeaturesError(f"{item!r} has {given}, but this store takes boxes [{count}, 4] with its features")
    left, top, right, bottom = boxes.unbind(1)
    if not torch.stack([left >= 0, top >= 0, right <= 1, bottom <= 1, left <= right, top <= bottom]).all():
        raise BadFeaturesError(f"boxes of {item!r} are not fractions: give left, top, right, bottom from 0 to 1")
    return boxes


def _create(folder: Path, empty: StoreManifest) -> None:
    features = folder / FEATURES
    if features.exists() and features.stat().st_size > HEADER_BYTES:
        # Other data, or a store without its manifest, must not be overwritten.
        raise StoreError(f"{folder} holds {FEATURES} but no {MANIFEST}: delete it, or choose another folder")
    for name in empty.file_bytes:
        with replacing(folder / name) as partial:
            partial.write_bytes(empty.header(name))
    empty.write(folder)


def _check_numbers(folder: Path, manifest: StoreManifest, dim: int, dtype: StoreDtype, boxes: bool) -> None:
    held, given = (
        f"{kind} of width {width}{' with boxes' if has_boxes else ''}"
        for kind, width, has_boxes in ((manifest.dtype, manifest.dim, manifest.boxes), (dtype, dim, boxes))
    )
    if held != given:
        raise StoreError(f"feature store {folder} holds {held}, not {given}: write to another folder")
