"""The database of an index: its items with their metadata, its roots, and the rows of their embeddings."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Int

from openvse.errors import IndexFormatError
from openvse.files import parse_json
from openvse.indexing.manifest import Item, damaged
from openvse.indexing.words import FILL, LAST, MOST_WORDS, PLURALS, SCHEMA, folded, line_of, words_in, words_of
from openvse.media.matching import composed
from openvse.media.segments import file_of

_WAIT_S = 60.0  # for a transaction of another process, which takes milliseconds
# Items with the parts of a joined word, which are read to see whether these are beside each other.
_CHECKED = 10_000
_FORMS, _SEEN = 100, 1000  # other forms of a word, and words that are looked at for them
_EARTH_M = 6_371_009.0  # mean radius (IUGG)
CLOCK = r"(?P<clock>\d\d?(?::\d\d(?::\d\d(?:[.,]\d+)?)?)?)\s*(?P<offset>[Zz]|[+-]\d\d(?::?\d\d)?)?"
"""The time of a day in a date, by itself or with an offset, as in ISO 8601."""
_DATE = re.compile(rf"\s*(?P<day>\d{{4}}(?:-\d\d?(?:-\d\d?)?)?)(?:[Tt ]\s*{CLOCK}|[Zz]|[+-]\d\d:\d\d)?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*", re.ASCII)
_IS_SEGMENT = "(kind = 'clip' AND id GLOB '*#t=*')"

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE roots (root INTEGER PRIMARY KEY, path TEXT NOT NULL, label TEXT NOT NULL);
CREATE TABLE segments (segment INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL, rows INTEGER NOT NULL);
CREATE TABLE items (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  root INTEGER NOT NULL,
  kind TEXT NOT NULL,
  modified_ns INTEGER NOT NULL,
  size INTEGER NOT NULL,
  changed_ns INTEGER NOT NULL,
  content BLOB,
  segment INTEGER NOT NULL,
  row INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  run INTEGER NOT NULL,
  metadata TEXT,
  header TEXT
);
CREATE INDEX items_content ON items (size, content);
"""

WordTable: TypeAlias = Literal["words", "texts"]
"""The full-text tables: words of names and metadata, and words that were read in images."""

_WORDS_OF = {"words": ("items", "words_of(CAST(id AS BLOB), metadata)"), "texts": ("readings", "words_in(lines)")}

Forms: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""Words of a query, each with the parts of what represents it: itself, and then other or misread forms of it."""

FOLLOW_LINKS = "follow_links"
"""The name under which an index notes that links are followed, or "" if they are not."""

READER = "reader"
"""The name under which an index notes the reader of the text in its images, or "" without one."""

ONLY_HEADER = ""
"""The mark of an item whose metadata come only from the header, because the user has none."""

_UPSERT = """
INSERT INTO items (
  id, root, kind, modified_ns, size, changed_ns, content, metadata, segment, row, checksum, run, header)
VALUES (CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')
ON CONFLICT (id) DO UPDATE SET root = excluded.root, kind = excluded.kind, modified_ns = excluded.modified_ns,
  size = excluded.size, changed_ns = excluded.changed_ns, content = excluded.content, segment = excluded.segment,
  row = excluded.row, checksum = excluded.checksum, run = excluded.run,
  metadata = CASE WHEN items.metadata IS NULL OR items.header = '' THEN excluded.metadata ELSE items.metadata END,
  header = CASE WHEN items.metadata IS NULL OR items.header = '' THEN '' ELSE ifnull(excluded.metadata, '{}') END
"""


@dataclass(frozen=True)
class Root:
    """A folder of an index, or the file of its sentences. The ids of all roots but the first begin with a label."""

    number: int
    path: str
    label: str

    def id_of(self, name: str) -> str:
        """Return the id of an item by its path below the root."""
        return f"{self.label}:{name}" if self.label else name

    def name_of(self, item_id: str) -> str:
        """Return the path below the root of an item by its id."""
        return item_id[len(self.label) + 1 :] if self.label else item_id


@dataclass(frozen=True)
class Entry:
    """An item to be written: the hash of the file's content if known, and the facts of its header as JSON."""

    item: Item
    root: int = 0
    kind: str = "image"
    content: bytes | None = None
    header: str | None = None
    changed_ns: int = 0


@dataclass(frozen=True)
class ItemTable:
    """All items at one moment, in the order of the bytes of their ids. Keys rise in time and are never used again."""

    ids: list[str]
    keys: Int[np.ndarray, "count"]
    modified_ns: Int[np.ndarray, "count"]
    sizes: Int[np.ndarray, "count"]
    roots: Int[np.ndarray, "count"]
    files: Int[np.ndarray, "count"]
    rows: Int[np.ndarray, "count"]
    checksums: Int[np.ndarray, "count"]


@dataclass(frozen=True)
class VectorFile:
    """A file of embeddings, a segment in the database: its number, its name and the number of its valid rows."""

    number: int
    file: str
    rows: int


def encode_id(item_id: str) -> bytes:
    """Return the bytes of an id, by which ids are ordered. Names that are not UTF-8 keep theirs."""
    return item_id.encode("utf-8", "surrogateescape")


def decode_id(stored: bytes) -> str:
    """Return the id whose bytes are stored."""
    return stored.decode("utf-8", "surrogateescape")


class Database:
    """The database of an index, open for reading or writing, as a context manager."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        with self._errors():
            self._connection = _connect(path, write)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Uncommitted changes are undone."""
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise IndexFormatError(f"index {self.path.parent} is busy with another process: try again") from error
            raise damaged(self.path.parent, f"{self.path.name}: {error}") from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one state of the index in the block, whatever others write."""
        with self._errors():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Change the index by all of the block, or by nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Values are bound, never pasted."""
        with self._errors():
            return self._connection.execute(sql, values).fetchall()

    def table(self) -> ItemTable:
        """Return all items."""
        sql = "SELECT id, key, modified_ns, size, root, segment, row, checksum FROM items ORDER BY id"
        with self._errors():
            columns = list(zip(*self._connection.execute(sql), strict=True)) or [()] * 8
        ids, *numbers = columns
        return ItemTable(list(ids), *(np.array(column, np.int64) for column in numbers))

    def walk(self, root: int, *, segments: bool = False) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield id, time, size, ``changed_ns`` and run of the items, or only of segments of clips, by their ids."""
        more = f" AND {_IS_SEGMENT}" if segments else ""
        sql = f"SELECT id, modified_ns, size, changed_ns, run FROM items WHERE root = ?{more} ORDER BY id"
        with self._errors(), closing(self._connection.execute(sql, (root,))) as cursor:
            yield from cursor

    def walk_files(self, root: int) -> Iterator[tuple[bytes, int, int, int, int, None]]:
        """Yield the items of a root but segments of clips: bytes of the id, time, size, ``changed_ns``, run and None.

        The database makes these rows as they are needed, as there is one for each file of an index.
        """
        sql = (
            "SELECT CAST(id AS BLOB), modified_ns, size, changed_ns, run, NULL FROM items WHERE root = ? AND "
            f"NOT {_IS_SEGMENT} ORDER BY id"
        )
        with self._errors(), closing(self._connection.execute(sql, (root,))) as cursor:
            yield from cursor

    def roots(self) -> tuple[Root, ...]:
        """Return the roots in their order."""
        return tuple(Root(*row) for row in self.read("SELECT root, path, label FROM roots ORDER BY root"))

    def vector_files(self) -> list[VectorFile]:
        """Return the files of embeddings in their order."""
        sql = "SELECT segment, file, rows FROM segments ORDER BY segment"
        return [VectorFile(*row) for row in self.read(sql)]

    def setting(self, name: str, default: str = "") -> str:
        """Return the last value noted under a name."""
        rows = self.read("SELECT value FROM settings WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else default

    def count(self, *, segments: bool = False) -> int:
        """Return the number of items, or of those that are segments of clips."""
        return int(self.read(f"SELECT COUNT(*) FROM items WHERE {_IS_SEGMENT if segments else 1}")[0][0])

    def begins(self, start: str) -> bool:
        """Return whether the id of an item begins so."""
        sql = "SELECT 1 FROM items WHERE substr(CAST(id AS BLOB), 1, ?) = ? LIMIT 1"
        return bool(self.read(sql, (len(encode_id(start)), encode_id(start))))

    def of_size(self, size: int) -> list[tuple[bytes, str, int, int]]:
        """Return content, id, file and row of all items whose files have this size and known content."""
        sql = "SELECT content, id, segment, row FROM items WHERE size = ? AND content IS NOT NULL ORDER BY id"
        return [(content, name, file, row) for content, name, file, row in self.read(sql, (size,))]

    def later_copies(self, item_id: str) -> set[str]:
        """Return the ids of the items of the same content that later runs embedded or recognised."""
        sql = (
            "SELECT other.id FROM items AS own JOIN items AS other USING (size, content) "
            "WHERE own.id = CAST(? AS TEXT) AND other.run > own.run"
        )
        return {str(row[0]) for row in self.read(sql, (encode_id(item_id),))}

    def has(self, table: str) -> bool:
        """Return whether the index has a table."""
        return bool(self.read("SELECT 1 FROM main.sqlite_master WHERE name = ?", (table,)))

    def rarest_first(self, forms: Forms, table: WordTable = "words") -> dict[str, int]:
        """Return those words that items may have, each with the largest number of items that can have a form of it."""
        known = self.known((part for each in forms.values() for form in each for part in form[:MOST_WORDS]), table)
        counts = {
            word: sum(min(known.get(part, 0) for part in form[:MOST_WORDS]) for form in each)
            for word, each in forms.items()
        }
        return dict(sorted(((word, count) for word, count in counts.items() if count), key=itemgetter(1)))

    def known(self, parts: Iterable[str], table: WordTable = "words") -> dict[str, int]:
        """Return those parts of words that a table has, each with the number of its items."""
        sql = f"SELECT term, doc FROM {table}_count WHERE term IN (SELECT value FROM json_each(?))"
        return dict(self.read(sql, (json.dumps(sorted(set(parts))),)))

    def forms_of(self, part: str, stem: Callable[[str], str] | None, table: WordTable) -> list[list[str]]:
        """Return the other words of a table of the same stem, or without ``stem`` those that begin with the word."""
        own = part if stem is None else stem(part)
        is_cut = stem is not None and (len(own) > 3 or own.endswith("i"))
        start = own[:-1] if is_cut else own  # with which most forms begin: of city and cities (citi) cit
        sql = f"SELECT term FROM {table}_count WHERE term >= ? AND term < ? LIMIT ?"
        some = {str(term) for (term,) in self.read(sql, (start, f"{start}\U0010ffff", _SEEN))}
        some |= self.known(PLURALS, table).keys()
        forms = [each for each in some - {part} if (stem(each) == own if stem else each.startswith(own))]
        return [[form] for form in sorted(forms)[:_FORMS]]

    def having(self, parts: Sequence[str], most: int, table: WordTable = "words") -> Int[np.ndarray, "_"]:
        """Return the keys of the first ``most`` items (-1 for all) with the parts of a word beside each other."""
        if len(parts) == 1:
            return self.matching(any_of(parts), most, table)
        source, of_item = _WORDS_OF[table]
        having = f"SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT ?"
        sql = f"SELECT group_concat(key) FROM {source} WHERE key IN ({having}) AND instr({of_item}, ?)"
        return _keys(self.read(sql, (any_of(parts), _CHECKED, line_of(parts))))

    def matching(self, wanted: str, most: int, table: WordTable = "words") -> Int[np.ndarray, "_"]:
        """Return the keys of the first ``most`` items (-1 for all) that fit an expression of FTS5."""
        having = f"SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT ?"
        return _keys(self.read(f"SELECT group_concat(rowid) FROM ({having})", (wanted, most)))

    # What follows changes the index, inside a transaction.

    def keep_words(self, least: int = 1) -> None:
        """Add the words of new items, if there are so many."""
        if self._connection.execute(f"SELECT count(*) FROM items WHERE key > {LAST}").fetchone()[0] >= least:
            for statement in FILL:
                self._connection.execute(statement)

    def put(self, items: Iterable[tuple[Entry, int, int, int]], run: int) -> None:
        """Add items, each with its file, its row there and its checksum. They replace items with the same ids."""
        self._connection.executemany(_UPSERT, ((*_values(entry), *place, run) for entry, *place in items))

    def change(self, *statements: str, values: Sequence[object] = ()) -> None:
        """Execute statements. Values are bound, never pasted."""
        for statement in statements:
            self._connection.execute(statement, values)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove items by their ids."""
        self._connection.executemany("DELETE FROM items WHERE id = CAST(? AS TEXT)", ((encode_id(one),) for one in ids))

    def describe(self, metadata: Iterable[tuple[str | None, str | None, int]]) -> None:
        """Replace the metadata of items: all as JSON, the header's (``ONLY_HEADER``), and the key."""
        self._connection.execute(
            "UPDATE items SET metadata = json_extract(said.value, '$[0]'), header = json_extract(said.value, '$[1]') "
            "FROM json_each(?) AS said WHERE items.key = json_extract(said.value, '$[2]')",
            (json.dumps(sorted(metadata, key=itemgetter(2))),),
        )

    def set_roots(self, roots: Iterable[Root]) -> None:
        """Add roots. They replace roots with the same numbers."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO roots VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))",
            ((root.number, os.fsencode(root.path), os.fsencode(root.label)) for root in roots),
        )

    def new_file(self, file: str, rows: int) -> int:
        """Name a file of embeddings and return its number."""
        cursor = self._connection.execute("INSERT INTO segments (file, rows) VALUES (?, ?)", (file, rows))
        return int(cursor.lastrowid or 0)

    def place(self, places: Iterable[tuple[int, int, int, int]]) -> None:
        """Note where embeddings are: (file, row, checksum, key of the item)."""
        self._connection.executemany("UPDATE items SET segment = ?, row = ?, checksum = ? WHERE key = ?", places)

    def copy(self, path: Path) -> None:
        """Write a copy to a new file."""
        with closing(sqlite3.connect(path)) as other:
            self._connection.backup(other)

    def drop_empty_files(self) -> None:
        """Forget files that no item needs."""
        self._connection.execute("DELETE FROM segments WHERE segment NOT IN (SELECT segment FROM items)")

    def set(self, name: str, value: str) -> None:
        """Note a value under a name. "" forgets it."""
        if value:
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))
        else:
            self._connection.execute("DELETE FROM settings WHERE name = ?", (name,))

    def sound(self) -> bool:
        """Return whether the database finds nothing wrong with itself."""
        return self.read("PRAGMA quick_check") == [("ok",)]


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    """Open a database. A reader writes nothing, unless a killed process left a transaction to undo."""
    is_new = write and not path.exists()
    modes = ["rwc"] if write else ["ro", "rw"]
    while True:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={modes.pop(0)}",
            timeout=_WAIT_S,
            isolation_level=None,
            uri=True,
            check_same_thread=False,  # `Index.database` lets one thread in at a time
        )
        try:
            connection.text_factory = decode_id
            add_functions(connection)
            if not write:
                add_readings(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_spill = OFF")  # a reader never waits for half a transaction
            if is_new:
                connection.executescript(f"BEGIN; {_SCHEMA} {'; '.join(SCHEMA)}; COMMIT;")
            connection.execute("SELECT COUNT(*) FROM settings").fetchall()
        except sqlite3.OperationalError as error:
            connection.close()
            if not modes or "locked" in str(error):
                raise
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def add_functions(connection: sqlite3.Connection) -> None:
    """Give a connection the functions that conditions and words need."""
    functions: dict[Callable[..., str | bytes | float | None], int] = {words_of: 2, words_in: 1, _folded: 2}
    functions |= {_values_of: 2, taken_at: -1, number_in: 1, metres_between: 4}
    for function, arguments in functions.items():
        connection.create_function(function.__name__.removeprefix("_"), arguments, function, deterministic=True)


def add_readings(connection: sqlite3.Connection) -> None:
    """Give a connection to items whose text was not read an empty table of the text, for conditions on it."""
    if not connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'readings'").fetchone():
        connection.execute("CREATE TEMP TABLE readings (key INTEGER PRIMARY KEY, lines TEXT)")


def dated(value: object) -> str:
    """Return a date, as exact as it is written, but without fractions of a second and its offset, or "" if it is none.

    Examples:
        >>> dated("2024-5"), dated("2024-05-01t9"), dated("2024-05-01 10:00:00.5 +0200"), dated("May")
        ('2024-05', '2024-05-01T09', '2024-05-01T10:00:00', '')
    """
    match = _DATE.fullmatch(str(value))
    year, *others = match["day"].split("-") if match else [""]
    hour, *rest = (match["clock"] or "").split(":") if match else [""]
    if hour and len(others) < 2:
        return ""
    day = "-".join((year, *(each.zfill(2) for each in others)))
    return day + ":".join((f"T{hour.zfill(2)}", *rest))[:9] * bool(hour)


def taken_at(*values: object) -> str | None:
    """Return the first date among values of the metadata, to the second without its offset, or None without any.

    Examples:
        >>> taken_at("1985-07"), taken_at("2024-02-31", "2024-06-01 12:30:00+02:00")
        ('1985-07-01T00:00:00', '2024-06-01T12:30:00')
    """
    for value in values:
        if text := dated(value):
            text += "0000-01-01T00:00:00"[len(text) :]
            with suppress(ValueError):  # a 31st of February
                datetime.fromisoformat(text)
                return text
    return None


def number_in(value: object) -> float | None:
    """Return a number, also from a text, or None if it is none.

    Examples:
        >>> number_in("10"), number_in(2.5), number_in("10 km"), number_in(True)
        (10.0, 2.5, None, None)
    """
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def metres_between(latitude: object, longitude: object, to_latitude: float, to_longitude: float) -> float | None:
    """Return the distance of two places in degrees, on a sphere (haversine formula), or None if one is no place.

    Examples:
        >>> round(metres_between(52.52, 13.405, 48.857, 2.352) / 1000)  # Berlin and Paris
        877
    """
    latitude, longitude = number_in(latitude), number_in(longitude)
    if latitude is None or longitude is None:
        return None
    south, north = math.radians(latitude), math.radians(to_latitude)
    half = math.sin((north - south) / 2) ** 2
    half += math.cos(south) * math.cos(north) * math.sin(math.radians(to_longitude - longitude) / 2) ** 2
    return 2 * _EARTH_M * math.asin(min(1.0, math.sqrt(half)))


def _folded(stored: bytes | None, is_clip: int) -> bytes | None:
    """Return a text as conditions compare it. For a segment of a clip, it is the file."""
    if stored is None:
        return None
    text = decode_id(stored)
    return encode_id(folded(file_of(text) if is_clip else text))


def _values_of(metadata: str | None, key: bytes) -> str | None:
    """Return the values that metadata have under a key, as a list of JSON, or None without any."""
    if metadata is None:
        return None
    wanted = composed(decode_id(key))
    for name, value in parse_json(metadata).items():
        if composed(name) == wanted:
            return json.dumps(value if isinstance(value, list | dict) else [value])
    return None


def any_of(*words: Sequence[str]) -> str:
    """Return the expression of FTS5 for items with all parts of at least one of some words."""
    return "({})".format(" OR ".join(" AND ".join(f'"{part}"' for part in word[:MOST_WORDS]) for word in words))


def _keys(rows: Sequence[Sequence[Any]]) -> Int[np.ndarray, "_"]:
    """Return keys that the database has joined to one text: a row for each item takes four times as long."""
    ((keys,),) = rows
    return np.fromstring(str(keys), np.int64, sep=",") if keys else np.empty(0, np.int64)


def _values(entry: Entry) -> tuple[object, ...]:
    item = entry.item
    numbers = item.modified_ns, item.size, entry.changed_ns
    return encode_id(item.id), entry.root, entry.kind, *numbers, entry.content, entry.header
