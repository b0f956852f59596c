"""Make an index of a folder of images; a second run only embeds what changed, or continues a stopped run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import BadImageError, DataError, ModelError
from openvse.media.listing import LeftOut, list_media
from openvse.search.index import Item, VectorDtype
from openvse.search.model_place import Place
from openvse.search.reuse import Keeper, Reusable, check_replaceable
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
        """Whether the model also embeds clips."""
        ...

    def encode_image(self, images: Sequence[Path], batch_size: int) -> EmbeddingSet:
        """Embed images or clips; raise BadImageError if one cannot be decoded."""
        ...


@runtime_checkable
class StoredEmbedder(Protocol):
    """Embeds images from their stored features; ``openvse.search.StoredImages`` is one."""

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the position of an image in the store; None if it is missing there, or has changed since."""
        ...

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> EmbeddingSet:
        """Embed the images at these positions of the store, in the order given."""
        ...


@dataclass(frozen=True)
class IndexProgress:
    """The progress of indexing.

    Attributes:
        done: the number of images that are embedded, reused, or found to be unusable.
        total: the number of images in the folder.
        images_per_s: the number of these images per second.
    """

    done: int
    total: int
    images_per_s: float


@dataclass(frozen=True)
class IndexReport:
    """The result of indexing.

    Attributes:
        count: the number of images in the index.
        reused: the number of images whose embedding was in the old index and that have not changed.
        failed: the path of each image that cannot be used, with the reason.
        left_out: the files that look like images or clips but were not tried, by kind.
        stored: the number of images that were embedded from stored features.
        resumed: the number of images that an interrupted indexing had embedded; ``reused`` does not count them.
    """

    count: int
    reused: int
    failed: list[tuple[Path, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    stored: int = 0
    resumed: int = 0


def build_index(
    model: ImageEmbedder,
    folder: str | Path,
    out: str | Path,
    *,
    batch_size: int = 64,
    dtype: VectorDtype = "float32",
    overwrite: bool = False,
    stored: StoredEmbedder | None = None,
    model_place: Place | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
) -> IndexReport:
    """Embed every image below a folder, and every video if the model reads clips; report those that cannot be used.

    If the model made this index before, unchanged images (same path, time and size) keep their embeddings, and images
    that are gone are dropped. Embeddings are saved every few seconds, so that a repeated call continues a stopped one.

    Args:
        model: the model that embeds the images.
        folder: the folder of the images; its subfolders are included.
        out: the folder of the index, which is created if it is missing.
        batch_size: the number of images that are embedded at once, which bounds memory.
        dtype: the number type of the stored embeddings; float16 halves their size, and changes scores slightly.
        overwrite: whether to replace an index that another model made, or that holds another folder.
        stored: stored features, used for images that have not changed since they were extracted.
        model_place: the place of the model (``place_of``), which the index stores; None keeps the old one.
        progress: a function that is called after every batch.

    Raises:
        DataError: the folder has no image, or none that can be used.
        ModelError: the model cannot be indexed.
        IndexFormatError: the index cannot be written, or belongs to another model or folder.
    """
    if not model.indexable:
        raise ModelError(
            "this model cannot be indexed: an index needs a fixed number of embeddings for each image, whose inner "
            "products with those of a sentence are the scores; score images and sentences with model.score instead"
        )
    root, target, fingerprint = Path(folder).resolve(), Path(out), model.fingerprint
    listing = list_media(root, videos=model.reads_videos)
    paths = listing.paths
    if not paths:
        what = f"; {listing.left_out.describe()}" if listing.left_out else ""
        raise DataError(
            f"there is no image in {folder}: give a folder with images, in it or in its subfolders{what}"
        )
    if not overwrite:
        check_replaceable(target, fingerprint, root)
    old = Reusable(target, fingerprint, dtype)
    images = _Images(model, root, old, stored)
    place = old.model_place if model_place is None else model_place
    with IndexWriter(target, model=fingerprint, root=root, dtype=dtype, model_place=place) as writer:
        images.write_to(writer, paths, batch_size, progress)
        if not len(writer):
            path, reason = images.failed[0]
            raise DataError(
                f"none of the {len(paths)} images in {folder} can be used; the first is {path}: {reason}"
            )
        return images.report(len(writer), listing.left_out)


class _Images:
    """The images of a folder, each embedded now or reused from an earlier indexing."""

    def __init__(
        self, model: ImageEmbedder, root: Path, old: Reusable, stored: StoredEmbedder | None
    ) -> None:
        self._model, self._root, self._old, self._stored = model, root, old, stored
        self.failed: list[tuple[Path, str]] = []
        self._reused = self._resumed = self._from_store = 0

    def write_to(
        self,
        writer: IndexWriter,
        paths: Sequence[Path],
        batch_size: int,
        progress: Callable[[IndexProgress], None] | None,
    ) -> None:
        """Embed and write all images, and save the written ones from time to time."""
        started = time.perf_counter()
        needed = self._old.needed([path.relative_to(self._root).as_posix() for path in paths])
        with Keeper(writer, needed) as keeper:
            for number, items, vectors in self.embedded(paths, batch_size):
                if items:
                    writer.append(items, vectors)
                keeper.written(number)
                if progress is not None:
                    done = len(writer) + len(self.failed)
                    progress(IndexProgress(done, len(paths), done / (time.perf_counter() - started)))

    def report(self, count: int, left_out: LeftOut) -> IndexReport:
        """Return the result of indexing."""
        return IndexReport(count, self._reused, self.failed, left_out, self._from_store, self._resumed)

    def embedded(self, paths: Sequence[Path], batch_size: int) -> Iterator[tuple[int, list[Item], Vectors]]:
        """Yield images and their embeddings in the order of their paths, at most ``batch_size`` new ones at a time.

        The first value is the number of paths that are finished with this part.
        """
        chunk: list[Item] = []
        fresh = 0
        for number, path in enumerate(paths, start=1):
            item = self._look(path)
            if item is not None:
                chunk.append(item)
                fresh += item not in self._old
            if fresh == batch_size or len(chunk) == _AT_ONCE:
                yield number, *self._embed(chunk, batch_size)
                chunk, fresh = [], 0
        yield len(paths), *self._embed(chunk, batch_size)

    def _look(self, path: Path) -> Item | None:
        try:
            status = path.stat()
        except OSError as error:
            self.failed.append((path, error.strerror or "it cannot be read"))
            return None
        return Item(path.relative_to(self._root).as_posix(), status.st_mtime_ns, status.st_size)

    def _embed(self, chunk: Sequence[Item], batch_size: int) -> tuple[list[Item], Vectors]:
        """Embed a chunk: reuse earlier embeddings, then use stored features, then decode the remaining images."""
        rows = self._old.take(chunk)
        resumed = sum(self._old.is_resumed(item) for item in rows)
        self._resumed += resumed
        self._reused += len(rows) - resumed
        rows |= self._embed_stored([item for item in chunk if item not in rows], batch_size)
        new, vectors = self._encode([item for item in chunk if item not in rows])
        rows |= zip(new, vectors, strict=True)
        items = [item for item in chunk if item in rows]
        return items, np.stack([rows[item] for item in items]) if items else vectors

    def _embed_stored(self, items: Sequence[Item], batch_size: int) -> dict[Item, Float[np.ndarray, "K D"]]:
        """Embed the images whose features are stored."""
        if self._stored is None:
            return {}
        looked = {
            item: self._stored.find(self._root / item.id, item.modified_ns, item.size) for item in items
        }
        places = {item: place for item, place in looked.items() if place is not None}
        if not places:
            return {}
        embedded = self._stored.embed(np.fromiter(places.values(), np.int64), batch_size)
        self._from_store += len(places)
        return dict(zip(places, _vectors(embedded), strict=True))

    def _encode(self, items: Sequence[Item]) -> tuple[Sequence[Item], Vectors]:
        """Embed images; leave out those that cannot be used."""
        if not items:
            return [], np.empty((0, 0, 0), np.float32)
        paths = [self._root / item.id for item in items]
        try:
            embedded = self._model.encode_image(paths, len(paths))
        except BadImageError:
            # Each image is tried singly, which embeds it once more, but only in batches with a bad image.
            sound = [item for item, path in zip(items, paths, strict=True) if self._can_be_used(path)]
            if len(sound) == len(items):
                raise
            return self._encode(sound)
        return items, _vectors(embedded)

    def _can_be_used(self, path: Path) -> bool:
        try:
            self._model.encode_image([path], 1)
        except BadImageError as error:
            self.failed.append((path, str(error).removeprefix(f"{path}: ")))
            return False
        return True


def _vectors(embedded: EmbeddingSet) -> Vectors:
    """Return embeddings as the array that an index holds."""
    if not embedded.mask.all():
        raise ModelError(
            "the images have different numbers of embeddings: an index needs the same number for every image"
        )
    return embedded.vectors.float().numpy()
