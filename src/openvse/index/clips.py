"""Clips in an index: as whole files, or cut into segments that are items of their own."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from openvse.index.database import Database, decode_id, encode_id
from openvse.media.segments import ClipSegment, cut_clip, file_of, segment_name, span_of

SECONDS = "segment_seconds"
"""The name under which an index notes how long its segments are; "" where there never were any."""


HeldFile: TypeAlias = tuple[bytes, int, int, int, tuple[str, ...] | None]
"""A file as an index holds it: the bytes of its id, its time and size when it was indexed, the number of the indexing
that embedded it, and the ids of its segments; None for a file that is an item by itself. It is a row of the database,
as it is read for every file of an index."""


def held_files(database: Database, root: int) -> Iterator[HeldFile]:
    """Yield the files of a root that an index holds, in the order of their ids."""
    whole: Iterator[HeldFile] = database.walk_files(root)
    if not database.setting(SECONDS):
        return whole
    return heapq.merge(whole, _cut_files(database, root), key=itemgetter(0))


def items_of(file: HeldFile) -> tuple[str, ...]:
    """Return the ids of the items of a file: its own, or those of its segments."""
    return (decode_id(file[0]),) if file[4] is None else file[4]


def _cut_files(database: Database, root: int) -> list[HeldFile]:
    """Return the files of a root whose segments are items, in the order of their ids."""
    found: dict[str, list[tuple[str, int, int, int]]] = {}
    for row in database.walk(root, segments=True):
        found.setdefault(file_of(row[0]), []).append(row)
    return sorted(
        (encode_id(name), rows[0][1], rows[0][2], min(row[3] for row in rows), tuple(row[0] for row in rows))
        for name, rows in found.items()
    )


def count_segments(database: Database) -> int:
    """Return how many items of an index are segments of clips."""
    if not database.setting(SECONDS):
        return 0
    return sum(1 for root in database.roots() for _ in database.walk(root.number, segments=True))


def are_cut(items: Iterable[str], seconds: float) -> bool:
    """Return whether items are a clip in segments of this length, or one whole file if it is 0."""
    spans = sorted(span for span in map(span_of, items) if span is not None)
    return spans == cut_clip(spans[-1][1], seconds) if spans and seconds else not spans and not seconds


def segments_of(item_id: str, path: Path, seconds: float, duration: float) -> list[tuple[str, ClipSegment]]:
    """Return the ids and places of the segments of a clip."""
    return [
        (segment_name(item_id, start, end), ClipSegment(path, start, end))
        for start, end in cut_clip(duration, seconds)
    ]


def same_segments(
    found: Sequence[tuple[str, int, int]], item_id: str, seconds: float
) -> list[tuple[str, int, int]]:
    """Return the items of a file of the same content, cut in the same way, under the names of another file.

    Args:
        found: id, segment and row of all items of this content.
        item_id: of the other file.
        seconds: the length of its segments; 0 for a whole file.
    """
    files: dict[str, list[tuple[str, int, int]]] = {}
    for each in found:
        files.setdefault(file_of(each[0]), []).append(each)
    for rows in files.values():
        if are_cut([row[0] for row in rows], seconds):
            return [(_renamed(row[0], item_id), row[1], row[2]) for row in rows]
    return []


def _renamed(name: str, item_id: str) -> str:
    span = span_of(name)
    return item_id if span is None else segment_name(item_id, *span)
