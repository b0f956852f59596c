"""How a store follows its index: choice, updates, and the state that the index notes."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Int

from openvse.errors import EngineError, IndexFormatError
from openvse.files import locked, replacing
from openvse.indexing.index import Index, places_among
from openvse.indexing.manifest import MANIFEST, read_manifest
from openvse.stores import ItemFacts, VectorStore, open_vector_store, store_kind
from openvse.stores.base import PAYLOADS, CatalogueStore, Note, read_metadata
from openvse.stores.choice import PLACE, PREFIX, EngineAddress, split_engine

_logger = logging.getLogger(__name__)

_ITEMS = 2048  # put at once
_WRITE_EVERY = 16  # steps
_UNKNOWN = -1
_EMBEDDINGS = 0xFFFFFFFF


@dataclass(frozen=True)
class EngineState:
    """The items that an engine holds, or might hold.

    Before a change, its items are noted as unknown, so that after an interruption they are put or removed once more.

    Attributes:
        stamps: the last put of each item: the checksum of its embeddings in the lower half, of its metadata in the
            upper half. -1 where it is unknown whether it was put.
    """

    keys: Int[np.ndarray, "n"]
    stamps: Int[np.ndarray, "n"]

    @property
    def num_items(self) -> int:
        """The number of items that the engine holds for certain."""
        return int((self.stamps != _UNKNOWN).sum())

    @classmethod
    def empty(cls) -> EngineState:
        """Return the state of an engine that holds nothing."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def read(cls, path: Path) -> EngineState:
        """Read a state. Without one, or with a damaged one, it is empty, so everything is put again."""
        try:
            noted = np.load(path, allow_pickle=False)
            if noted.dtype == np.int64 and noted.ndim == 2 and len(noted) == 2:
                return cls(noted[0], noted[1])
        except (OSError, ValueError, EOFError, TokenError):
            pass
        return cls.empty()

    def write(self, path: Path) -> None:
        """Write it so that the file is always complete."""
        content = io.BytesIO()
        np.save(content, np.stack([self.keys, self.stamps]))
        with replacing(path) as partial:
            partial.write_bytes(content.getvalue())

    def changed(self, keys: Int[np.ndarray, "m"], stamps: Int[np.ndarray, "m"]) -> EngineState:
        """Return the state with other stamps of some items."""
        rest = ~np.isin(self.keys, keys)
        joined = np.concatenate([self.keys[rest], keys])
        order = np.argsort(joined)
        return EngineState(joined[order], np.concatenate([self.stamps[rest], stamps])[order])

    def without(self, keys: Int[np.ndarray, "m"]) -> EngineState:
        """Return the state without some items."""
        rest = ~np.isin(self.keys, keys)
        return EngineState(self.keys[rest], self.stamps[rest])

    def stamps_of(self, keys: Int[np.ndarray, "m"]) -> Int[np.ndarray, "m"]:
        """Return the stamps of some items, -1 for items that are not held."""
        places, held = places_among(self.keys, keys)
        stamps = np.full(len(keys), _UNKNOWN, np.int64)
        stamps[held] = self.stamps[places[held]]
        return stamps

    def holds(self, keys: Int[np.ndarray, "m"], checksums: Int[np.ndarray, "m"]) -> Bool[np.ndarray, "m"]:
        """Return which items the engine holds with these checksums of their embeddings."""
        stamps = self.stamps_of(keys)
        held: np.ndarray = (stamps != _UNKNOWN) & ((stamps & _EMBEDDINGS) == checksums)
        return held


def stamp(checksum: int, metadata: object) -> int:
    """Return the stamp of an item, never -1."""
    noted = crc32(metadata.encode() if isinstance(metadata, str) else b"", PAYLOADS) & 0x7FFFFFFF
    return (noted << 32) | (checksum & _EMBEDDINGS)


@dataclass(frozen=True)
class EngineReport:
    """The items that an update put into an engine and removed."""

    name: str
    put: int = 0
    removed: int = 0


@dataclass(frozen=True)
class EngineChange:
    """The present engine of an index (the exact one for a new index), and its future engine."""

    before: EngineAddress
    wanted: EngineAddress

    def apply(self, path: str | Path, progress: Callable[[int, int], None] | None = None) -> EngineReport:
        """Give an index the wanted engine, and bring it up to date. See ``note`` and ``update_engine``."""
        address = self.note(path)
        if address.engine == "exact":
            return EngineReport("exact")
        return update_engine(path, url=address.given, progress=progress)

    def note(self, path: str | Path) -> EngineAddress:
        """Note the wanted engine in an index, then remove the data of the others. ``update_engine`` fills it.

        At every moment, the index names an engine whose place exists. A rebuilt index gets a new place.
        """
        folder, wanted = Path(path), self.wanted
        if wanted.engine == self.before.engine == "exact" and not any(folder.glob(f"{PREFIX}*")):
            return wanted
        with locked(folder, "index", IndexFormatError):
            manifest = read_manifest(folder)
            now = EngineAddress.of(folder, manifest.engine)
            # The data of a rebuilt index go to a new place.
            if now.name != self.before.name and wanted == self.before:
                anew = EngineAddress.new(folder, wanted.engine, wanted.given or wanted.url)
                wanted = replace(anew, given=wanted.given)
            shape = manifest.num_embeddings, manifest.dim
            if now.name != wanted.name:
                if wanted.engine != "exact":
                    open_vector_store(wanted, shape, create=True).close()
                replace(manifest, engine=wanted.noted()).write(folder)
            for address in {self.before, now} - {wanted}:
                _drop(address, shape)
            for left in folder.glob(f"{PREFIX}*"):  # by a process that was killed
                if PLACE.fullmatch(left.stem) and left.stem != wanted.name:
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        return wanted


def plan_engine(path: str | Path, engine: str | None = None, *, model: object = None) -> EngineChange:
    """Decide on the engine of an index, which need not exist yet, before anything is embedded.

    It is a name, or the URL of a server, whose secrets are used and never written. None keeps the noted one.
    """
    folder, before = Path(path), EngineAddress()
    name, url = split_engine(engine)
    if (folder / MANIFEST).is_file():
        with suppress(IndexFormatError):  # indexing reports its faults, or rebuilds it
            before = EngineAddress.of(folder, read_manifest(folder).engine)
    wanted = before
    if name is not None and (url or name != before.engine):
        wanted = EngineAddress.new(folder, name, url)
        if (wanted.engine, wanted.url) == (before.engine, before.url):
            wanted = replace(before, given=wanted.given)
    if wanted.engine != "exact":
        check_served(wanted.engine, model)
    if wanted.url and issubclass(store := store_kind(wanted.engine).store, CatalogueStore):
        server = wanted.server
        if wanted != before:
            store.places(server)  # it answers
    return EngineChange(before, wanted)


def check_served(name: str, model: object) -> None:
    """Raise EngineError where inner products do not order items like the model's similarity."""
    if getattr(model, "indexable", True):
        return
    similarity = type(getattr(model, "similarity", model)).__name__
    raise EngineError(
        f"the engine {name} ranks by inner product and cannot reproduce this model's similarity "
        f"({similarity}): use the exact engine, or score pairs with model.score"
    )


def update_engine(
    path: str | Path, *, url: str | None = None, progress: Callable[[int, int], None] | None = None
) -> EngineReport:
    """Bring the engine of an index up to date, at the cost of the changes since the last time.

    Without a URL of the server, with its secrets, the index and the environment name it.
    """
    folder = Path(path)
    address = EngineAddress.of(folder, read_manifest(folder).engine, url)
    if address.engine == "exact":
        return EngineReport("exact")
    with locked(folder, "index", IndexFormatError):
        index = Index.open(folder)
        shape = index.manifest.num_embeddings, index.manifest.dim
        store = open_vector_store(address, shape, create=True)
        try:
            report = _Update(index, address, store).run(progress)
            if isinstance(store, CatalogueStore) and store.note() != (note := Note.of(index).to_json()):
                store.write_note(note)
            return report
        finally:
            store.close()


class _Update:
    """One update of an engine."""

    def __init__(self, index: Index, address: EngineAddress, store: VectorStore) -> None:
        self._index, self._engine, self._store = index, address.engine, store
        self._file = state_file(address)
        self._state = EngineState.read(self._file)
        # Somebody has emptied or replaced the server, so everything is put again.
        if store.num_points() < self._state.num_items * index.manifest.num_embeddings:
            self._state = EngineState.empty()

    def run(self, progress: Callable[[int, int], None] | None) -> EngineReport:
        table = self._index.table
        stamps, facts = self._facts()
        gone = self._state.keys[~np.isin(self._state.keys, table.keys)]
        changed = np.flatnonzero(self._state.stamps_of(table.keys) != stamps)
        if not len(gone) and not len(changed):
            return EngineReport(self._engine)
        touched = np.concatenate([gone, table.keys[changed]])
        self._state = self._state.changed(touched, np.full(len(touched), _UNKNOWN, np.int64))
        self._state.write(self._file)
        if len(gone):
            self._store.remove(gone)
            self._state = self._state.without(gone)
        for number, start in enumerate(range(0, len(changed), _ITEMS), start=1):
            some = changed[start : start + _ITEMS]
            self._store.put(table.keys[some], self._index.gather(some), [facts(place) for place in some.tolist()])
            self._state = self._state.changed(table.keys[some], stamps[some])
            if number % _WRITE_EVERY == 0:
                self._state.write(self._file)
            if progress is not None:
                progress(start + len(some), len(changed))
        self._store.finish()
        self._state.write(self._file)
        return EngineReport(self._engine, len(changed), len(gone))

    def _facts(self) -> tuple[Int[np.ndarray, "count"], Callable[[int], ItemFacts]]:
        """Return the stamps of all items, and a function that makes the facts of one."""
        index = self._index
        with index.database() as database:
            noted = {row[0]: row[1:] for row in database.read("SELECT key, kind, metadata FROM items")}
        table = index.table
        rows = [noted.get(key, ("image", None)) for key in table.keys.tolist()]
        sums = table.checksums.tolist()
        stamps = np.array([stamp(each, row[1]) for each, row in zip(sums, rows, strict=True)], np.int64)

        def facts(place: int) -> ItemFacts:
            kind, metadata = rows[place]
            times = int(table.modified_ns[place]), int(table.sizes[place])
            return ItemFacts(table.ids[place], str(kind), *times, read_metadata(metadata))

        return stamps, facts


def state_file(address: EngineAddress) -> Path:
    """Return the file where an index notes the content of its engine."""
    return address.folder / f"{address.name}.npy"


def _drop(address: EngineAddress, shape: tuple[int, int]) -> None:
    """Remove the data of an engine, except its folder. A server may be out of reach."""
    if address.engine == "exact":
        return
    try:
        store = open_vector_store(address, shape)
        store.drop()
        store.close()
    except EngineError as error:
        if address.url:
            _logger.warning("the data of the engine %s in %s were not removed: %s", address.engine, address.name, error)
