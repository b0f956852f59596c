"""Reading a feature store: any batch in its own size of memory. A folder of stores may replace a store."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from openvse.encoders import ImageEncoder, TextEncoder
from openvse.encoders.transformers_text import TransformersText, states_can_be_stored
from openvse.errors import StoreError
from openvse.features.layout import (
    BOXES,
    FEATURES,
    HEADER_BYTES,
    LENGTHS,
    MANIFEST,
    SourceFile,
    StoreManifest,
    changed_since,
    damaged_store,
    read_ids,
    read_sources,
)
from openvse.files import given_path
from openvse.functional import position_mask
from openvse.media.names import escaped
from openvse.media.packed import ImageFile
from openvse.types import Inputs


def positions_of(
    ids: Sequence[str], known: Mapping[str, int], *, source: str, remedy: str
) -> Int[np.ndarray, "B"]:
    """Return the positions of items."""
    if missing := [item for item in ids if item not in known]:
        named = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise StoreError(
            f"{source} has no features of {len(missing)} of {len(ids)} items ({named}): {remedy}"
        )
    return np.fromiter((known[item] for item in ids), dtype=np.int64, count=len(ids))


def as_inputs(stored: Shaped[np.ndarray, "B N C"], lengths: Int[np.ndarray, "B"]) -> Inputs:
    """Return items in one array, padded with zeros, as ``float32 [B, N, C]`` values and a mask."""
    return Inputs(torch.from_numpy(stored).float(), position_mask(torch.from_numpy(lengths), stored.shape[1]))


class FeatureStore:
    """Local features of images on disk, by identifier. A ``FeatureSource``.

    Each item is read from its place in the file, directly into the padded batch. Compared with a fancy index of a
    memory map, this is at least as fast from the page cache and several times faster from disk, where a map faults page
    by page. The pages of a map also count as memory of this process, in the end for the whole store. To map the file
    nevertheless: ``np.load(path / "features.npy", mmap_mode="r")``.

    The store holds the data committed before it was opened. A writer may continue meanwhile. It pickles as its path, so
    that each worker of a data loader opens it itself.

    Attributes:
        dim: C, the width of a local feature.
        fingerprint: the fingerprint of the encoder that made the features.
        has_boxes: whether the store holds a box for each local feature.

    Examples:
        >>> store = FeatureStore(Path("features"))  # doctest: +SKIP
        >>> batch = store.gather(store.positions(["a.jpg", "b.jpg"]))  # doctest: +SKIP
    """

    def __init__(
        self, path: str | Path, expected_fingerprint: str | None = None, *, check: bool = False
    ) -> None:
        """Open a store for reading.

        Args:
            path: the folder of the store.
            expected_fingerprint: the encoder that must have made the store. None accepts any.
            check: compare all files with their checksums, whatever their size. Small files are always compared.

        Raises:
            StoreError: the store is missing, damaged, of another format version or made by another encoder.
        """
        self.path = path = given_path(path, "the feature store")
        self._manifest = StoreManifest.read(path)
        fits = expected_fingerprint is None or self._manifest.fits(expected_fingerprint)
        self._manifest.check(path, None if fits else expected_fingerprint)
        self._manifest.compare(path, all_files=check)
        self.dim, self.fingerprint = self._manifest.dim, self._manifest.encoder
        self.has_boxes = self._manifest.boxes
        self.lengths: Int[np.ndarray, "items"] = np.fromfile(
            path / LENGTHS, "<i8", self._manifest.items, offset=HEADER_BYTES
        )
        """N of each item."""
        if (self.lengths < 1).any():
            raise damaged_store(path, f"{LENGTHS} has an item without features")
        if self.lengths.sum() != self._manifest.rows:
            raise damaged_store(path, f"{LENGTHS} does not add up to its {self._manifest.rows} features")
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._files = {name: os.open(path / name, os.O_RDONLY) for name in self._manifest.row_types}
        for file in self._files.values():
            weakref.finalize(self, os.close, file)

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path, str]]:
        return FeatureStore, (self.path, self.fingerprint)

    def __len__(self) -> int:
        return self._manifest.items

    def __contains__(self, item: object) -> bool:
        return item in self._position_of

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The identifier of each item, in the order of the positions."""
        return read_ids(self.path, self._manifest)

    @cached_property
    def _position_of(self) -> dict[str, int]:
        # Built on first use: workers that only gather never hold it.
        return dict(zip(self.ids, range(len(self)), strict=True))

    @cached_property
    def _sources(self) -> dict[str, SourceFile]:
        return {source.id: source for source in read_sources(self.path).values()}

    def stale(self, images: Iterable[tuple[str, ImageFile]]) -> str:
        """Return a line about images whose file has changed since their features were stored, or "".

        Args:
            images: identifier and file of each image.
        """
        if not (changed := changed_since(self._sources, images)):
            return ""
        return (
            f"{len(changed)} image(s) have changed since {self.path} was made (first: {escaped(changed[0])}), whose "
            f"features come from the earlier files: delete this store, or extract into another"
        )

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of items. Raise StoreError, with the first three, if some are missing."""
        return positions_of(
            ids,
            self._position_of,
            source=f"feature store {self.path}",
            remedy="run 'openvse extract' again, which adds them",
        )

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items from disk: ``float32 [B, N, C]``, padded with zeros to the longest item, and the mask.

        Raise StoreError if the file has become shorter since the store was opened.
        """
        return as_inputs(self._read(FEATURES, positions), self.lengths[positions])

    def boxes(self, positions: Int[np.ndarray, "B"]) -> Float[Tensor, "B N 4"]:
        """Read left, top, right and bottom of each feature as fractions of the image's sides, padded with zeros.

        Raise StoreError if the store has no boxes, or the file has become shorter since the store was opened.
        """
        if not self.has_boxes:
            raise StoreError(
                f"feature store {self.path} has no boxes: make one from features with boxes, by 'openvse data import'"
            )
        return torch.from_numpy(self._read(BOXES, positions))

    def _read(self, name: str, positions: Int[np.ndarray, "B"]) -> Shaped[np.ndarray, "B N _"]:
        """Read the rows of items, padded with zeros to the longest."""
        row = self._manifest.row_types[name]
        lengths = self.lengths[positions]
        stored = np.zeros((len(positions), int(lengths.max(initial=0))), row)
        offsets = HEADER_BYTES + self._starts[positions] * row.itemsize
        for item, length, offset in zip(stored, lengths.tolist(), offsets.tolist(), strict=True):
            if os.preadv(self._files[name], [item[:length].data], offset) != length * row.itemsize:
                raise damaged_store(self.path, f"{name} became shorter since the store was opened")
        return stored


def open_store(path: Path | None, encoder: ImageEncoder | TransformersText) -> FeatureStore | None:
    """Open the store that an encoder can read, like ``open_fitting``. None without a path."""
    if path is None:
        return None
    return open_fitting(path, fingerprint=encoder.fingerprint, dim=encoder.feature_dim)


def has_store_of(path: Path, encoder: ImageEncoder) -> bool:
    """Return whether a store, or one in a folder of stores, may belong to an encoder.

    A place without any store counts, too, and ``open_store`` reports its fault.
    """
    folders = [path] if (path / MANIFEST).exists() else [each.parent for each in path.glob(f"*/{MANIFEST}")]
    made = [StoreManifest.read(folder) for folder in folders]
    if encoder.fingerprint is None:
        return not made or any(each.dim == encoder.feature_dim for each in made)
    return not made or any(each.fits(encoder.fingerprint) for each in made)


def open_token_states(path: Path | None, encoder: TextEncoder) -> FeatureStore | None:
    """Open the store of token states that a text encoder can read. None without a path, or if it can use none.

    A text model that was fine-tuned, for instance, cannot use stored states.
    """
    return open_store(path, encoder) if states_can_be_stored(encoder) else None


def open_fitting(path: Path, *, fingerprint: str | None, dim: int) -> FeatureStore:
    """Open a store, or the fitting one in a folder of stores.

    Args:
        path: a store, or a folder that holds stores, for instance ``features`` with ``features/grid`` and
            ``features/regions``.
        fingerprint: the encoder that must have made the store. None takes any, and in a folder the one of width
            ``dim``.
        dim: C, the width of the features that the model expects.

    Raises:
        StoreError: the store is missing, damaged or made by another encoder, or none or several of the folder fit.
    """
    stores = {each.parent: StoreManifest.read(each.parent) for each in sorted(path.glob(f"*/{MANIFEST}"))}
    if not stores or (path / MANIFEST).exists():
        return FeatureStore(path, fingerprint)
    fitting = {
        folder: manifest
        for folder, manifest in stores.items()
        if (manifest.dim == dim if fingerprint is None else manifest.fits(fingerprint))
    }
    if len(fitting) == 1:
        return FeatureStore(next(iter(fitting)), fingerprint)
    wanted = f"width {dim}" if fingerprint is None else f"encoder {fingerprint!r}"
    if not fitting:
        raise StoreError(
            f"no feature store in {path} belongs to {wanted} (there are {_listed(stores.items())}): extract or "
            f"import the features that the model reads, or give another folder"
        )
    remedy = "name one of them" + (", or set image.encoder.made_by" if fingerprint is None else "")
    raise StoreError(
        f"{len(fitting)} feature stores in {path} belong to {wanted} ({_listed(fitting.items())}): {remedy}"
    )


def _listed(stores: Iterable[tuple[Path, StoreManifest]]) -> str:
    return ", ".join(
        f"{folder.name} (made by {manifest.encoder!r}, width {manifest.dim})" for folder, manifest in stores
    )
