"""An index whose embeddings were changed on the disk, with checksums that fit: only their numbers tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from openvse.indexing import Index
from openvse.indexing.database import Database
from openvse.indexing.vector_files import row_checksum


def reseal(path: Path, position: int, value: float) -> None:
    """Put a number into the embedding of an item, and its new checksum into the database."""
    index = Index.open(path)
    (file,) = path.glob("vectors-*.npy")
    stored = np.load(file, mmap_mode="r+")
    row = int(index.table.rows[position])
    stored[row, 0, 0] = value
    stored.flush()
    checksum = row_checksum(index.items[position], stored[row])
    with Database(path / index.manifest.items, write=True) as database, database.transaction():
        sql = "UPDATE items SET checksum = ? WHERE key = ?"
        database._connection.execute(sql, (checksum, int(index.table.keys[position])))
