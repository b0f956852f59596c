"""A folder of images -> an index; a second run embeds only what changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from openvse.errors import BadImageError, DataError, IndexFormatError, ModelError
from openvse.media.listing import LeftOut, list_media
from openvse.search.index import Index, Item, VectorDtype, not_finite
from openvse.search.writer import IndexWriter
from openvse.types import EmbeddingSet

Vectors: TypeAlias = Float[np.ndarray, "B K D"]

_AT_ONCE = 4096


@runtime_checkable
class ImageEmbedder(Protocol):
    """The methods of a model that indexing uses."""

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""
        ...

    @property
    def indexable(self) -> bool:
        """Whether scores computed from the embeddings of an index are exactly those of the model."""
        ...

    @property
    def reads_videos(self) -> bool:
        """Whether it embeds clips too."""
        ...

    def encode_image(self, images: Sequence[Path], batch_size: int) -> EmbeddingSet:
        """Embed images or clips; raise BadImageError when one cannot be decoded."""
        ...


@dataclass(frozen=True)
class IndexProgress:
    """How far indexing has come.

    Attributes:
        done: images dealt with: embedded, taken over, or found to be bad.
        total: images in the folder.
        images_per_s: images dealt with in a second.
    """

    done: int
    total: int
    images_per_s: float


@dataclass(frozen=True)
class IndexReport:
    """What indexing did.

    Attributes:
        count: images in the index.
        reused: those of them that were there already and have not changed.
        failed: path and reason of each image that cannot be used.
        left_out: files that look like images or clips and were not tried, by kind.
    """

    count: int
    reused: int
    failed: list[tuple[Path, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


def build_index(
    model: ImageEmbedder,
    folder: str | Path,
    out: str | Path,
    *,
    batch_size: int = 64,
    dtype: VectorDtype = "float32",
    progress: Callable[[IndexProgress], None] | None = None,
) -> IndexReport:
    """Embed every image below a folder, and every video if the model reads clips; bad ones are reported.

    From an index that this model made before, the embeddings of images with the same path, time and size
    are taken over; what is no longer in the folder is dropped. Memory is bounded by the batch.

    Args:
        model: the model that embeds the images.
        folder: the folder of the images, at any depth.
        out: folder of the index, created where it is missing.
        batch_size: images embedded at once.
        dtype: how a number is stored; float16 halves the disk and changes scores in the fourth digit.
        progress: called after every batch.

    Raises:
        DataError: there is no image in the folder, or none that can be used.
        ModelError: no index can serve the model.
        IndexFormatError: the index cannot be written.
    """
    if not model.indexable:
        raise ModelError(
            "this model cannot be indexed: its scores are not inner products of embeddings that each item "
            "has by itself, in a fixed number; score images and sentences with model.score instead"
        )
    root, target, fingerprint = Path(folder).resolve(), Path(out), model.fingerprint
    listing = list_media(root, videos=model.reads_videos)
    paths = listing.paths
    if not paths:
        what = f"; {listing.left_out.describe()}" if listing.left_out else ""
        raise DataError(f"there is no image in {folder}: give a folder that holds images, at any depth{what}")
    images = _Images(model, root, _reusable(target, fingerprint, dtype))
    started = time.perf_counter()
    with IndexWriter(target, model=fingerprint, root=root, dtype=dtype) as writer:
        for items, vectors in images.embedded(paths, batch_size):
            if items:
                writer.append(items, vectors)
            if progress is not None:
                done = len(writer) + len(images.failed)
                progress(IndexProgress(done, len(paths), done / (time.perf_counter() - started)))
        if not len(writer):
            path, reason = images.failed[0]
            raise DataError(f"none of the {len(paths)} images in {folder} can be used, not {path}: {reason}")
        return IndexReport(len(writer), images.reused, images.failed, listing.left_out)


class _Images:
    """The images of a folder, each embedded or taken over from the index that was there."""

    def __init__(self, model: ImageEmbedder, root: Path, old: Index | None) -> None:
        self._model, self._root, self._old = model, root, old
        self._known = {} if old is None else _sound_rows(old)
        self.failed: list[tuple[Path, str]] = []
        self.reused = 0

    def embedded(self, paths: Sequence[Path], batch_size: int) -> Iterator[tuple[list[Item], Vectors]]:
        """Yield images and their embeddings in order of path, at most ``batch_size`` new at once."""
        chunk: list[Item] = []
        fresh = 0
        for path in paths:
            item = self._look(path)
            if item is not None:
                chunk.append(item)
                fresh += item not in self._known
            if fresh == batch_size or len(chunk) == _AT_ONCE:
                yield self._embed(chunk)
                chunk, fresh = [], 0
        yield self._embed(chunk)

    def _look(self, path: Path) -> Item | None:
        try:
            status = path.stat()
        except OSError as error:
            self.failed.append((path, error.strerror or "it cannot be read"))
            return None
        return Item(path.relative_to(self._root).as_posix(), status.st_mtime_ns, status.st_size)

    def _embed(self, chunk: Sequence[Item]) -> tuple[list[Item], Vectors]:
        old = [item for item in chunk if item in self._known]
        new, vectors = self._encode([item for item in chunk if item not in self._known])
        if self._old is not None and old:
            taken = self._old.vectors[[self._known[item] for item in old]]
            vectors = np.concatenate([taken, vectors]) if new else taken
        self.reused += len(old)
        place = {item: number for number, item in enumerate(chunk)}
        items = [*old, *new]
        order = sorted(range(len(items)), key=lambda row: place[items[row]])
        return [items[row] for row in order], vectors[order]

    def _encode(self, items: Sequence[Item]) -> tuple[Sequence[Item], Vectors]:
        """Embed images, without those that turn out to be bad."""
        if not items:
            return [], np.empty((0, 0, 0), np.float32)
        paths = [self._root / item.id for item in items]
        try:
            embedded = self._model.encode_image(paths, len(paths))
        except BadImageError:
            # Trying each by itself costs its embedding once more, but only batches that hold a bad one pay it.
            sound = [item for item, path in zip(items, paths, strict=True) if self._can_be_used(path)]
            if len(sound) == len(items):
                raise
            return self._encode(sound)
        if not embedded.mask.all():
            raise ModelError(
                "images have different numbers of embeddings: an index needs the same number of each"
            )
        return items, embedded.vectors.float().numpy()

    def _can_be_used(self, path: Path) -> bool:
        try:
            self._model.encode_image([path], 1)
        except BadImageError as error:
            self.failed.append((path, str(error).removeprefix(f"{path}: ")))
            return False
        return True


def _sound_rows(index: Index) -> dict[Item, int]:
    """Return the row of each image of an index, without those whose embedding is damaged."""
    bad = set(not_finite(index.vectors).tolist())
    return {item: row for row, item in enumerate(index.items) if row not in bad}


def _reusable(folder: Path, fingerprint: str, dtype: VectorDtype) -> Index | None:
    """Return the index in a folder if its embeddings can be reused: same model, same type of numbers."""
    try:
        index = Index.open(folder, fingerprint)
    except IndexFormatError:
        return None
    return index if index.manifest.dtype == dtype else None
