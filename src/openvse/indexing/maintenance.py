"""Changes of an index that read no image: removing folders, other embeddings, compaction, and finding damage."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from openvse.errors import IndexFormatError
from openvse.files import given_path, sync
from openvse.indexing.database import Database
from openvse.indexing.index import SMALL_BYTES, SMALL_COUNT, Index
from openvse.indexing.manifest import MANIFEST, Item, Place, damaged, read_manifest
from openvse.indexing.vector_files import VectorWriter, map_vectors, row_checksum
from openvse.indexing.writer import FoundIndex, IndexFolder, disk_errors
from openvse.media.segments import file_of


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
