"""Items of an index whose embeddings are not what was written; they are embedded again."""

from __future__ import annotations

from pathlib import Path

from openvse.search.database import Database
from openvse.search.index import SMALL_BYTES
from openvse.search.manifest import Item, Manifest
from openvse.search.segments import map_rows, row_checksum

_SMALL_COUNT = 1 << 16


def damaged_items(folder: Path, manifest: Manifest, database: Database, *, check: bool = False) -> set[str]:
    """Return the ids of items whose embeddings are missing, or do not fit their checksums.

    Args:
        folder: of the index.
        manifest: what it says of itself.
        database: its items.
        check: compare all checksums; otherwise those of a small index, and the files' sizes of a large one.

    Raises:
        IndexDamagedError: the database itself is damaged.
    """
    count = database.count()
    shape = manifest.num_embeddings, manifest.dim
    size = count * shape[0] * shape[1] * (2 if manifest.dtype == "float16" else 4)
    thorough = check or (count <= _SMALL_COUNT and size <= SMALL_BYTES)
    damaged: set[str] = set()
    for segment in database.segments():
        try:
            vectors = map_rows(folder / segment.file, segment.rows, *shape, manifest.dtype)
        except (OSError, ValueError, EOFError):
            damaged |= _ids_in(database, segment.number)
            continue
        if not thorough:
            continue
        sql = "SELECT id, modified_ns, size, row, checksum FROM items WHERE segment = ?"
        for item_id, modified_ns, bytes_, row, checksum in database.read(sql, (segment.number,)):
            item = Item(str(item_id), int(str(modified_ns)), int(str(bytes_)))
            place = int(str(row))
            if place >= len(vectors) or row_checksum(item, vectors[place]) != checksum:
                damaged.add(item.id)
    lost = "SELECT id FROM items WHERE segment NOT IN (SELECT segment FROM segments)"
    return damaged | {str(row[0]) for row in database.read(lost)}


def _ids_in(database: Database, segment: int) -> set[str]:
    return {str(row[0]) for row in database.read("SELECT id FROM items WHERE segment = ?", (segment,))}
