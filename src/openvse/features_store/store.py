"""Reading a feature store: any batch, at the memory of the batch."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from openvse.errors import StoreError
from openvse.features_store.layout import FEATURES, HEADER_BYTES, LENGTHS, damaged, read_ids, read_manifest
from openvse.functional import position_mask
from openvse.types import Inputs


class FeatureStore:
    """Local features of images on disk, by identifier; a ``FeatureSource``.

    Each item is read at its place in the file, straight into the padded batch. Measured against a fancy index
    of a memory map this is as fast or faster from the page cache and several times faster from disk, where a
    map faults page by page; and the pages of a map count as memory of this process, until the whole store
    does. To map the file all the same: ``np.load(path / "features.npy", mmap_mode="r")``.

    The store is what was committed when it was opened; a writer may go on meanwhile. It pickles as its path,
    so that each worker of a data loader reads for itself.

    Example:
        >>> store = FeatureStore.open(Path("features"))  # doctest: +SKIP
        >>> batch = store.gather(store.positions(["a.jpg", "b.jpg"]))  # doctest: +SKIP
    """

    def __init__(self, path: Path, expected_fingerprint: str | None = None) -> None:
        """See ``open``."""
        self.path = path
        self._manifest = read_manifest(path)
        self._manifest.check(path, expected_fingerprint)
        self._lengths = np.fromfile(path / LENGTHS, "<i8", self._manifest.items, offset=HEADER_BYTES)
        if self._lengths.sum() != self._manifest.rows:
            raise damaged(path, f"{LENGTHS} does not add up to its {self._manifest.rows} features")
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._file = os.open(path / FEATURES, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    @classmethod
    def open(cls, path: Path, expected_fingerprint: str | None = None) -> FeatureStore:
        """Open a store for reading.

        Args:
            path: folder of the store.
            expected_fingerprint: the encoder that must have made it; None takes any.

        Raises:
            StoreError: the store is missing, damaged, of another format version or made by another encoder.
        """
        return cls(path, expected_fingerprint)

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path, str]]:
        return FeatureStore, (self.path, self.fingerprint)

    def __len__(self) -> int:
        return self._manifest.items

    def __contains__(self, item: object) -> bool:
        return item in self._position_of

    @property
    def dim(self) -> int:
        """C, the width of a local feature."""
        return self._manifest.dim

    @property
    def fingerprint(self) -> str:
        """Which encoder made the features."""
        return self._manifest.encoder

    @property
    def lengths(self) -> Int[np.ndarray, "items"]:
        """N of each item."""
        return self._lengths

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The identifier of each item, in the order of the positions."""
        return read_ids(self.path, self._manifest)

    @cached_property
    def _position_of(self) -> dict[str, int]:
        # Built when first asked: workers that only gather never hold it.
        return dict(zip(self.ids, range(len(self)), strict=True))

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return where the items lie.

        Raises:
            StoreError: some are not in the store; the first three are named.
        """
        known = self._position_of
        missing = [item for item in ids if item not in known]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise StoreError(
                f"feature store {self.path} has no features of {len(missing)} of {len(ids)} items: {shown}; "
                f"run 'openvse extract' again, it adds what is new"
            )
        return np.fromiter((known[item] for item in ids), dtype=np.int64, count=len(ids))

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items from disk.

        Args:
            positions: which items, in any order, repeats allowed.

        Returns:
            ``values float32 [B, N, C]`` with zeros as padding, and the mask; N is the longest of the batch.

        Raises:
            StoreError: the file became shorter since the store was opened.
        """
        lengths = self._lengths[positions]
        longest = int(lengths.max(initial=0))
        stored = np.zeros((len(positions), longest, self.dim), dtype=self._manifest.dtype)
        offsets = HEADER_BYTES + self._starts[positions] * self._manifest.row_bytes
        for item, length, offset in zip(stored, lengths.tolist(), offsets.tolist(), strict=True):
            self._read(item[:length], offset)
        return Inputs(torch.from_numpy(stored).float(), position_mask(torch.from_numpy(lengths), longest))

    def _read(self, rows: np.ndarray, offset: int) -> None:
        if os.preadv(self._file, [rows.data], offset) != rows.nbytes:
            raise damaged(self.path, f"{FEATURES} became shorter since the store was opened")
