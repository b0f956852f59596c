"""A folder of images -> an index; a second run embeds only what changed, also after one that was stopped."""

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
        """Whether it embeds clips too."""
        ...

    def encode_image(self, images: Sequence[Path], batch_size: int) -> EmbeddingSet:
        """Embed images or clips; raise BadImageError when one cannot be decoded."""
        ...


@runtime_checkable
class StoredEmbedder(Protocol):
    """Embeds images by what is stored of them; ``openvse.search.StoredImages`` is one."""

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the place of an image in the store; None where it is not in it, or has changed since."""
        ...

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> EmbeddingSet:
        """Embed images of the store, in the order given."""
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
        stored: images that were embedded by stored features.
        resumed: those that an interrupted indexing had embedded; they do not count as reused.
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
    """Embed every image below a folder, and every video if the model reads clips; bad ones are reported.

    From an index that this model made before, the embeddings of images with the same path, time and size
    are taken over; what is no longer in the folder is dropped. Memory is bounded by the batch. What was embedded
    is kept every few seconds: indexing that was stopped goes on where it was when it is repeated.

    Args:
        model: the model that embeds the images.
        folder: the folder of the images, at any depth.
        out: folder of the index, created where it is missing.
        batch_size: images embedded at once.
        dtype: how a number is stored; float16 halves the disk and changes scores in the fourth digit.
        overwrite: replace an index that another model made, or that holds another folder.
        stored: features that may stand for images which have not changed since they were extracted.
        model_place: where the model is, for whoever searches (``openvse.search.place_of``); None keeps what the index
            says of the same model.
        progress: called after every batch.

    Raises:
        DataError: there is no image in the folder, or none that can be used.
        ModelError: no index can serve the model.
        IndexFormatError: the index cannot be written, or is of another model or folder.
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
    if not overwrite:
        check_replaceable(target, fingerprint, root)
    old = Reusable(target, fingerprint, dtype)
    images = _Images(model, root, old, stored)
    place = old.model_place if model_place is None else model_place
    with IndexWriter(target, model=fingerprint, root=root, dtype=dtype, model_place=place) as writer:
        images.write_to(writer, paths, batch_size, progress)
        if not len(writer):
            path, reason = images.failed[0]
            raise DataError(f"none of the {len(paths)} images in {folder} can be used, not {path}: {reason}")
        return images.report(len(writer), listing.left_out)


class _Images:
    """The images of a folder, each embedded or taken over from what was there."""

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
        """Embed and write all images, and keep what is written from time to time."""
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
        """Return what became of the images."""
        return IndexReport(count, self._reused, self.failed, left_out, self._from_store, self._resumed)

    def embedded(self, paths: Sequence[Path], batch_size: int) -> Iterator[tuple[int, list[Item], Vectors]]:
        """Yield images and their embeddings in order of path, at most ``batch_size`` new at once.

        The number before them says of how many paths this is the end.
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
        """Embed a chunk: by what was there, by stored features, and the rest from the images."""
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
        return items, _vectors(embedded)

    def _can_be_used(self, path: Path) -> bool:
        try:
            self._model.encode_image([path], 1)
        except BadImageError as error:
            self.failed.append((path, str(error).removeprefix(f"{path}: ")))
            return False
        return True


def _vectors(embedded: EmbeddingSet) -> Vectors:
    """Return embeddings as an index holds them."""
    if not embedded.mask.all():
        raise ModelError(
            "images have different numbers of embeddings: an index needs the same number of each"
        )
    return embedded.vectors.float().numpy()
