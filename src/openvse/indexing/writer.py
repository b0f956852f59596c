"""Writing an index: append embeddings, and make them part of the index in transactions.

Changes that read no image come last: removing folders, other embeddings, compaction, and finding damage.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float

from openvse.errors import IndexDamagedError, IndexFormatError, IndexVersionError, ModelError
from openvse.files import given_path, locked, made, sync
from openvse.indexing.database import Database, Entry, Root
from openvse.indexing.index import SMALL_BYTES, SMALL_COUNT, Index
from openvse.indexing.manifest import (
    MANIFEST,
    UNFINISHED,
    Held,
    IndexManifest,
    Item,
    Place,
    VectorDtype,
    damaged,
    read_manifest,
)
from openvse.indexing.vector_files import PATTERN, VectorWriter, finite_rows, map_vectors, row_checksum
from openvse.media.segments import file_of

_MANY = 1000  # new items whose words are added before the end of a run


@dataclass(frozen=True)
class FoundIndex:
    """An existing index, whose database is open for writing."""

    folder: Path
    manifest: IndexManifest
    database: Database
    roots: tuple[Root, ...]


class IndexFolder:
    """The folder of an index, locked for one process that writes, as a context manager.

    It opens, once, the index in the folder, and an unfinished one that would replace it. At the end it removes the
    files that belong to neither, from this process or a killed one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._published: tuple[FoundIndex, ...] = ()
        with ExitStack() as opening, disk_errors(path):
            opening.enter_context(made(path))
            # No other process writes here from now on, whose files this one would remove at the end.
            opening.enter_context(locked(path, "index", IndexFormatError))
            self._indexes = {name: self._look(name) for name in (MANIFEST, UNFINISHED) if (path / name).is_file()}
            self._open = opening.pop_all()

    def __enter__(self) -> IndexFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            named = self._named()
            for index in self._indexes.values():
                if isinstance(index, FoundIndex):
                    index.database.close()
            if named is not None:
                self._remove_all_but(named)
        finally:
            self._open.__exit__(kind, error, trace)

    def find(self, name: str = MANIFEST) -> FoundIndex | None:
        """Return the index under a name, or None if it is missing, damaged, or of another format version."""
        index = self._indexes.get(name)
        return index if isinstance(index, FoundIndex) else None

    def problem(self, name: str = MANIFEST) -> IndexFormatError | None:
        """Return the reason why the index under a name cannot be used, or None if it can be or is missing."""
        index = self._indexes.get(name)
        return index if isinstance(index, IndexFormatError) else None

    def publish(self, name: str, index: FoundIndex) -> None:
        """Make an index the one under a name. As the index itself, it takes the place of an unfinished one."""
        self._published = (index,)  # whose files stay, should a signal come before the next lines have run
        if (before := self.find(name)) is None or before.manifest != index.manifest:
            index.manifest.write(self.path, name)
        if name == MANIFEST:
            (self.path / UNFINISHED).unlink(missing_ok=True)
        replaced = [self._indexes.pop(each, None) for each in (name, UNFINISHED)]
        self._indexes[name] = index
        for old in replaced:
            if isinstance(old, FoundIndex) and old.database is not index.database:
                old.database.close()

    def holds(self, database: Database) -> bool:
        """Return whether a database belongs to an index of this folder, which closes it."""
        indexes = [each for each in self._indexes.values() if isinstance(each, FoundIndex)]
        return any(index.database is database for index in indexes)

    def _look(self, name: str) -> FoundIndex | IndexFormatError:
        try:
            manifest = read_manifest(self.path, name)
            if not (self.path / manifest.items).is_file():
                return damaged(self.path, f"{manifest.items} is missing")
            database = Database(self.path / manifest.items, write=True)
        except (IndexDamagedError, IndexVersionError) as error:
            return error
        try:
            return FoundIndex(self.path, manifest, database, database.roots())
        except IndexDamagedError as error:
            database.close()
            return error

    def _named(self) -> set[str] | None:
        """Return the files that belong to an index, or None if one cannot be understood."""
        named: set[str] = set()
        for index in (*self._indexes.values(), *self._published):
            if not isinstance(index, FoundIndex):
                return None
            named |= {index.manifest.items, f"{index.manifest.items}-journal"}
            try:
                named |= {each.file for each in index.database.vector_files()}
            except IndexFormatError:
                return None
        return named

    def _remove_all_but(self, named: set[str]) -> None:
        for pattern in (PATTERN, "items-*.sqlite*", ".*.json.partial"):
            for path in self.path.glob(pattern):
                if path.name not in named:
                    # Some systems refuse while a reader has it: the next writer removes it.
                    with suppress(OSError):
                        path.unlink()


class IndexWriter:
    """Writes an index. Everything before a ``commit`` is in it, whatever happens next.

    It continues the existing index if that has the same model and number format, and begins one if there is none or a
    damaged one. With ``replace`` it writes beside the existing index and takes its place when the context ends well. A
    context that ends with an exception leaves the committed state.
    """

    def __init__(
        self,
        folder: Path | IndexFolder,
        *,
        model: str,
        roots: Sequence[Root],
        dtype: VectorDtype | None = None,
        model_place: Mapping[str, str] | None = None,
        holds: Held = "images",
        gaussians: bool = False,
        replace: bool = False,
        anew: bool = False,
    ) -> None:
        self._open = ExitStack()
        self._index = folder if isinstance(folder, IndexFolder) else self._open.enter_context(IndexFolder(folder))
        self._folder, self._name = self._index.path, UNFINISHED if replace else MANIFEST
        self._manifest = IndexManifest(
            model=model,
            num_embeddings=0,
            dim=0,
            dtype=dtype or "float32",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            items=f"items-{secrets.token_hex(4)}.sqlite",
            model_place=None if model_place is None else dict(model_place),
            holds=holds,
            gaussians=gaussians,
        )
        self._roots = tuple(roots)
        self._database: Database | None = None
        self._file: VectorWriter | None = None
        self._number: int | None = None  # of the file, once the database names it
        self._filled: list[tuple[VectorWriter, int | None]] = []
        self._pending: list[tuple[Entry, VectorWriter, int, int]] = []
        self._dropped: list[str] = []
        self._steps: list[Callable[[Database], None]] = []
        self._notes: dict[str, str] = {}
        self._is_published = False
        self.run, self.first_unfinished = 1, 0
        if not anew and (before := self._index.find(self._name)) is not None:
            self._go_on(before, dtype)

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            try:
                if error is None:
                    self.finish()
                elif not isinstance(error, ModelError | IndexFormatError):
                    with suppress(IndexFormatError):  # a full disk has no room for it either
                        self.commit()
            finally:
                self._close()

    @property
    def written(self) -> FoundIndex | None:
        """The committed index, or None if nothing was committed."""
        if self._database is None:
            return None
        return FoundIndex(self._folder, self._manifest, self._database, self._roots)

    def append(self, entries: Sequence[Entry], vectors: Float[np.ndarray, "B K D"]) -> None:
        """Add items and their embeddings, of one shape. They replace items with the same ids."""
        if not self._manifest.dim:
            self._manifest = replace(self._manifest, num_embeddings=vectors.shape[1], dim=vectors.shape[2])
        expected = [self._manifest.num_embeddings, self._manifest.dim]
        if list(vectors.shape[1:]) != expected:
            raise ModelError(
                f"the embeddings of the images have the shapes {expected} and {list(vectors.shape[1:])}, "
                f"but an index needs one shape: use an aggregator that returns a fixed number of embeddings"
            )
        dtype = self._manifest.dtype
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=np.dtype(dtype))
        finite = finite_rows(stored)
        if len(finite) < len(stored):
            bad = next(iter(set(range(len(stored))) - set(finite.tolist())))
            raise ModelError(
                f"the embedding of {entries[bad].item.id} holds NaN or infinite numbers as {dtype}, and is not "
                f"written: check the weights of the model; if they are sound, remove the image from the folder"
            )
        with disk_errors(self._folder):
            file = self._file_to_fill()
            first = file.append(stored)
        self._pending += [
            (entry, file, first + place, row_checksum(entry.item, stored[place])) for place, entry in enumerate(entries)
        ]

    def drop(self, ids: Sequence[str]) -> None:
        """Remove items with the next transaction."""
        self._dropped += ids

    def at_the_end(self, step: Callable[[Database], None]) -> None:
        """Do something more in the transaction that completes the indexing."""
        self._steps.append(step)

    def note(self, name: str, value: str) -> None:
        """Note a setting with the next transaction."""
        self._notes[name] = value

    def __len__(self) -> int:
        """Return the number of items, with the uncommitted ones."""
        return (0 if self._database is None else self._database.count()) + len(self._pending)

    def commit(self) -> None:
        """Make everything so far part of the index. Raise IndexFormatError, and change nothing, if the disk refuses."""
        if self._pending or self._dropped:
            with disk_errors(self._folder):
                self._commit(finished=False)

    def finish(self) -> None:
        """Commit, and note that the indexing is complete. Raise IndexFormatError if the disk refuses."""
        changed = any((self._pending, self._dropped, self._steps, self._notes)) or self.first_unfinished
        if (database := self._database) is not None and not changed:
            changed = not set(self._roots) <= set(database.roots())
        with disk_errors(self._folder):
            if changed and (self._pending or self._database is not None):
                self._commit(finished=True)
            if self._database is not None:
                self._publish(MANIFEST)

    def _go_on(self, before: FoundIndex, dtype: VectorDtype | None) -> None:
        """Continue an index, if it is of the same kind."""
        old, mine = before.manifest, self._manifest
        if (old.model, old.holds) != (mine.model, mine.holds) or dtype not in (None, old.dtype):
            return
        self._database, self._is_published = before.database, mine.model_place in (None, old.model_place)
        self._manifest = replace(old, model_place=mine.model_place or old.model_place)
        self.run = int(before.database.setting("run", "0")) + 1
        self.first_unfinished = int(before.database.setting("unfinished", "0"))

    def _file_to_fill(self) -> VectorWriter:
        """Return the file that the next embeddings belong to: the last one of the index, until it is full."""
        if self._file is not None and self._file.is_full:
            self._filled.append((self._file, self._number))
            self._file = self._number = None
        if self._file is None and not self._filled and self._database is not None:
            for file in self._database.vector_files()[-1:]:
                with suppress(OSError, ValueError, EOFError):  # if rows are missing, no more may follow them
                    map_vectors(self._folder, file, self._manifest)
                    self._number = file.number
                if self._number is not None:
                    self._file = VectorWriter(self._folder, self._manifest, file)
        if self._file is None or self._file.is_full:
            if self._file is not None:
                self._file.close()
            self._file, self._number = VectorWriter(self._folder, self._manifest), None
        return self._file

    def _commit(self, *, finished: bool) -> None:
        """Put embeddings on the disk, and then name them, all at once."""
        open_files = [*self._filled, *([(self._file, self._number)] if self._file else [])]
        for file, _ in open_files:
            file.flush()
        if self._database is None:
            self._database = Database(self._folder / self._manifest.items, write=True)
        database = self._database
        with database.transaction():
            numbers = {}
            for file, number in open_files:
                if number is None:
                    numbers[file] = database.new_file(file.path.name, file.rows)
                else:
                    numbers[file] = number
                    database.change("UPDATE segments SET rows = ? WHERE segment = ?", values=(file.rows, number))
            database.set_roots(self._roots)
            placed = ((entry, numbers[file], row, checksum) for entry, file, row, checksum in self._pending)
            database.put(placed, self.run)
            database.drop(self._dropped)
            for name, value in self._notes.items():
                database.set(name, value)
            if finished:
                for step in self._steps:
                    step(database)
                database.drop_empty_files()
            database.keep_words(1 if finished else _MANY)
            self.first_unfinished = 0 if finished else self.first_unfinished or self.run
            database.set("unfinished", str(self.first_unfinished or ""))
            database.set("run", str(self.run))
        for file, _ in self._filled:
            file.close()
        if self._file is not None:
            self._number = numbers[self._file]
        self._filled, self._pending, self._dropped, self._notes = [], [], [], {}
        if finished:
            self._steps = []
        if not self._is_published:
            self._publish(self._name)

    def _publish(self, name: str) -> None:
        if self.written is not None:
            self._index.publish(name, self.written)
            self._is_published = True

    def _close(self) -> None:
        for file, _ in [*self._filled, (self._file, None)]:
            if file is not None:
                with suppress(OSError):  # what cannot be flushed belongs to no index
                    file.close()
        if self._database is not None and not self._index.holds(self._database):
            self._database.close()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a refusal of the disk or the database into an IndexFormatError that names the index."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise IndexFormatError(
            f"index {folder} cannot be written ({reason}): make room or choose another place, and run the same command "
            f"again, which goes on with what is kept"
        ) from error


def forget_folder(path: str | Path, folder: str | Path) -> None:
    """Remove an indexed folder, or one inside it that is gone or empty, with its items from an index. Files stay.

    Raises:
        IndexFormatError: the index does not hold the folder, or holds no other, another process writes it, or the disk
            refuses.
    """
    place, folder = Path(path), given_path(folder, "forget")
    if not (place / MANIFEST).is_file():
        read_manifest(place)  # which says so, before a folder is made
    with IndexFolder(place) as opened, disk_errors(place):
        if (index := opened.find()) is None:
            raise opened.problem() or damaged(place, MANIFEST)
        database, roots, resolved = index.database, index.roots, folder.resolve()
        root = next((each for each in roots if each.path in (str(folder), str(resolved))), None)
        inside = _files_below(index, {folder.absolute(), folder.parent.resolve() / folder.name, resolved})
        names = ", ".join(each.path for each in roots)
        if root is None and (not inside or any(file.exists() for file in inside.values())):
            what = f"takes folders that were indexed ({names})"
            if any(Path(each.path) in resolved.parents for each in roots):
                what += (
                    ", and folders inside them that are gone or empty. To take another file or folder out, delete or "
                    "move it, or skip it with --ignore, and index again"
                )
            raise IndexFormatError(f"index {path} cannot forget {folder}: --forget {what}")
        if len(roots) == 1 if root else len(inside) == database.count():
            raise IndexFormatError(f"index {path} holds nothing but {names}: remove the folder of the index instead")
        with database.transaction():
            database.drop(inside)
            if root is not None:
                deletions = (f"DELETE FROM {table} WHERE root = ?" for table in ("items", "roots"))
                database.change(*deletions, values=(root.number,))
            database.drop_empty_files()


def _files_below(index: FoundIndex, folders: Collection[Path]) -> dict[str, Path]:
    """Return the ids of the items inside folders that are inside the roots of an index, with their files."""
    inside = ((root, each) for root in index.roots for each in folders if Path(root.path) in each.parents)
    return {
        item_id: Path(root.path, file_of(name))
        for root, folder in inside
        for item_id, *_ in index.database.walk(root.number)
        if (name := root.name_of(item_id)).startswith(f"{folder.relative_to(root.path).as_posix()}/")
    }


_ROWS = 4096


def unused_rows(database: Database) -> int:
    """Return the number of rows that no item needs."""
    return sum(file.rows for file in database.vector_files()) - database.count()


def rewrite(index: FoundIndex) -> int:
    """Write all embeddings anew, in the order of the ids, and return the number of rows that are gone.

    The old files are replaced in one transaction, when the new ones are on the disk. Until then, or if the disk has no
    room for both, the index is unchanged. The caller holds the writer's lock, and removes the old files.
    """
    if unused := unused_rows(index.database):
        with disk_errors(index.folder), ExitStack() as opened:
            _copy(index, opened)
    return unused


def replace_embeddings(
    path: Path,
    model: str,
    place: Place,
    embed: Callable[[Index], Float[np.ndarray, "count K D"]],
    notes: Mapping[str, str],
) -> None:
    """Give the items of an index the embeddings of another model, all at once by the rename of its manifest.

    ``notes`` are settings that the index notes with them.

    Raises:
        IndexFormatError: another process writes the index, or the disk refuses. The index is unchanged.
    """
    with IndexFolder(path) as opened, disk_errors(path), ExitStack() as kept:
        if (found := opened.find()) is None:
            raise opened.problem() or damaged(path, MANIFEST)
        vectors = embed(Index.of(path, found.manifest, found.database))
        manifest = replace(found.manifest, items=f"items-{secrets.token_hex(4)}.sqlite")
        manifest = replace(manifest, model=model, model_place=dict(place))
        manifest = replace(manifest, num_embeddings=vectors.shape[1], dim=vectors.shape[2])
        found.database.copy(path / manifest.items)
        database = kept.enter_context(Database(path / manifest.items, write=True))
        index = replace(found, manifest=manifest, database=database)
        with ExitStack() as files:
            _copy(index, files, vectors.astype(manifest.dtype))
        with database.transaction():
            for note in notes.items():
                database.set(*note)
        sync(path / manifest.items)
        opened.publish(MANIFEST, index)
        kept.pop_all()


def _copy(index: FoundIndex, opened: ExitStack, new: Float[np.ndarray, "count K D"] | None = None) -> None:
    """Copy the rows, or write new ones, into new files, and name these instead of the old ones."""
    database, manifest, table = index.database, index.manifest, index.database.table()
    shape = manifest.num_embeddings, manifest.dim
    files = database.vector_files() if new is None else ()
    old = {file.number: map_vectors(index.folder, file, manifest) for file in files}
    written: list[VectorWriter] = []
    places: list[tuple[VectorWriter, int, int, int]] = []
    for start in range(0, len(table.ids), _ROWS):
        stop = min(start + _ROWS, len(table.ids))
        if not written or written[-1].is_full:
            written.append(VectorWriter(index.folder, manifest))
            opened.callback(written[-1].close)
        block = np.empty((stop - start, *shape), np.dtype(manifest.dtype))
        here = table.files[start:stop]
        for number in np.unique(here).tolist() if new is None else ():
            chosen = np.flatnonzero(here == number)
            block[chosen] = old[number][table.rows[start:stop][chosen]]
        sums = table.checksums[start:stop].tolist()
        if new is not None:
            block[:] = new[start:stop]
            facts = zip(table.ids[start:stop], table.modified_ns[start:stop], table.sizes[start:stop], strict=True)
            sums = [
                row_checksum(Item(name, *map(int, more)), row) for (name, *more), row in zip(facts, block, strict=True)
            ]
        first = written[-1].append(block)
        keys = table.keys[start:stop].tolist()
        places += [(written[-1], first + row, *each) for row, each in enumerate(zip(sums, keys, strict=True))]
    for writer in written:
        writer.flush()
    with database.transaction():
        numbers = {writer: database.new_file(writer.path.name, writer.rows) for writer in written}
        database.place((numbers[writer], row, checksum, key) for writer, row, checksum, key in places)
        database.drop_empty_files()


def damaged_items(index: FoundIndex, *, check: bool = False) -> set[str]:
    """Return the ids of items whose embeddings are missing, or do not fit their checksums.

    Without ``check``, the embeddings of a large index are not compared, only the sizes of its files.
    """
    database, manifest = index.database, index.manifest
    count = database.count()
    size = count * manifest.num_embeddings * manifest.dim * np.dtype(manifest.dtype).itemsize
    thorough = check or (count <= SMALL_COUNT and size <= SMALL_BYTES)
    damaged: set[str] = set()
    for file in database.vector_files():
        try:
            vectors = map_vectors(index.folder, file, manifest)
        except (OSError, ValueError, EOFError):
            sql = "SELECT id FROM items WHERE segment = ?"
            damaged |= {str(row[0]) for row in database.read(sql, (file.number,))}
            continue
        if not thorough:
            continue
        sql = "SELECT id, modified_ns, size, row, checksum FROM items WHERE segment = ?"
        for *facts, row, checksum in database.read(sql, (file.number,)):
            item = Item(*facts)
            if row >= len(vectors) or row_checksum(item, vectors[row]) != checksum:
                damaged.add(item.id)
    lost = "SELECT id FROM items WHERE segment NOT IN (SELECT segment FROM segments)"
    return damaged | {str(row[0]) for row in database.read(lost)}
