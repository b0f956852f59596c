"""What an earlier indexing left: embeddings to take over, and an index that is not to be replaced unasked."""

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
"""A kill costs at most this much work."""


class Reusable:
    """The embeddings that a model made before: those of a whole index, and those of one that was interrupted.

    Args:
        folder: of the index.
        fingerprint: of the model.
        dtype: how a number is to be stored; other numbers are not taken over.

    Attributes:
        model_place: what the whole index says of where the model is.
    """

    def __init__(self, folder: Path, fingerprint: str, dtype: VectorDtype) -> None:
        try:
            opened = Index.open(folder, fingerprint)
            opened.compare()  # all is read that is taken over, so a checksum costs little more
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
        """Say whether an image was embedded by the interrupted indexing alone."""
        return item in self and item not in self._whole

    def take(self, items: Sequence[Item]) -> dict[Item, Float[np.ndarray, "K D"]]:
        """Return the embeddings of those images that are there."""
        taken = dict[Item, Float[np.ndarray, "K D"]]()
        for index, rows in zip(self._indexes, self._rows, strict=True):
            some = [item for item in items if item in rows and item not in taken]
            if some:
                taken |= zip(some, index.vectors[[rows[item] for item in some]], strict=True)
        return taken

    def needed(self, ids: Sequence[str]) -> int:
        """Return of how many of the images the interrupted indexing is still needed, in their order."""
        places = (place for place, name in enumerate(ids, start=1) if name in self._unfinished)
        return max(places, default=0) if self._unfinished else 0


class Keeper:
    """Keeps what a writer has from time to time, and when the work is stopped; a context manager.

    Args:
        writer: of the index.
        needed: how many images must be written before what an earlier indexing kept may be replaced.
    """

    def __init__(self, writer: IndexWriter, needed: int) -> None:
        self._writer, self._needed = writer, needed
        self._written, self._kept_at = 0, time.perf_counter()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A model that no index can serve would fail again.
        if error is not None and not isinstance(error, ModelError) and self._written >= self._needed:
            with suppress(IndexFormatError):  # a full disk has no room for it either
                self._writer.keep()

    def written(self, count: int) -> None:
        """Note that so many images are written, and keep them where it is time.

        Raises:
            IndexFormatError: the disk refuses.
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
    """Raise IndexFormatError where an index of another model or of other images would be replaced.

    A damaged index may be replaced, and so may one whose images have moved: their folder is gone, and an image that it
    holds is in the new one, unchanged.
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
