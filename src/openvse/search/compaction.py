"""Compaction: rewriting the segments without the rows that no item needs any more."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from openvse.errors import IndexFormatError
from openvse.search.database import Database, Table
from openvse.search.manifest import Manifest
from openvse.search.segments import SegmentWriter, map_rows

_ROWS = 4096


def unused_rows(database: Database) -> tuple[int, int]:
    """Return how many rows no item needs, and how many items there are."""
    rows, count = sum(segment.rows for segment in database.segments()), database.count()
    return rows - count, count


def compact(folder: Path, manifest: Manifest, database: Database) -> int:
    """Write all embeddings anew, in the order of the ids, and return how many rows are gone.

    The old segments are replaced in one transaction, when the new ones are on the disk; until then, or where the disk
    has no room for both, the index is what it was. The caller holds the writer's lock, and removes the old files.

    Raises:
        IndexFormatError: the disk refuses, or a segment is damaged.
    """
    unused, _ = unused_rows(database)
    if not unused:
        return 0
    written: list[SegmentWriter] = []
    try:
        _copy(folder, manifest, database, database.table(), written)
    except (OSError, sqlite3.Error, ValueError) as error:
        for writer in written:
            writer.path.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise IndexFormatError(
            f"index {folder} cannot be compacted ({reason}): make room, and run 'openvse index --compact' again; what "
            f"was there before is unchanged"
        ) from error
    finally:
        for writer in written:
            writer.close()
    return unused


def _copy(
    folder: Path, manifest: Manifest, database: Database, table: Table, written: list[SegmentWriter]
) -> None:
    """Copy the rows into new segments, and name these instead of the old ones."""
    shape = manifest.num_embeddings, manifest.dim
    old = {
        segment.number: map_rows(folder / segment.file, segment.rows, *shape, manifest.dtype)
        for segment in database.segments()
    }
    places: list[tuple[SegmentWriter, int, int]] = []
    for start in range(0, len(table.ids), _ROWS):
        stop = min(start + _ROWS, len(table.ids))
        if not written or written[-1].is_full:
            written.append(SegmentWriter(folder, *shape, manifest.dtype))
        block = np.empty((stop - start, *shape), np.dtype(manifest.dtype))
        here = table.segments[start:stop]
        for number in np.unique(here).tolist():
            chosen = np.flatnonzero(here == number)
            block[chosen] = old[number][table.rows[start:stop][chosen]]
        first = written[-1].append(block)
        keys = table.keys[start:stop].tolist()
        places += [(written[-1], first + place, key) for place, key in enumerate(keys)]
    for writer in written:
        writer.flush()
    with database.transaction():
        numbers = {writer: database.new_segment(writer.path.name, writer.rows) for writer in written}
        database.place((numbers[writer], row, key) for writer, row, key in places)
        database.drop_empty_segments()
