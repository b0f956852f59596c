"""The text that was read in the images of an index: a second pass over its items, after they can be searched.

The tables of the text are made when an index first reads, so an index that does not read has none of them. A reading
belongs to an item, and triggers follow the items. An item whose content was read before, at any path, takes over the
reading, and an item with new content loses it. The words are in a full-text table of their own (see ``words``), so that
a search knows which words of an item were read. NULL means an image that could not be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from PIL import Image

from openvse.errors import message_of
from openvse.indexing.database import READER, Database
from openvse.indexing.manifest import MANIFEST, damaged
from openvse.indexing.writer import IndexFolder, disk_errors
from openvse.media.images import further_pages, has_more_pages, read_image
from openvse.media.names import escaped
from openvse.media.text_reading import (
    MOST_LINES,
    MOST_OF_FILE,
    MOST_PIECES,
    READ_PX,
    TextLine,
    TextReader,
    lines_in,
    pieces_of,
    stored_lines,
)
from openvse.pipeline import Pace, WorkProgress, decoded, in_batches, tell_skipped

_logger = logging.getLogger(__name__)

_AT_ONCE = 4  # images that are decoded ahead
_TAKE_OVER = (
    "INSERT INTO readings (key, lines) SELECT new.key, lines FROM items JOIN readings USING (key) "
    "WHERE new.kind = 'image' AND size = new.size AND content = new.content AND items.key != new.key LIMIT 1;"
)
_TABLES = (
    "CREATE TABLE readings (key INTEGER PRIMARY KEY, lines TEXT)",
    "CREATE VIRTUAL TABLE texts USING fts5(text, content='', columnsize=0, detail=none, tokenize='ascii')",
    "CREATE VIRTUAL TABLE texts_count USING fts5vocab(texts, row)",
    "CREATE TRIGGER readings_new AFTER INSERT ON readings WHEN new.lines != '[]' "
    "BEGIN INSERT INTO texts (rowid, text) VALUES (new.key, words_in(new.lines)); END",
    "CREATE TRIGGER readings_gone AFTER DELETE ON readings WHEN old.lines != '[]' "
    "BEGIN INSERT INTO texts (texts, rowid, text) VALUES ('delete', old.key, words_in(old.lines)); END",
    "CREATE TRIGGER read_gone AFTER DELETE ON items BEGIN DELETE FROM readings WHERE key = old.key; END",
    f"CREATE TRIGGER read_new AFTER INSERT ON items BEGIN {_TAKE_OVER} END",
    "CREATE TRIGGER read_changed AFTER UPDATE OF size, content ON items WHEN new.content IS NULL OR "
    "(old.size, old.content) IS NOT (new.size, new.content) "
    f"BEGIN DELETE FROM readings WHERE key = new.key; {_TAKE_OVER} END",
)
_TAKEN_AWAY = (
    *(f"DROP TRIGGER {name}" for name in ("read_gone", "read_new", "read_changed")),
    *(f"DROP TABLE {name}" for name in ("readings", "texts_count", "texts")),
)
_PAGES = "read_pages"  # the setting of an index that has the text of all pages
_LETTERS, _DAMAGED = 2000, 10  # letters that take as long as a piece to search, and pieces that take as long as it
_LACKING = "SELECT key, root, id FROM items WHERE kind = 'image' AND key NOT IN (SELECT key FROM readings) ORDER BY key"


@dataclass(frozen=True)
class TextReport:
    """The text in the images of an index: the reader, the number of images read now, and the number with text.

    Images that could not be read are in ``failed``, with the reason. They are indexed all the same.
    """

    reader: str
    read: int = 0
    with_text: int = 0
    failed: list[tuple[Path, str]] = field(default_factory=list)


def read_texts(
    path: Path, reader: TextReader | None, progress: Callable[[WorkProgress], None] | None = None
) -> TextReport | None:
    """Read the images of an index whose text is not known. Without a reader, forget the text.

    Readings are kept every few seconds, so a stopped run continues. With another reader than before, all images are
    read again. An image that the reader cannot read is not tried again before its file changes.
    """
    with IndexFolder(path) as opened, disk_errors(path):
        if (index := opened.find()) is None:
            raise opened.problem() or damaged(path, MANIFEST)
        database, name = index.database, "" if reader is None else reader.name
        with database.transaction():
            if database.has("readings") and database.setting(READER) != name:
                database.change(*_TAKEN_AWAY)
            if name and not database.has("readings"):
                database.change(*_TABLES)
            elif name and not database.setting(_PAGES):
                _renew(database)
            database.set(READER, name)
            database.set(_PAGES, "all" if name else "")
        if reader is None:
            return None
        folders = {root.number: root for root in index.roots}
        unread = [
            (key, Path(folders[root].path, folders[root].name_of(item_id)))
            for key, root, item_id in database.read(_LACKING)
        ]
        return _read(database, reader, unread, progress)


def _read(
    database: Database,
    reader: TextReader,
    unread: list[tuple[int, Path]],
    progress: Callable[[WorkProgress], None] | None,
) -> TextReport:
    ((before,),) = database.read("SELECT COUNT(*) FROM readings")
    pace = Pace(before + len(unread), progress, before=before)
    failed: list[tuple[Path, str]] = []
    pending: list[tuple[int, str | None]] = []
    read = longer = 0

    def keep() -> None:
        with database.transaction():
            for values in pending:
                database.change("INSERT INTO readings VALUES (?, ?)", values=values)
        pending.clear()

    def read_one(image: tuple[int, Path]) -> Image.Image:
        return read_image(image[1], shorter_side=READ_PX)

    try:
        for batch in decoded(in_batches(unread, _AT_ONCE), read_one, lambda each: each[1], threads=1):
            problems = [(path, reason) for (_, path), reason in batch.failed]
            for (key, path), image in zip(batch.items, batch.values, strict=True):
                try:
                    pages, notes = _read_pages(reader, path, image)
                    pending.append((key, stored_lines([*chain.from_iterable(pages)])))
                    read += 1
                    longer += len(pages) == 1 and has_more_pages(path)
                    if notes:
                        _logger.warning("%s: its text is read in part: %s", escaped(path), "; ".join(notes))
                except Exception as error:  # whatever a reader does, the others are read
                    pending.append((key, None))
                    problems.append((path, f"its text cannot be read: {message_of(error)}"))
            tell_skipped(problems)
            failed += problems
            pace.keep(keep)
            pace.add(len(batch.items) + len(batch.failed))
    finally:
        keep()
        if longer:
            _logger.warning("%s file(s) have more frames: only the text of the first is read", f"{longer:,}")
    ((with_text,),) = database.read("SELECT COUNT(*) FROM readings WHERE lines != '[]'")
    return TextReport(reader.name, read, with_text, failed)


def _read_pages(reader: TextReader, path: Path, first: Image.Image) -> tuple[list[list[TextLine]], list[str]]:
    """Return the lines of each page of a file, of which the first is decoded, and what of it is read or not."""
    pages, notes, left = [[*reader.read(first)]], [getattr(reader, "note", "")], float(MOST_OF_FILE)
    left -= _work(first, pages[0])
    try:
        for page in further_pages(path):
            if left <= 0:
                notes.append(f"only its pages 1 to {len(pages)}, as there are many or large ones")
                break
            pages.append([])
            try:
                image = read_image(page)
                pages[-1] = [replace(line, page=len(pages)) for line in reader.read(image)]
                left -= _work(image, pages[-1])
                notes.append(f"page {len(pages)}: {note}" if (note := getattr(reader, "note", "")) else "")
            except Exception as error:
                left -= _DAMAGED
                notes.append(f"without page {len(pages)}: {message_of(error)}")
    except Exception as error:  # the list of pages is damaged
        notes.append(f"only its pages 1 to {len(pages)}: {message_of(error)}")
    if len(pages) > 1:
        pages[0] = [replace(line, page=1) for line in pages[0]]
    if (count := sum(map(len, pages))) > MOST_LINES:
        notes.append(f"only {MOST_LINES:,} of its {count:,} lines are kept")
    return pages, [note for note in notes if note]


def _work(page: Image.Image, lines: Sequence[TextLine]) -> float:
    """Return the work of reading a page, in pieces to search. Many letters take long, too."""
    return min(MOST_PIECES, len(pieces_of(*page.size))) + sum(len(line.text) for line in lines) / _LETTERS


def _renew(database: Database) -> None:
    """Forget texts of which only the first page was read, and join broken words in the others."""
    database.change(
        "DELETE FROM readings WHERE key IN (SELECT key FROM items WHERE id LIKE '%.tif' OR id LIKE '%.tiff')"
    )
    for key, lines in database.read("SELECT key, lines FROM readings WHERE lines LIKE '%-\",%'"):
        database.change("DELETE FROM readings WHERE key = ?", values=(key,))
        database.change("INSERT INTO readings VALUES (?, ?)", values=(key, stored_lines(lines_in(lines))))
