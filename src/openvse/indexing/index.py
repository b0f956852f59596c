"""An index on disk, open for reading. ``index.manifest`` names its files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import IndexFormatError
from openvse.files import given_path
from openvse.indexing.database import Database, ItemTable, Root, VectorFile, encode_id
from openvse.indexing.manifest import IndexManifest, Item, check_model, damaged, index_folder, read_manifest
from openvse.indexing.vector_files import MappedVectors, finite_rows, map_vectors, row_checksum
from openvse.media.segments import file_of, span_of

SMALL_BYTES = 1 << 24
"""Embeddings up to this size are compared with their checksums whenever they are opened, larger ones on request."""

SMALL_COUNT = 1 << 16
"""The same for the number of items."""

_ATTEMPTS = 5
_KEYS_AN_ITEM = 4  # more are searched for: a place for each would take too much memory


@dataclass(eq=False, repr=False)
class Index:
    """Embeddings of images or sentences, memory-mapped. ``build_index`` makes them.

    It keeps the state of the index when it was opened. Later writes do not change it. ``openvse.open`` searches it.

    Attributes:
        manifest: the model that made it, and its shape.
        roots: the indexed folders, or the file of the sentences.
        table: the items and their facts, in the order of their ids.
        vector_files: the embeddings, in the files that hold them.
        is_complete: False while an indexing is under way, or after an interrupted one.

    Examples:
        >>> index = Index.open("index", model.fingerprint)  # doctest: +SKIP
        >>> len(index), index.items[0].id  # doctest: +SKIP
    """

    path: Path
    manifest: IndexManifest
    roots: tuple[Root, ...]
    table: ItemTable
    vector_files: tuple[MappedVectors, ...]
    _database: Database
    is_complete: bool = True

    def __post_init__(self) -> None:
        self._root_of = {root.number: root for root in self.roots}
        self._reading = RLock()

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name: str) -> None:
            more = f": openvse.open({str(self.path)!r}) has it" if name == "search" else ""
            raise AttributeError(f"an Index has no attribute {name!r}{more}", name=name, obj=self)

    @classmethod
    def open(cls, path: str | Path, model_fingerprint: str | None = None, *, check: bool = False) -> Index:
        """Open an index for reading, also while another process writes to it.

        Args:
            path: its folder, or the folder of a run that has one.
            model_fingerprint: the model that must have made it. None takes any.
            check: call ``check``, whatever the size. Small ones are always compared with their checksums.

        Raises:
            IndexFormatError: it is missing, damaged, of another format version, or made by another model.
        """
        folder = given_path(path, "the index")
        folder = index_folder(folder) or folder
        for attempt in range(1, _ATTEMPTS + 1):
            manifest = read_manifest(folder)
            check_model(folder, manifest, model_fingerprint)
            try:
                index = cls._open(folder, manifest)
                break
            except IndexFormatError:
                # A writer may have replaced files between our looks at the manifest, the database and the files.
                if attempt == _ATTEMPTS:
                    raise
        size = sum(file.vectors.nbytes for file in index.vector_files)
        if check:
            index.check()
        elif size <= SMALL_BYTES and len(index) <= SMALL_COUNT:
            index.compare()
        return index

    @classmethod
    def _open(cls, folder: Path, manifest: IndexManifest) -> Index:
        if not (folder / manifest.items).is_file():
            raise damaged(folder, f"{manifest.items} is missing")
        database = Database(folder / manifest.items)
        try:
            return cls.of(folder, manifest, database)
        except BaseException:
            database.close()
            raise

    @classmethod
    def of(cls, folder: Path, manifest: IndexManifest, database: Database) -> Index:
        """Return an index whose manifest was read, and whose database is open."""
        with database.snapshot():
            roots, table, files = database.roots(), database.table(), database.vector_files()
            unfinished = database.setting("unfinished")
            mapped = _map_files(folder, manifest, table, files)
        manifest = replace(manifest, root=roots[0].path if roots else "", count=len(table.ids))
        return cls(folder, manifest, roots, table, tuple(mapped), database, not unfinished)

    def __len__(self) -> int:
        return len(self.table.ids)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Yield the database of the items, which may have moved on since, to one thread at a time."""
        with self._reading:
            yield self._database

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The images, in the order of their ids."""
        numbers = zip(self.table.modified_ns.tolist(), self.table.sizes.tolist(), strict=True)
        return tuple(Item(name, *each) for name, each in zip(self.table.ids, numbers, strict=True))

    @cached_property
    def vectors(self) -> Float[np.ndarray, "count K D"]:
        """The embeddings in the order of the items.

        They are mapped into memory if they have this order in one file, as after a first indexing. Otherwise they are
        copied into memory. A search reads the files instead.
        """
        every = np.arange(len(self))
        if len(self.vector_files) == 1 and np.array_equal(self.vector_files[0].positions, every):
            return self.vector_files[0].vectors
        return self.gather(every)

    def gather(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n K D"]:
        """Return a copy of the embeddings of some items."""
        shape = (len(positions), self.manifest.num_embeddings, self.manifest.dim)
        taken = np.empty(shape, np.dtype(self.manifest.dtype))
        files, rows = self._places
        here = files[positions]
        for number in np.unique(here).tolist():
            chosen = np.flatnonzero(here == number)
            taken[chosen] = self.vector_files[number].vectors[rows[positions[chosen]]]
        return taken

    @cached_property
    def _places(self) -> tuple[Int[np.ndarray, "count"], Int[np.ndarray, "count"]]:
        """The file of each item, as a place in ``vector_files``, and its row there."""
        files, rows = np.zeros(len(self), np.int32), np.zeros(len(self), np.int32)
        for number, file in enumerate(self.vector_files):
            used = np.flatnonzero(file.positions >= 0)
            files[file.positions[used]] = number
            rows[file.positions[used]] = used
        return files, rows

    def position(self, item_id: str) -> int | None:
        """Return the position of an item, or None if the index does not hold it."""
        place = bisect_left(self.table.ids, encode_id(item_id), key=encode_id)
        return place if place < len(self) and self.table.ids[place] == item_id else None

    def of_keys(self, keys: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
        """Return the positions of the items that the index holds of some keys."""
        rising, order, by_key = self._by_key
        if by_key is None:
            places, held = places_among(rising, keys)
            positions: np.ndarray = order[places[held]]
            return positions
        positions = by_key[keys[keys < len(by_key)]]
        return positions[positions >= 0].astype(np.int64)

    @cached_property
    def _by_key(self) -> tuple[Int[np.ndarray, "count"], Int[np.ndarray, "count"], Int[np.ndarray, "_"] | None]:
        """The keys in their order, their positions, and a table from key to position where most keys have an item."""
        order = np.argsort(self.table.keys, kind="stable")
        rising = self.table.keys[order]
        if not len(self) or rising[-1] > _KEYS_AN_ITEM * len(self):
            return rising, order, None
        positions = np.full(rising[-1] + 1, -1, np.int32)
        positions[rising] = order
        return rising, order, positions

    def image_path(self, position: int) -> Path:
        """Return the path of an image, or of the clip of a segment, or of the file of sentences."""
        root = self._root_of[int(self.table.roots[position])]
        if self.manifest.holds == "sentences":
            return Path(root.path)
        return Path(root.path, root.name_of(file_of(self.table.ids[position])))

    def span(self, position: int) -> tuple[float, float] | None:
        """Return start and end in seconds of a segment of a clip, or None for any other item."""
        return None if self.manifest.holds == "sentences" else span_of(self.table.ids[position])

    def check(self) -> None:
        """Read all embeddings. IndexFormatError names the first that has changed, or holds NaN or infinite numbers."""
        self.compare()
        with self.database() as database:
            if not database.sound():
                raise damaged(self.path, f"{self.manifest.items} is not sound")
        bad: set[int] = set()
        for file in self.vector_files:
            used = file.positions.copy()
            used[finite_rows(file.vectors)] = -1
            bad.update(used[used >= 0].tolist())
        if bad:
            first = self.table.ids[min(bad)]
            what = f"the embeddings of {len(bad)} images hold NaN or infinite numbers, first {first}"
            raise damaged(self.path, what)

    def compare(self) -> None:
        """Compare the embeddings with their checksums. Raise IndexFormatError if they differ."""
        table, changed = self.table, []
        for file in self.vector_files:
            for row in np.flatnonzero(file.positions >= 0).tolist():
                place = int(file.positions[row])
                item = Item(table.ids[place], int(table.modified_ns[place]), int(table.sizes[place]))
                if row_checksum(item, file.vectors[row]) != table.checksums[place]:
                    changed.append(place)
        if changed:
            first = table.ids[min(changed)]
            raise damaged(self.path, f"{len(changed)} of its items do not match their checksums, first {first}")


def places_among(
    rising: Int[np.ndarray, "n"], keys: Int[np.ndarray, "m"]
) -> tuple[Int[np.ndarray, "m"], Bool[np.ndarray, "m"]]:
    """Return the places of keys among rising ones, and whether each exists. The place of another has no meaning."""
    places = np.searchsorted(rising, keys)
    held = places < len(rising)
    held[held] = rising[places[held]] == keys[held]
    return places, held


def _map_files(
    folder: Path, manifest: IndexManifest, table: ItemTable, files: Sequence[VectorFile]
) -> list[MappedVectors]:
    """Map the files of embeddings, with the items of their rows."""
    mapped = []
    placed = 0
    for file in files:
        here = np.flatnonzero(table.files == file.number)
        if not len(here):
            continue
        try:
            vectors = map_vectors(folder, file, manifest)
            positions = np.full(file.rows, -1, np.int32)
            positions[table.rows[here]] = here
        except (OSError, ValueError, IndexError, EOFError) as error:
            raise damaged(folder, str(error)) from error
        mapped.append(MappedVectors(vectors, positions))
        placed += len(here)
    if placed != len(table.ids):
        raise damaged(folder, f"{len(table.ids) - placed} items have no embeddings")
    return mapped
