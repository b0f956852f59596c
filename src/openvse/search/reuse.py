"""Embeddings of an earlier indexing that can be reused, and a check before an index is replaced."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float

from openvse.errors import IndexFormatError, IndexVersionError, ModelError
from openvse.search.index import (
    MANIFEST,
    UNFINISHED,
    Index,
    Item,
    Manifest,
    VectorDtype,
    not_finite,
    read_manifest,
)
from openvse.search.writer import IndexWriter

KEEP_SECONDS = 5.0
"""The interval at which written embeddings are saved; a process that is killed loses at most so much work."""


class Reusable:
    """The embeddings that a model made before: those of a complete index, and those of an interrupted indexing.

    Args:
        folder: the folder of the index.
        fingerprint: the fingerprint of the model.
        dtype: the number type of the new index; embeddings of another type are not reused.

    Attributes:
        model_place: the place of the model, as the complete index states it.
    """

    def __init__(self, folder: Path, fingerprint: str, dtype: VectorDtype) -> None:
        try:
            opened = Index.open(folder, fingerprint)
            opened.compare()  # the embeddings are read anyway, so a checksum costs little more
            whole: Index | None = opened
        except IndexFormatError:
            whole = None
        self.model_place = None if whole is None else whole.manifest.model_place
        found = (whole, Index.open_unfinished(folder, fingerprint))
        self._indexes = [index for index in found if index is not None and index.manifest.dtype == dtype]
        self._rows = [_sound_rows(index) for index in self._indexes]
        self._unfinished = {item.id for item in found[1].items} if found[1] in self._indexes else set[str]()
        self._whole = set(self._rows[0]) if whole in self._indexes else set[Item]()

    def __contains__(self, item: Item) -> bool:
        return any(item in rows for rows in self._rows)

    def is_resumed(self, item: Item) -> bool:
        """Return whether only the interrupted indexing has the embedding of an image."""
        return item in self and item not in self._whole

    def take(self, items: Sequence[Item]) -> dict[Item, Float[np.ndarray, "K D"]]:
        """Return the embeddings of those images that have one."""
        taken = dict[Item, Float[np.ndarray, "K D"]]()
        for index, rows in zip(self._indexes, self._rows, strict=True):
            some = [item for item in items if item in rows and item not in taken]
            if some:
                taken |= zip(some, index.vectors[[rows[item] for item in some]], strict=True)
        return taken

    def needed(self, ids: Sequence[str]) -> int:
        """Return how many images, in their order, may still need the interrupted indexing."""
        places = (place for place, name in enumerate(ids, start=1) if name in self._unfinished)
        return max(places, default=0) if self._unfinished else 0


class Keeper:
    """A context manager that saves what a writer has, from time to time and when the work is stopped.

    Args:
        writer: the writer of the index.
        needed: the number of images that must be written before the embeddings of an earlier indexing are replaced.
    """

    def __init__(self, writer: IndexWriter, needed: int) -> None:
        self._writer, self._needed = writer, needed
        self._written, self._kept_at = 0, time.perf_counter()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A model that cannot be indexed would fail again.
        if error is not None and not isinstance(error, ModelError) and self._written >= self._needed:
            with suppress(IndexFormatError):  # a full disk has no room for this either
                self._writer.keep()

    def written(self, count: int) -> None:
        """Note how many images are written, and save them if it is time.

        Raises:
            IndexFormatError: the disk is full or cannot be written to.
        """
        self._written = count
        if count >= self._needed and time.perf_counter() - self._kept_at > KEEP_SECONDS:
            self._writer.keep()
            self._kept_at = time.perf_counter()


def _sound_rows(index: Index) -> dict[Item, int]:
    """Return the row of each image of an index, without those whose embedding is damaged."""
    bad = set(not_finite(index.vectors).tolist())
    return {item: row for row, item in enumerate(index.items) if row not in bad}


def check_replaceable(folder: Path, fingerprint: str, root: Path) -> None:
    """Raise IndexFormatError if an index of another model or of other images would be replaced.

    A damaged index may be replaced. So may an index whose images have moved: their old folder is gone, and at least
    one of them is in the new folder, unchanged.
    """
    for name in (MANIFEST, UNFINISHED):
        try:
            manifest = read_manifest(folder, name)
        except IndexVersionError:
            raise
        except IndexFormatError:
            continue
        if manifest.model != fingerprint:
            what = f"was made by model {manifest.model}, not by {fingerprint}"
        elif manifest.root != str(root) and not _have_moved(folder, manifest, root):
            what = f"holds the images of {manifest.root}, not of {root}"
        else:
            continue
        raise IndexFormatError(f"index {folder} {what}: choose another --out, or replace it with --overwrite")


def _have_moved(folder: Path, manifest: Manifest, root: Path) -> bool:
    if Path(manifest.root).exists():
        return False
    try:
        items = Index.open(folder, manifest.model).items
    except IndexFormatError:
        return False
    return any(_is_there(root, item) for item in items)


def _is_there(root: Path, item: Item) -> bool:
    try:
        status = (root / item.id).stat()
    except OSError:
        return False
    return (status.st_mtime_ns, status.st_size) == (item.modified_ns, item.size)
