"""Comparison of folders with an index of them: new, changed and missing files.

A folder holds images and clips, whole or cut into segments that are items of their own, and perhaps a
``metadata.jsonl`` or ``metadata.csv`` with the user's notes on them. A file of sentences may take its place.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import json
import math
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from itertools import accumulate, chain
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from openvse.errors import DataError, JsonError, TextError, decoded_text
from openvse.files import csv_rows, decoded_cell, parse_json, read_lines, whole_characters
from openvse.indexing.conditions import FIELDS
from openvse.indexing.database import CLOCK, ONLY_HEADER, Database, Root, decode_id, encode_id
from openvse.indexing.manifest import Held, Item
from openvse.indexing.words import TITLE_KEYS
from openvse.media.listing import AGAIN, LeftOut, Listing, each_once, identity_of, list_folders, rules_of, walk_files
from openvse.media.matching import find_files, paths_below
from openvse.media.names import escaped, is_image, is_video_name
from openvse.media.ranks import FactSource, first_stated
from openvse.media.segments import cut_clip, file_of, segment_name, span_of
from openvse.media.sidecars import Sidecars

_ROOT_IS_GONE = "it is not there: its items are kept; connect it, or remove it with --forget"
_ROOT_IS_EMPTY = (
    "it holds no image, as the empty place of a drive that is not connected: its items are kept; connect it, or remove "
    "it with --forget"
)
_IS_AMBIGUOUS = "its name begins like the ids of another folder of this index: rename it"
_PLAIN_TEXT = "write its sentences into a text file, one a line, and give that"
_FILE_IS_EMPTY = "it holds no sentence: those of the index are kept"
_UNREADABLE = "it cannot be listed, or leads to nothing: what the index holds of it is kept"


@dataclass(frozen=True)
class Candidate:
    """A file or sentence that is new or has changed, and the ids of its items in the index.

    ``changed_ns`` is the time of the last change of the file or of its sidecars or record, 0 for a sentence.
    ``is_rewritten`` means that time and size are the same as before and do not vouch for its content.
    """

    item: Item
    path: Path
    root: int
    kind: str
    before: tuple[str, ...] = ()
    seconds: float = 0.0
    text: str = ""
    changed_ns: int = 0
    is_rewritten: bool = False
    sidecars: tuple[Path, ...] = ()


@dataclass
class Changes:
    """The differences between roots and their index. ``away`` has the items of emptied folders, ``kept`` others."""

    candidates: list[Candidate] = field(default_factory=list)
    unchanged: int = 0
    resumed: int = 0
    gone: list[str] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    unreached: list[tuple[Path, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    present: int = 0
    away: dict[Path, list[str]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


Listed: TypeAlias = tuple[bytes, int, int, int, str]
"""A file below a root, or a sentence: the bytes of its id, its time, size and ``changed_ns`` (see ``Candidate``), and
its name below the root, with forward slashes. There may be millions, so they are not objects of a class."""


@dataclass(frozen=True)
class RootListing:
    """The files below a root, or the sentences of a file, or a fault, so that the items must be kept."""

    root: Root
    entries: list[Listed]
    missing: str = ""
    unreadable: Sequence[Path] = ()
    failed: Sequence[tuple[Path, str]] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    holds: Held = "images"
    sidecars: Sidecars = field(default_factory=Sidecars)


def list_roots(
    roots: Sequence[Root], *, videos: bool, ignore: Sequence[str], follow_links: bool, labels: Collection[str] = ()
) -> list[RootListing]:
    """List the images below existing roots. A file whose id begins like another label's of all ``labels`` fails."""
    there = {root: Path(root.path) for root in roots if Path(root.path).is_dir()}
    rules = [rules_of(folder, ignore) or None for folder in there.values()]
    listings = list_folders([*there.values()], rules, videos=videos, follow_links=follow_links)
    by_root = dict(zip(there, each_once(listings), strict=True))
    return [_files_below(root, by_root.get(root), labels) for root in roots]


def _files_below(root: Root, listing: Listing | None, labels: Collection[str]) -> RootListing:
    """Return the files of a listing with their times and sizes, or None for a missing root."""
    if listing is None:
        return RootListing(root, [], _ROOT_IS_GONE)
    folder = Path(root.path)
    above, label = os.path.join(root.path, ""), root.id_of("")  # noqa: PTH118 - strings, for speed
    entries: list[Listed] = []
    failed = []
    left_out = (each for paths in listing.left_out.files.values() for each in paths)
    about = (each.relative_to(folder).as_posix() for each in left_out)
    sidecars = Sidecars(folder, listing.sidecars, chain(listing.names, about))
    others = tuple(f"{each}:" for each in labels if each and each != root.label)
    for name in listing.names:
        if others and (label + name).startswith(others):
            failed.append((folder / name, _IS_AMBIGUOUS))
            continue
        try:
            status = os.stat(above + name)  # noqa: PTH116
        except OSError as error:
            failed.append((folder / name, error.strerror or "it cannot be read"))
            continue
        times = status.st_mtime_ns, status.st_size, changed_ns(status, [above + each for each in sidecars.of(name)])
        entries.append((encode_id(label + name), *times, name))
    entries.sort()
    missing = "" if listing.names else _ROOT_IS_EMPTY
    faults = listing.unreadable, failed, listing.left_out
    return RootListing(root, entries, missing, *faults, sidecars=sidecars)


def changed_ns(status: os.stat_result, sidecars: Sequence[str | Path]) -> int:
    """Return a number that changes with a file, as ``Candidate.changed_ns``."""
    if not sidecars:
        return status.st_ctime_ns
    digest = hashlib.blake2b(str(status.st_ctime_ns).encode(), digest_size=7)
    for each in sidecars:
        with suppress(OSError):
            beside = os.stat(each)  # noqa: PTH116 - a string, for speed
            times = beside.st_mtime_ns, beside.st_size, beside.st_ctime_ns
            digest.update(repr((os.path.basename(each), times)).encode("utf-8", "surrogateescape"))  # noqa: PTH119
    return int.from_bytes(digest.digest(), "little")


def list_sentences(root: Root) -> RootListing:
    """List the distinct sentences of a text file, one a line. Raise DataError if it is no UTF-8, or a table."""
    file = Path(root.path)
    if not file.is_file():
        return RootListing(root, [], _ROOT_IS_GONE, holds="sentences")
    if is_image(file.name) or is_video_name(file.name):
        raise DataError(f"{escaped(file)} is an image or clip: index its folder, {escaped(file.parent)}")
    if file.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow"):
        raise DataError(f"{escaped(file)} is a table: {_PLAIN_TEXT}")
    try:
        lines = read_lines(file)
    except TextError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): give a file with a sentence a line") from error
    for number, line in enumerate(lines, start=1):
        with suppress(JsonError):
            if isinstance(decoded_cell(line), str):
                continue
        raise DataError(f"{escaped(file)}, line {number}: it is a list or an object: {_PLAIN_TEXT}")
    sentences = sorted({" ".join(line.split()) for line in lines} - {""}, key=encode_id)
    if not sentences:
        return RootListing(root, [], _FILE_IS_EMPTY, holds="sentences")
    entries = [(encode_id(root.id_of(text)), 0, len(encode_id(text)), 0, text) for text in sentences]
    return RootListing(root, entries, holds="sentences")


def compare(
    listing: RootListing,
    database: Database | None,
    damaged: set[str],
    changes: Changes,
    first_unfinished: int,
    seconds: float = 0.0,
) -> None:
    """Add the differences between a root and the index to ``changes``.

    Both are read once, in the order of the ids, so that this costs no more than the walk.
    """
    root = listing.root
    changes.failed += listing.failed
    changes.unreached += [(path, _UNREADABLE) for path in listing.unreadable]
    changes.left_out = _joined(changes.left_out, listing.left_out)
    changes.present += len(listing.entries) + len(listing.failed)
    known = iter(()) if database is None else held_files(database, root.number)
    if listing.missing:
        held = sum(len(items_of(file)) for file in known)
        if held:
            changes.unreached.append((Path(root.path), listing.missing))
        changes.unchanged += held
        return
    kept_below = tuple(encode_id(root.id_of(_below(path, root.path))) for path in listing.unreadable)
    emptied = _emptied(listing)
    as_a_rule = not damaged and not seconds
    for entry, before in _side_by_side(listing.entries, known):
        if entry is None:
            assert before is not None
            if kept_below and before[0].startswith(kept_below):
                changes.kept += items_of(before)
            elif listing.holds == "images" and (folder := emptied(root.name_of(decode_id(before[0])))):
                changes.away.setdefault(folder, []).extend(items_of(before))
            else:
                changes.gone += items_of(before)
            continue
        if before is not None and entry[1:4] == before[1:4]:
            if as_a_rule and before[5] is None:
                changes.unchanged += 1
                changes.resumed += 0 < first_unfinished <= before[4]
                continue
            items = items_of(before)
            if damaged.isdisjoint(items) and are_cut(before[5] or (), _length(entry, listing, seconds)):
                changes.unchanged += len(items)
                changes.resumed += len(items) if 0 < first_unfinished <= before[4] else 0
                continue
        changes.candidates.append(_candidate(entry, listing, before, seconds))


def _emptied(listing: RootListing) -> Callable[[str], Path | None]:
    """Return a function of a file's name that returns the uppermost folder above it without any file, or None.

    It may be the place of a drive that is not connected. Hidden files do not count.
    """

    @cache
    def is_empty(name: str) -> bool:
        start, folder = encode_id(listing.root.id_of(f"{name}/")), Path(listing.root.path, name)
        place = bisect_left(listing.entries, (start,))
        if any(entry[0].startswith(start) for entry in listing.entries[place : place + 1]):
            return False
        return not folder.is_dir() or next(walk_files(folder), None) is None

    def above(name: str) -> Path | None:
        folders = accumulate(name.split("/")[:-1], "{}/{}".format)
        return next((Path(listing.root.path, each) for each in folders if is_empty(each)), None)

    return above


def _candidate(entry: Listed, listing: RootListing, before: HeldFile | None, seconds: float) -> Candidate:
    root, name = listing.root, entry[4]
    path = Path(root.path) if listing.holds == "sentences" else Path(root.path, name)
    item = Item(root.id_of(name), entry[1], entry[2])
    kind, length = _kind(name, listing.holds), _length(entry, listing, seconds)
    text = name if kind == "sentence" else ""
    held = () if before is None else items_of(before)
    rewritten = before is not None and entry[1:3] == before[1:3] and entry[3] != before[3]
    sidecars = tuple(Path(root.path, each) for each in listing.sidecars.of(name))
    return Candidate(item, path, root.number, kind, held, length, text, entry[3], rewritten, sidecars)


def _length(entry: Listed, listing: RootListing, seconds: float) -> float:
    """Return the length of the segments of an entry, or 0 if it is not cut."""
    return seconds if seconds and _kind(entry[4], listing.holds) == "clip" else 0.0


def _below(path: Path, root: str) -> str:
    name = os.path.relpath(path, root).replace(os.sep, "/")
    return "" if name == "." else f"{name}/"


def _kind(name: str, holds: Held) -> str:
    if holds == "sentences":
        return "sentence"
    return "clip" if is_video_name(name[name.rfind("/") + 1 :]) else "image"


def _side_by_side(
    entries: Sequence[Listed], known: Iterator[HeldFile]
) -> Iterator[tuple[Listed | None, HeldFile | None]]:
    """Yield files with their items in the index, in the order of the ids, and None where one of them is missing."""
    before = next(known, None)
    for entry in entries:
        here = entry[0]
        while before is not None and before[0] < here:
            yield None, before
            before = next(known, None)
        if before is not None and before[0] == here:
            yield entry, before
            before = next(known, None)
        else:
            yield entry, None
    while before is not None:
        yield None, before
        before = next(known, None)


def _joined(first: LeftOut, second: LeftOut) -> LeftOut:
    kinds = dict.fromkeys([*first.files, *second.files])
    return LeftOut({kind: [*first.files.get(kind, []), *second.files.get(kind, [])] for kind in kinds})


SECONDS = "segment_seconds"
"""The name under which an index notes the length of its segments, or "" if there never were any."""


HeldFile: TypeAlias = tuple[bytes, int, int, int, int, tuple[str, ...] | None]
"""A file as an index holds it: the bytes of its id, its time, size and ``changed_ns`` when it was indexed, the number
of the indexing that embedded it, and the ids of its segments, or None for a file that is an item by itself. It is a row
of the database, as it is read for every file of an index."""


def held_files(database: Database, root: int) -> Iterator[HeldFile]:
    """Yield the files of a root that an index holds, in the order of their ids."""
    whole: Iterator[HeldFile] = database.walk_files(root)
    if not database.setting(SECONDS):
        return whole
    return heapq.merge(whole, _cut_files(database, root), key=itemgetter(0))


def items_of(file: HeldFile) -> tuple[str, ...]:
    """Return the ids of the items of a file: its own, or its segments'."""
    return (decode_id(file[0]),) if file[5] is None else file[5]


def _cut_files(database: Database, root: int) -> list[HeldFile]:
    """Return the files of a root whose segments are items, in the order of their ids."""
    segments: dict[str, list[tuple[str, int, int, int, int]]] = {}
    for row in database.walk(root, segments=True):
        segments.setdefault(file_of(row[0]), []).append(row)
    return sorted(
        (encode_id(name), *rows[0][1:4], min(row[4] for row in rows), tuple(row[0] for row in rows))
        for name, rows in segments.items()
    )


def are_cut(items: Iterable[str], seconds: float) -> bool:
    """Return whether items are a clip in segments of this length, or one whole file if it is 0."""
    spans = sorted(span for span in map(span_of, items) if span is not None)
    return spans == cut_clip(spans[-1][1], seconds) if spans and seconds else not spans and not seconds


def same_segments(segments: Sequence[tuple[str, int, int]], item_id: str, seconds: float) -> list[tuple[str, int, int]]:
    """Return the items of a file of the same content, cut in the same way, under the names of another file."""
    files: dict[str, list[tuple[str, int, int]]] = {}
    for each in segments:
        files.setdefault(file_of(each[0]), []).append(each)
    for rows in files.values():
        if are_cut([row[0] for row in rows], seconds):
            spans = [span_of(row[0]) for row in rows]
            names = [item_id if span is None else segment_name(item_id, *span) for span in spans]
            return [(name, row[1], row[2]) for name, row in zip(names, rows, strict=True)]
    return []


_NOTHING = "{}"
METADATA = FactSource.USER.value
"""The file at the top of an indexed folder with the user's notes, a JSON object a line, or else ``metadata.csv``."""

_DATES = ("taken", "date")
_LONGEST_LINE, _SHOWN = 1 << 20, 1000  # bytes, and characters of a message
_UNREAD = "unread"  # a pipe, or a link to what is gone
_DATE = re.compile(
    r"(?:(?P<year>\d{4})(?:([-:])(?P<month>\d\d?)(?:\2(?P<day>\d\d?))?)?|(?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>\d{4}))"
    rf"(?:,?[Tt ]+{CLOCK})?",
    re.ASCII,
)
_NAMES = ("file_name", "image", "path", "video", "filepath", "filename", "file", "image_path")


@dataclass(frozen=True)
class Metadata:
    """A ``metadata.jsonl``: its time and size, the facts of each file as JSON, and a line for each problem."""

    state: str = ""
    lines: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def new_metadata(
    database: Database | None, listing: RootListing, *, has_new: bool, kept: Collection[str] = ()
) -> Metadata | None:
    """Read the ``metadata.jsonl`` of a folder, or return None if the index knows it and there are no new items.

    Bad lines are left out and counted, never a reason to stop. ``kept`` are items whose files are away.
    """
    folder = Path(listing.root.path)
    state, before = _metadata_state(folder), ""
    if database is not None:
        before = database.setting(_metadata_setting(listing.root.number))
    if state == before and not (state and has_new):
        return None
    if not state:
        return Metadata()
    file, fault = _metadata_file(folder), ""
    if state == _UNREAD:
        fault = "it is no file that can be read, and says nothing"
    elif not file.resolve().is_relative_to(folder.resolve()):  # it could show any text of this machine
        fault = "it leads to a file outside the folder, and is not read: copy the file into the folder"
    if fault:
        return Metadata(state, {}, (f"{escaped(file)}: {fault}",))
    joined: dict[str, dict[str, object]] = {}
    bad: list[str] = []
    for number, entry in (_json_lines if file.name == METADATA else _rows)(file):
        if key := _naming(entry):
            _join(joined.setdefault(str(entry[key]), {}), entry)
        else:
            bad.append(f"line {number}")
    items, problems = _items_of(folder, joined, listing, {file_of(listing.root.name_of(item)) for item in kept})
    state = "" if kept and problems else state  # another run reads it again
    if bad:
        problems.insert(0, f"{len(bad):,} line(s) could not be understood, and say nothing (first: {bad[0]})")
    lines: dict[str, dict[str, object]] = {}
    for name, entry in joined.items():
        _join(lines.setdefault(items.get(name, name), {}), entry)
    problems += [line for key in _DATES if (line := _dated(key, lines.values()))]
    problems += _called_as_facts(lines.values())
    texts = ((name, json.dumps(entry, ensure_ascii=False)) for name, entry in lines.items())
    written = {name: stored_json(json.loads(whole_characters(text))) for name, text in texts}
    return Metadata(state, written, tuple(f"{escaped(file)}: {each}" for each in problems))


def _join(known: dict[str, object], entry: Mapping[str, object]) -> None:
    """Add what a further line says of a file: captions to those before, and other values in their place."""
    for key, value in entry.items():
        before = known.get(key) if key in TITLE_KEYS else None
        both = [part for each in (before, value) for part in (each if isinstance(each, list) else [each])]
        known[key] = value if before is None or before == value else both


def iso_date(value: object) -> str | None:
    """Return a date of the user in the form of ISO 8601, with the same precision, or None if it is none.

    Examples:
        >>> iso_date("2024:05:01 10:00:00"), iso_date("1.5.2024"), iso_date("2024-5"), iso_date(1985)
        ('2024-05-01T10:00:00', '2024-05-01', '2024-05', '1985')
        >>> iso_date(1714550400), iso_date("2024-13"), iso_date("last summer")
        (None, None, None)
    """
    match = _DATE.fullmatch(str(value).strip())
    if match is None:
        return None
    year, month, day = match["year"] or match["y"], match["month"] or match["m"], match["day"] or match["d"]
    clock = f"T{match['clock']}" if match["clock"] and day else ""
    try:
        datetime.fromisoformat(f"{year}-{month or 1:0>2}-{day or 1:0>2}{clock or 'T00:00'}")
    except ValueError:
        return None
    text = "-".join(f"{part:0>2}" for part in (year, month, day) if part)
    return f"{text}{clock}{(match['offset'] or '') if clock else ''}"


def _dated(key: str, lines: Iterable[dict[str, object]]) -> str:
    """Put the dates of lines under a key into the form of ISO 8601, and return a line about invalid ones, or ""."""
    strange = []
    for entry in lines:
        if entry.get(key) is None:
            continue
        if (date := iso_date(entry[key])) is None:
            strange.append(escaped(str(entry[key])[:40]))
        elif isinstance(entry[key], str):
            entry[key] = date
    if not strange:
        return ""
    return (
        f"{len(strange):,} value(s) of {key!r} are no dates, and date nothing (first: {strange[0]}): write 2024, "
        "2024-05, 2024-05-31 or 2024-05-31T18:30:00+02:00"
    )


def _called_as_facts(lines: Iterable[Mapping[str, object]]) -> list[str]:
    """Return a line about the keys that conditions do not ask for by name, as they name facts of the file."""
    keys = {key for entry in lines for key in entry.keys() - {_naming(entry)}}
    hidden = [key for key in FIELDS if key in keys and key not in (*_DATES, "text")]  # text may be a caption
    asked = ", ".join(f"meta.{key}" for key in hidden)
    line = f"a condition on {', '.join(hidden)} means the fact of the file: ask for the key of a line as {asked}"
    return [line] if hidden else []


def _naming(entry: Mapping[str, object]) -> str | None:
    """Return the key of a line that names its file."""
    return next((key for key in _NAMES if isinstance(name := entry.get(key), str) and "\0" not in name), None)


def _items_of(
    folder: Path, names: Collection[str], listing: RootListing, kept: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the items that names with another spelling mean, and the faults of the names.

    Whole paths, ``..`` and links lead to items (``paths_below``), then names in another form (``find_files``).
    """
    items = {entry[4] for entry in listing.entries}.union(kept)
    strange = {name: folder / name for name in names if name not in items}
    places = paths_below(folder, strange.values())
    found = find_files(places.values())
    below = {
        name: file.relative_to(folder).as_posix()
        for name, path in strange.items()
        if (file := found.files.get(places[path], places[path])).is_relative_to(folder)
    }
    again = _other_names(folder, below.values(), listing)
    meant = {name: again.get(item, item) for name, item in below.items() if item in items or item in again}
    nothing = [found.without_file(path) for name, path in strange.items() if name not in meant]
    problems = [
        f"{len(cases):,} {what} (first: {escaped(cases[0][:_SHOWN])})"
        for what, cases in (
            ("line(s) name no item of the folder", nothing),
            ("name(s) are written in another way than those of their files", found.otherwise_written()),
        )
        if cases
    ]
    return meant, problems


def _other_names(folder: Path, names: Collection[str], listing: RootListing) -> dict[str, str]:
    """Return the listed name of each file that metadata give another name, as a link or a second name of it."""
    again = {path.relative_to(folder).as_posix() for path in listing.left_out.files.get(AGAIN, ())}
    others = again.intersection(names)
    listed = {identity_of(folder / entry[4]): entry[4] for entry in listing.entries} if others else {}
    return {name: file for name in others if (file := listed.get(identity_of(folder / name)))}


def stored_json(entry: dict[str, object]) -> str:
    """Return the metadata of an item as the database keeps them. A number that is not finite becomes null.

    SQLite reads no ``Infinity``, and one such number would make every condition fail.
    """
    return json.dumps(_finite(entry), allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value of JSON with null for each number that is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_finite(each) for each in value]
        case dict():
            return {key: _finite(each) for key, each in value.items()}
    return value


def described(header: str | None, user: str | None) -> tuple[str | None, str]:
    """Return the metadata of an item, in which the user's come before the header's, and the header as it is stored."""
    if user is None:
        return (None if header == _NOTHING else header), ONLY_HEADER
    own = header or _NOTHING
    return stored_json(first_stated([json.loads(user), json.loads(own)])), own


def note_metadata(database: Database, root: Root, stated: Metadata, run: int, altered: set[int]) -> None:
    """Note in a transaction the metadata of the items of a root. Add the keys of changed items of earlier runs."""
    sql = "SELECT key, id, metadata, header, run FROM items WHERE root = ?"
    changed = []
    for key, item_id, metadata, header, of_run in database.read(sql, (root.number,)):
        own = metadata if header == ONLY_HEADER else header
        now, before = described(own, stated.lines.get(file_of(root.name_of(item_id))))
        if now != metadata:
            changed.append((now, None if header is None else before, key))
            altered.update({key} if of_run < run else ())
    database.describe(changed)
    database.set(_metadata_setting(root.number), stated.state)


def note_captions(database: Database, root: Root, name: str, captions: Sequence[str]) -> None:
    """Note in a transaction the captions of a file, until the next indexing reads the ``metadata.jsonl`` of its root.

    Its line there has the key ``captions``.
    """
    sql = "SELECT key, metadata, header FROM items WHERE id = CAST(? AS TEXT)"
    for key, metadata, header in database.read(sql, (encode_id(root.id_of(name)),)):
        own = metadata if header == ONLY_HEADER else header
        said = {"file_name": name} | json.loads(metadata or _NOTHING) | {"captions": [*captions]}
        database.describe([(stored_json(said), own or _NOTHING, key)])


def _metadata_file(folder: Path) -> Path:
    places = [folder / METADATA, folder / "metadata.csv"]
    return next(filter(os.path.lexists, places), places[0])


def _metadata_state(folder: Path) -> str:
    """Return the time and size of the user's notes in a folder, or "" without any."""
    file = _metadata_file(folder)
    if not file.is_file():
        return _UNREAD if os.path.lexists(file) else ""
    status = file.stat()
    return f"{status.st_mtime_ns} {status.st_size}"


def _metadata_setting(root: int) -> str:
    """Return the name under which an index notes the state of a root's file that it has read."""
    return f"metadata {root}"


def _json_lines(file: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number and the object of each line, with an empty object for a line that is none."""
    try:
        with file.open("rb") as lines:
            pieces = iter(partial(lines.readline, _LONGEST_LINE), b"")  # of a longer line, no piece is an object
            for number, line in enumerate(pieces, start=1):
                if not line.strip():
                    continue
                try:
                    entry = parse_json(decoded_text(line, file), finite=True)
                except (DataError, TextError):
                    entry = None
                yield number, entry if isinstance(entry, dict) else {}
    except OSError:
        return


def _rows(file: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the line and the cells of each row of a table by the names of its columns, or none if it has others."""
    start = 1
    try:
        reader = csv_rows(read_lines(file))
        columns = [name.strip().lower() for name in next(reader, [])]
        for start, row in enumerate(filter(any, reader), start=2):
            cells: dict[str, object] = {}
            with suppress(JsonError, ValueError):  # of a list that is none, or of another number of columns
                pairs = zip(columns, row, strict=True)
                cells = {name: decoded_cell(cell) for name, cell in pairs if name and cell.strip()}
            yield start, cells
    except (OSError, csv.Error, TextError):
        yield start + 1, {}
