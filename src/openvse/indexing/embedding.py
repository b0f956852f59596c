"""Embedding new and changed files: by their content if the index knows it, by stored features, or by the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import BadImageError, ModelError
from openvse.indexing.database import Entry, Root
from openvse.indexing.scanning import Candidate, changed_ns, same_segments, stored_json
from openvse.indexing.vector_files import map_vectors
from openvse.indexing.writer import FoundIndex, IndexWriter
from openvse.media.segments import ClipSegment, cut_clip, file_of, segment_name
from openvse.media.sidecars import FileFacts, read_facts
from openvse.media.videos import ClipSource, clip_seconds
from openvse.pipeline import (
    DECODERS,
    DecodedBatch,
    Pace,
    Workers,
    decoded,
    failure_reason,
    in_batches,
    results_in_order,
)

WHOLE_BYTES = 1 << 24
"""A larger file is hashed by its size and by parts at its beginning, middle and end."""

BATCHES_IN_PART = 16

_PART = 1 << 20
_FILES = 1000  # hashed at once

Vectors: TypeAlias = Float[np.ndarray, "B K D"]
ItemVectors: TypeAlias = Float[np.ndarray, "K D"]
_Content: TypeAlias = tuple[bytes | None, FileFacts]  # the hash of a file, and what is known of it


@runtime_checkable
class StoredImages(Protocol):
    """Stored features, which replace images that have not changed since."""

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the position of an image, or None if it is missing or has changed."""

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> Any:
        """Embed the images at these positions, in the order given."""


@runtime_checkable
class ImageEmbedder(Protocol):
    """The methods of a model that indexing images uses."""

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""

    @property
    def indexable(self) -> bool:
        """Whether scores from the embeddings of an index are exactly the model's."""

    @property
    def reads_videos(self) -> bool:
        """Whether it embeds clips too."""

    def read_image(self, image: Any) -> Any:
        """Decode a ``ClipSource`` for ``encode_pixels``, in any thread. Raise BadImageError if it cannot be used."""

    def encode_pixels(self, images: Sequence[Any]) -> Any:
        """Embed the results of ``read_image`` as one batch, as an embedding set of tensors or arrays."""


@dataclass(frozen=True)
class Sharing:
    """Processes that embed new items, and the loader of the model in each of them."""

    workers: Workers
    load: Callable[[], ImageEmbedder]


@dataclass
class EmbeddedBatch:
    """Items with their embeddings, and the outcomes of the candidates. Items whose ids are replaced go."""

    entries: list[Entry] = field(default_factory=list)
    vectors: Vectors = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    dealt: int = 0
    failed: list[tuple[Candidate, str]] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    from_store: int = 0
    recognised: int = 0
    sidecars: list[FileFacts] = field(default_factory=list)

    def note(self, candidate: Candidate, entries: Sequence[Entry], facts: FileFacts) -> None:
        """Add the items of a candidate, and the faults of its sidecars."""
        self.entries += entries
        self.sidecars += [facts] if facts.problems or facts.differing else []
        self.replaced += set(candidate.before) - {entry.item.id for entry in entries}


def keep_batches(batches: Iterable[EmbeddedBatch], writer: IndexWriter, pace: Pace) -> Iterator[EmbeddedBatch]:
    """Write batches, commit from time to time, and yield each with the outcomes of its candidates."""
    for batch in batches:
        if batch.entries:
            writer.append(batch.entries, batch.vectors)
        writer.drop(batch.replaced)
        yield batch
        pace.keep(writer.commit)
        pace.add(batch.dealt)


class KnownContent:
    """Finds the embeddings of files whose content the index holds already, at any path, except for damaged ones."""

    def __init__(self, index: FoundIndex, damaged: set[str]) -> None:
        self._index, self._database, self._damaged = index, index.database, damaged
        self._files: dict[int, Vectors] = {}

    def find(self, candidate: Candidate) -> tuple[list[tuple[Entry, ItemVectors]], FileFacts]:
        """Return the items of a file with their embeddings, none if its content is new, and its known content.

        A file is read only if the index holds one of its size.
        """
        item, facts = candidate.item, FileFacts()
        held = self._database.of_size(item.size)
        if not held or (content := content_hash(candidate.path, item.size)) is None:
            return [], facts
        sound = [(one, file, row) for known, one, file, row in held if known == content and one not in self._damaged]
        rows: list[tuple[Entry, ItemVectors]] = []
        for name, number, row in same_segments(sound, item.id, candidate.seconds):
            if number not in self._files:
                folder, manifest = self._index.folder, self._index.manifest
                files = (file for file in self._database.vector_files() if file.number == number)
                self._files |= {file.number: map_vectors(folder, file, manifest) for file in files}
            if (vectors := self._files.get(number)) is None or row >= len(vectors):
                return [], facts
            facts = facts if rows else _facts_of(candidate)
            rows.append((_entry(candidate, (content, facts), name), vectors[row]))
        return rows, facts


@dataclass(frozen=True)
class _Looked:
    """A candidate, its items with their embeddings if the index holds its content, or its place in a store."""

    candidate: Candidate
    rows: Sequence[tuple[Entry, ItemVectors]] = ()
    place: int | None = None
    facts: FileFacts = field(default_factory=FileFacts)


@dataclass
class Embedder:
    """Embeds candidates batch by batch, and decodes the next ones meanwhile."""

    _model: ImageEmbedder
    _batch_size: int
    _stored: StoredImages | None = None
    _known: KnownContent | None = None

    @property
    def _device(self) -> object:
        return getattr(self._model, "device", "cpu")

    def embed(self, candidates: Sequence[Candidate], sharing: Sharing | None = None) -> Iterator[EmbeddedBatch]:
        """Embed candidates in their order. With shared work, cut clips and items that need a model come last.

        Items recognised by their content come between the others, in batches of their own. All segments of a clip come
        at once, so that an index holds all of them or none.
        """
        if sharing is None:
            yield from self._embed_batches(self._batches(candidates))
            return
        new: list[Candidate] = []
        yield from self._embed_batches(self._batches(candidates, new))
        parts = cut_candidates(new, self._batch_size, sharing.workers.count)
        prepare = partial(_part_embedder, sharing.load, self._batch_size)
        for batches in results_in_order(parts, prepare, sharing.workers):
            yield from batches

    def _batches(
        self, candidates: Sequence[Candidate], new: list[Candidate] | None = None
    ) -> Iterator[Sequence[_Looked]]:
        """Yield candidates in batches. If a list is present, it gets the ones that the model must embed instead."""
        waiting: list[_Looked] = []
        recognised: list[_Looked] = []
        rows = 0
        for candidate in candidates:
            looked = self._look(candidate)
            if looked.rows:
                recognised.append(looked)
                rows += len(looked.rows)
            elif new is not None and looked.place is None:
                new.append(candidate)
            elif candidate.seconds:
                yield [looked]
            else:
                waiting.append(looked)
            if len(waiting) == self._batch_size:
                yield waiting
                waiting = []
            if rows >= self._batch_size:
                yield recognised
                recognised, rows = [], 0
        yield from filter(None, (recognised, waiting))

    def _look(self, candidate: Candidate) -> _Looked:
        if candidate.kind == "sentence":
            return _Looked(candidate)
        if self._known is not None:
            rows, facts = self._known.find(candidate)
            if rows:
                return _Looked(candidate, rows, facts=facts)
        if self._stored is None or candidate.seconds or candidate.is_rewritten:
            return _Looked(candidate)
        item = candidate.item
        return _Looked(candidate, (), self._stored.find(candidate.path, item.modified_ns, item.size))

    def _embed_batches(self, batches: Iterator[Sequence[_Looked]]) -> Iterator[EmbeddedBatch]:
        for batch in decoded(batches, self._read, lambda looked: looked.candidate.path, device=self._device):
            done = EmbeddedBatch(dealt=len(batch.items) + len(batch.failed))
            done.failed = [(looked.candidate, reason) for looked, reason in batch.failed]
            if batch.items:
                self._embed(batch, done)
            yield done

    def _read(self, looked: _Looked) -> tuple[Any, _Content]:
        """Decode an image if the model must embed it, and then hash its file. Threads call this."""
        candidate = looked.candidate
        if looked.rows or candidate.seconds or candidate.kind == "sentence":
            return None, (None, FileFacts())
        pixels = self._model.read_image(candidate.path) if looked.place is None else None
        return pixels, _content_of(candidate)

    def _embed(self, batch: DecodedBatch[_Looked, tuple[Any, _Content]], done: EmbeddedBatch) -> None:
        """Embed a batch, whose items are all of one kind."""
        first = batch.items[0]
        if first.rows:
            done.recognised = len(batch.items)
            for looked in batch.items:
                done.note(looked.candidate, [entry for entry, _ in looked.rows], looked.facts)
            done.vectors = np.stack([row for looked in batch.items for _, row in looked.rows])
        elif first.candidate.kind == "sentence":
            if (encode_text := getattr(self._model, "encode_text", None)) is None:
                raise ModelError("this model embeds no sentences: give a folder of images")
            sentences = [looked.candidate.text for looked in batch.items]
            done.entries = [_entry(looked.candidate, (None, FileFacts())) for looked in batch.items]
            done.vectors = _vectors(encode_text(sentences, self._batch_size))
        elif first.candidate.seconds:
            self._embed_segments(first.candidate, done)
        else:
            self._embed_images(batch, done)

    def _embed_images(self, batch: DecodedBatch[_Looked, tuple[Any, _Content]], done: EmbeddedBatch) -> None:
        """Embed images, some perhaps by stored features."""
        rows: dict[int, ItemVectors] = {}
        places = {number: each.place for number, each in enumerate(batch.items) if each.place is not None}
        if self._stored is not None and places:
            positions = np.fromiter(places.values(), np.int64)
            rows |= zip(places, _vectors(self._stored.embed(positions, self._batch_size)), strict=True)
            done.from_store = len(places)
        if new := [number for number in range(len(batch.items)) if number not in places]:
            pixels = [batch.values[number][0] for number in new]
            rows |= zip(new, _vectors(self._model.encode_pixels(pixels)), strict=True)
        for looked, (_, content) in zip(batch.items, batch.values, strict=True):
            done.note(looked.candidate, [_entry(looked.candidate, content)], content[1])
        done.vectors = np.stack([rows[number] for number in range(len(batch.items))])

    def _embed_segments(self, candidate: Candidate, done: EmbeddedBatch) -> None:
        """Embed all segments of a clip."""
        try:
            duration = clip_seconds(candidate.path)
        except BadImageError as error:
            done.failed.append((candidate, failure_reason(error, candidate.path)))
            return
        spans, parts = cut_clip(duration, candidate.seconds), []
        places: list[ClipSource] = [ClipSegment(candidate.path, *span) for span in spans]
        batches = in_batches(places, self._batch_size)
        for batch in decoded(batches, self._model.read_image, lambda _: candidate.path, device=self._device):
            if batch.failed:
                done.failed.append((candidate, batch.failed[0][1]))
                return
            parts.append(_vectors(self._model.encode_pixels(batch.values)))
        content = _content_of(candidate)
        named = (segment_name(candidate.item.id, *span) for span in spans)
        done.note(candidate, [_entry(candidate, content, name) for name in named], content[1])
        done.vectors = np.concatenate(parts)


def cut_candidates(candidates: Sequence[Candidate], batch_size: int, num_processes: int) -> list[Sequence[Candidate]]:
    """Cut candidates into parts of whole batches, at least a few for each process.

    Clips that are cut into segments are parts of their own: one clip may be as much work as a batch.
    """
    whole, clips = ([each for each in candidates if bool(each.seconds) is cuts] for cuts in (False, True))
    parts: list[Sequence[Candidate]] = []
    for some, unit in ((whole, batch_size), (clips, 1)):
        units = -(-len(some) // unit)
        parts += in_batches(some, unit * max(1, min(BATCHES_IN_PART, units // (4 * num_processes))))
    return parts


def _part_embedder(
    load: Callable[[], ImageEmbedder], batch_size: int
) -> Callable[[Sequence[Candidate]], list[EmbeddedBatch]]:
    """Load the model of a worker."""
    embedder = Embedder(load(), batch_size)
    return lambda part: list(embedder.embed(part))


def content_hash(path: Path, size: int) -> bytes | None:
    """Return a hash of a file's content, 16 bytes, or None if the file, of this size before, cannot be read."""
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


def rewritten_items(index: FoundIndex, roots: Sequence[Root]) -> set[str]:
    """Return the ids of items whose files have the same time and size as before, and another content."""
    rewritten: set[str] = set()
    sql = "SELECT id, size, content FROM items WHERE root = ? AND content IS NOT NULL AND kind != 'sentence'"
    for root in roots:
        for rows in in_batches(index.database.read(sql, (root.number,)), _FILES):
            names, sizes, before = zip(*rows, strict=True)
            paths = [Path(root.path, root.name_of(file_of(name))) for name in names]
            with ThreadPoolExecutor(DECODERS) as pool:
                contents = pool.map(content_hash, paths, sizes)
            compared = zip(names, before, contents, strict=True)
            rewritten |= {name for name, was, content in compared if content not in (None, was)}
    return rewritten


def _facts_of(candidate: Candidate) -> FileFacts:
    """Return the facts of a file, also by the names of the folders up to the indexed one."""
    return read_facts(candidate.path, candidate.sidecars, candidate.item.id.count("/") + 1)


def _content_of(candidate: Candidate) -> _Content:
    """Return the hash and the facts of a file that was read, without hash if it has changed since it was listed.

    Otherwise the hash of a later content would vouch for the embeddings of an earlier one.
    """
    content = content_hash(candidate.path, candidate.item.size)
    facts = _facts_of(candidate)
    try:
        status = candidate.path.stat()
    except OSError:
        return None, facts
    now = status.st_mtime_ns, status.st_size, changed_ns(status, candidate.sidecars)
    same = now == (candidate.item.modified_ns, candidate.item.size, candidate.changed_ns)
    return content if same else None, facts


def _entry(candidate: Candidate, content: _Content, name: str = "") -> Entry:
    """Return the entry of a candidate, or of one of its segments by its name."""
    item = replace(candidate.item, id=name) if name else candidate.item
    header = stored_json(content[1].header) if content[1].header else None
    return Entry(item, candidate.root, candidate.kind, content[0], header, candidate.changed_ns)


def _vectors(embedded: Any) -> Vectors:
    """Return embeddings as an index holds them."""
    if not embedded.mask.all():
        raise ModelError("the items have different numbers of embeddings: take a model that gives a fixed number")
    return np.asarray(embedded.vectors, dtype=np.float32)
