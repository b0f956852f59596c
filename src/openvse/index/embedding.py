"""Embedding what is new or has changed: by its content, by stored features, and the rest by the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import BadImageError, ModelError
from openvse.index.clips import same_segments, segments_of
from openvse.index.database import Database
from openvse.index.manifest import Manifest
from openvse.index.scanning import Candidate
from openvse.index.segments import map_rows
from openvse.index.writer import Entry
from openvse.media.videos import ClipSource, clip_seconds

if TYPE_CHECKING:
    from openvse.types import EmbeddingSet


WHOLE_BYTES = 1 << 24
"""A larger file is hashed by its size and by parts at its beginning, middle and end."""

_PART = 1 << 20


def content_hash(path: Path, size: int) -> bytes | None:
    """Return a hash of a file's content, 16 bytes; None where the file cannot be read.

    Args:
        path: the file.
        size: its bytes, as they were when it was looked at.
    """
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    starts = (0,) if size <= WHOLE_BYTES else (0, size // 2, size - _PART)
    try:
        with path.open("rb", buffering=0) as file:
            for start in starts:
                file.seek(start)
                left = size if len(starts) == 1 else _PART
                while left > 0 and (block := file.read(min(left, _PART))):
                    digest.update(block)
                    left -= len(block)
    except OSError:
        return None
    return digest.digest()


Vectors: TypeAlias = Float[np.ndarray, "B K D"]
Row: TypeAlias = Float[np.ndarray, "K D"]


@runtime_checkable
class ImageEmbedder(Protocol):
    """The methods of a model that indexing images uses."""

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

    def encode_image(self, images: Sequence[ClipSource], batch_size: int) -> EmbeddingSet:
        """Embed images or clips; raise BadImageError when one cannot be decoded."""
        ...


@runtime_checkable
class SentenceEmbedder(Protocol):
    """The method of a model that indexing sentences uses beside those of ``ImageEmbedder``."""

    def encode_text(self, captions: Sequence[str], batch_size: int) -> EmbeddingSet:
        """Embed sentences."""
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


class KnownContent:
    """Finds the embeddings of files whose content the index holds already, wherever it was.

    Args:
        folder: of the index.
        manifest: what it says of itself.
        database: its items.
        damaged: ids of items whose embeddings are not to be used.
    """

    def __init__(self, folder: Path, manifest: Manifest, database: Database, damaged: set[str]) -> None:
        self._folder, self._manifest, self._database, self._damaged = folder, manifest, database, damaged
        self._segments: dict[int, Vectors] = {}

    def find(self, candidate: Candidate) -> list[tuple[Entry, Row]]:
        """Return the items of a file with their embeddings; none where its content is new.

        A file is read only if the index holds one of its size.
        """
        item = candidate.item
        if not self._database.knows_size(item.size):
            return []
        content = content_hash(candidate.path, item.size)
        if content is None:
            return []
        sound = [
            row for row in self._database.same_content(item.size, content) if row[0] not in self._damaged
        ]
        found = []
        for name, number, row in same_segments(sound, item.id, candidate.seconds):
            if number not in self._segments:
                self._segments |= self._mapped(number)
            vectors = self._segments.get(number)
            if vectors is None or row >= len(vectors):
                return []
            found.append((_entry(candidate, content, name), vectors[row]))
        return found

    def _mapped(self, number: int) -> dict[int, Vectors]:
        shape = self._manifest.num_embeddings, self._manifest.dim, self._manifest.dtype
        for segment in self._database.segments():
            if segment.number == number:
                return {number: map_rows(self._folder / segment.file, segment.rows, *shape)}
        return {}


class Embedder:
    """Embeds candidates batch by batch.

    Args:
        model: the model.
        batch_size: how many are embedded at once.
        stored: features that may stand for images.
        known: embeddings of content that the index holds; None where it holds nothing.

    Attributes:
        failed: files that cannot be used, with the reason.
        failed_ids: their ids.
        dealt: how many candidates were dealt with.
        from_store: how many were embedded by stored features.
        recognised: how many were recognised by their content.
    """

    def __init__(
        self,
        model: ImageEmbedder,
        batch_size: int,
        stored: StoredEmbedder | None,
        known: KnownContent | None,
    ) -> None:
        self._model, self._batch_size, self._stored, self._known = model, batch_size, stored, known
        self.failed: list[tuple[Path, str]] = []
        self.failed_ids: list[str] = []
        self.from_store = self.recognised = self.dealt = 0
        self._replaced: list[str] = []

    def replaced(self) -> list[str]:
        """Return, once, the ids of items that what was yielded stands in the place of."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def batches(self, candidates: Sequence[Candidate]) -> Iterator[tuple[list[Entry], Vectors]]:
        """Yield entries and embeddings, in order, of at most ``batch_size`` candidates at once.

        What is recognised by its content comes between the others, in batches of its own. All segments of a clip are
        yielded at once, so that an index holds all of them or none.
        """
        return self._batches(candidates)

    def _batches(
        self, candidates: Sequence[Candidate], later: list[Candidate] | None = None
    ) -> Iterator[tuple[list[Entry], Vectors]]:
        """Yield batches; where a list is given, what the model must embed is put there instead."""
        waiting: list[Candidate] = []
        recognised: list[tuple[Entry, Row]] = []
        for candidate in candidates:
            is_file = self._known is not None and candidate.kind != "sentence"
            found = self._known.find(candidate) if self._known is not None and is_file else []
            if found:
                self.recognised += 1
                self._note(candidate, [entry for entry, _ in found])
                recognised += found
            elif later is not None and not self._is_stored(candidate):
                later.append(candidate)
            elif candidate.seconds:
                yield self._embed_segments(candidate)
            else:
                waiting.append(candidate)
            if len(waiting) == self._batch_size:
                yield self._embed(waiting)
                waiting = []
            if len(recognised) >= self._batch_size:
                yield _stacked(recognised)
                recognised = []
        if recognised:
            yield _stacked(recognised)
        if waiting:
            yield self._embed(waiting)

    def _note(self, candidate: Candidate, entries: Sequence[Entry]) -> None:
        """Note that a candidate was dealt with, and which of its items are no longer there."""
        self.dealt += 1
        self._replaced += set(candidate.before) - {entry.item.id for entry in entries}

    def _embed(self, chunk: Sequence[Candidate]) -> tuple[list[Entry], Vectors]:
        """Embed a chunk: by stored features, and the rest by the model."""
        if chunk[0].kind == "sentence":
            self.dealt += len(chunk)
            return self._embed_sentences(chunk)
        rows = self._embed_stored(chunk)
        new, vectors = self._encode([candidate for candidate in chunk if candidate not in rows])
        rows |= zip(new, vectors, strict=True)
        done = [candidate for candidate in chunk if candidate in rows]
        entries = [_entry(each, _content_of(each)) for each in done]
        for candidate, entry in zip(done, entries, strict=True):
            self._note(candidate, [entry])
        return entries, np.stack([rows[candidate] for candidate in done]) if done else vectors

    def _embed_segments(self, candidate: Candidate) -> tuple[list[Entry], Vectors]:
        """Embed all segments of a clip."""
        item = candidate.item
        try:
            duration = clip_seconds(candidate.path)
            named = segments_of(item.id, candidate.path, candidate.seconds, duration)
            parts = []
            for start in range(0, len(named), self._batch_size):
                some: list[ClipSource] = [place for _, place in named[start : start + self._batch_size]]
                parts.append(_vectors(self._model.encode_image(some, len(some))))
        except BadImageError as error:
            self._fail(candidate, error)
            return [], np.empty((0, 0, 0), np.float32)
        content = _content_of(candidate)
        entries = [_entry(candidate, content, name) for name, _ in named]
        self._note(candidate, entries)
        return entries, np.concatenate(parts)

    def _fail(self, candidate: Candidate, error: BadImageError) -> None:
        self.dealt += 1
        self.failed.append((candidate.path, str(error).removeprefix(f"{candidate.path}: ")))
        self.failed_ids.append(candidate.item.id)

    def _embed_sentences(self, chunk: Sequence[Candidate]) -> tuple[list[Entry], Vectors]:
        if not isinstance(self._model, SentenceEmbedder):
            raise ModelError("this model embeds no sentences: give a folder of images")
        embedded = self._model.encode_text([candidate.item.id for candidate in chunk], self._batch_size)
        return [_entry(candidate, None) for candidate in chunk], _vectors(embedded)

    def _is_stored(self, candidate: Candidate) -> bool:
        if self._stored is None or candidate.kind == "sentence" or candidate.seconds:
            return False
        item = candidate.item
        return self._stored.find(candidate.path, item.modified_ns, item.size) is not None

    def _embed_stored(self, chunk: Sequence[Candidate]) -> dict[Candidate, Row]:
        """Embed the images whose features are stored."""
        if self._stored is None:
            return {}
        looked = {each: self._stored.find(each.path, each.item.modified_ns, each.item.size) for each in chunk}
        places = {candidate: place for candidate, place in looked.items() if place is not None}
        if not places:
            return {}
        embedded = self._stored.embed(np.fromiter(places.values(), np.int64), self._batch_size)
        self.from_store += len(places)
        return dict(zip(places, _vectors(embedded), strict=True))

    def _encode(self, chunk: Sequence[Candidate]) -> tuple[Sequence[Candidate], Vectors]:
        """Embed images, without those that turn out to be bad."""
        if not chunk:
            return [], np.empty((0, 0, 0), np.float32)
        paths: list[ClipSource] = [candidate.path for candidate in chunk]
        try:
            embedded = self._model.encode_image(paths, len(paths))
        except BadImageError:
            # Trying each by itself costs its embedding once more, but only batches that hold a bad one pay it.
            sound = [candidate for candidate in chunk if self._can_be_used(candidate)]
            if len(sound) == len(chunk):
                raise
            return self._encode(sound)
        return chunk, _vectors(embedded)

    def _can_be_used(self, candidate: Candidate) -> bool:
        try:
            self._model.encode_image([candidate.path], 1)
        except BadImageError as error:
            self._fail(candidate, error)
            return False
        return True


def _entry(candidate: Candidate, content: bytes | None, name: str = "") -> Entry:
    """Return the entry of a candidate, or of one of its segments by its name."""
    item = replace(candidate.item, id=name) if name else candidate.item
    return Entry(item, candidate.root, candidate.kind, content)


def _content_of(candidate: Candidate) -> bytes | None:
    """Return the hash of a file that was embedded; None where it has changed since it was listed.

    Otherwise the hash of a later content would vouch for the embeddings of an earlier one.
    """
    content = content_hash(candidate.path, candidate.item.size)
    try:
        status = candidate.path.stat()
    except OSError:
        return None
    same = (status.st_mtime_ns, status.st_size) == (candidate.item.modified_ns, candidate.item.size)
    return content if same else None


def _stacked(recognised: Sequence[tuple[Entry, Row]]) -> tuple[list[Entry], Vectors]:
    return [entry for entry, _ in recognised], np.stack([row for _, row in recognised])


def _vectors(embedded: EmbeddingSet) -> Vectors:
    """Return embeddings as an index holds them."""
    if not embedded.mask.all():
        raise ModelError(
            "the images have different numbers of embeddings: an index needs the same number for every image"
        )
    return np.asarray(embedded.vectors, dtype=np.float32)  # arrays, and tensors on the CPU
