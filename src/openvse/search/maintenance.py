"""Changes of an index that need no model: removing items or a folder, and compaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from openvse.errors import DiskError, IndexFormatError
from openvse.files import locked, refusal_of_disk
from openvse.media.segments import file_of
from openvse.search import compaction
from openvse.search.clips import SECONDS
from openvse.search.database import Database
from openvse.search.manifest import Manifest, read_manifest
from openvse.search.upgrade import upgrade
from openvse.search.writer import remove_unnamed


def compact_index(path: str | Path) -> int:
    """Rewrite an index without the rows that no item needs any more, and return how many those were.

    It needs room for a second copy of the embeddings until it is done; readers go on with the old one.

    Raises:
        IndexFormatError: there is no index, another process writes it, or the disk refuses.
    """
    with _changed(Path(path)) as (manifest, database):
        return compaction.compact(Path(path), manifest, database)


def remove_items(path: str | Path, ids: Sequence[str]) -> int:
    """Remove items from an index by their ids, and return how many were there; their files stay.

    The id of a clip stands for all its segments.

    An image that is still in its folder is embedded again by the next indexing.

    Raises:
        IndexFormatError: there is no index, another process writes it, or the disk refuses.
    """
    with _changed(Path(path)) as (_, database):
        before = database.count()
        with database.transaction():
            database.drop([*ids, *_segments_of(database, ids)])
            database.drop_empty_segments()
        return before - database.count()


def forget_root(path: str | Path, folder: str | Path) -> int:
    """Remove a folder and all its items from an index, and return how many those were; the files stay.

    Raises:
        IndexFormatError: the index does not hold the folder, or holds no other; or see ``remove_items``.
    """
    with _changed(Path(path)) as (_, database):
        roots, before = database.roots(), database.count()
        wanted = {str(folder), str(Path(folder).resolve())}
        found = [root for root in roots if root.path in wanted]
        names = ", ".join(root.path for root in roots)
        if not found:
            raise IndexFormatError(f"index {path} does not hold {folder}: it holds {names}")
        if len(roots) == 1:
            raise IndexFormatError(
                f"index {path} holds nothing but {names}: remove the folder of the index instead"
            )
        with database.transaction():
            database.drop_root(found[0].number)
            database.drop_empty_segments()
        return before - database.count()


def _segments_of(database: Database, ids: Sequence[str]) -> list[str]:
    """Return the ids of the segments of clips."""
    if not database.setting(SECONDS):
        return []
    wanted = set(ids)
    rows = (row for root in database.roots() for row in database.walk(root.number, segments=True))
    return [row[0] for row in rows if file_of(row[0]) in wanted]


@contextmanager
def _changed(folder: Path) -> Iterator[tuple[Manifest, Database]]:
    """Open an index to change it, alone; afterwards, remove the files that it does not need any more."""
    manifest = read_manifest(folder)
    try:
        with locked(folder, "index", IndexFormatError):
            if manifest.vectors and not upgrade(folder, manifest.model):
                raise IndexFormatError(f"index {folder} is damaged: run 'openvse index' again")
            manifest = read_manifest(folder)
            try:
                with Database(folder / manifest.items, write=True) as database:
                    yield manifest, database
            finally:
                remove_unnamed(folder)
    except (DiskError, sqlite3.Error) as error:
        reason = refusal_of_disk(error) or str(error)
        raise IndexFormatError(
            f"index {folder} cannot be written ({reason}): make room or allow it, and run the command again; what was "
            f"there before is unchanged"
        ) from error
