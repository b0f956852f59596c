"""Words of the items of an index: their names and what is said of them, in a full-text table (SQLite's FTS5).

Triggers keep the table, in the transaction that changes an item. It holds no texts (``content=''``), so that it stays
small. Words are folded (case, accents), and split between letters and digits and around the characters of
Chinese and Japanese, which are written without spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain

from openvse.media.matching import folded
from openvse.media.segments import file_of

TITLE_KEYS = ("caption", "captions", "title", "sentences", "sentence", "description", "label", "text", "alt")
"""Keys of the metadata whose texts may stand for an item, the best first."""

TEXT_KEYS = (*TITLE_KEYS, "keywords", "tags", "labels", "people", "name", "names")
"""Keys of the metadata whose texts are words of an item, beside its name."""

VERSION = "1"
"""Of what the table holds; a table of another one is made anew."""

MOST_WORDS = 64
"""The largest number of words of a query that are looked up."""

_NEW = "words_of(CAST(new.id AS BLOB), new.metadata)"
_OLD = "words_of(CAST(old.id AS BLOB), old.metadata)"
_ADD = f"INSERT INTO words (rowid, text) VALUES (new.key, {_NEW});"
_TAKE = f"INSERT INTO words (words, rowid, text) VALUES ('delete', old.key, {_OLD});"

SCHEMA = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, tokenize='unicode61 remove_diacritics 2')",
    f"CREATE TRIGGER words_new AFTER INSERT ON items BEGIN {_ADD} END",
    f"CREATE TRIGGER words_gone AFTER DELETE ON items BEGIN {_TAKE} END",
    "CREATE TRIGGER words_changed AFTER UPDATE OF metadata ON items WHEN old.metadata IS NOT new.metadata "
    f"BEGIN {_TAKE} {_ADD} END",
    f"INSERT OR REPLACE INTO settings VALUES ('words', '{VERSION}')",
)
"""Statements that make the table of a database that holds no items yet."""

FILL = "INSERT INTO words (rowid, text) SELECT key, words_of(CAST(id AS BLOB), metadata) FROM items"
"""The statement that fills it with the items that are there."""

REMOVE = (
    "DROP TABLE IF EXISTS words",
    "DROP TRIGGER IF EXISTS words_new",
    "DROP TRIGGER IF EXISTS words_gone",
    "DROP TRIGGER IF EXISTS words_changed",
)
"""Statements that remove a table of another version."""

_EAST_ASIAN = "[\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_APART = re.compile(
    rf"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<={_EAST_ASIAN})(?=\w)|(?<=\w)(?={_EAST_ASIAN})"
)


def words_of(stored: bytes, metadata: str | None) -> str:
    """Return the words of an item, for the table.

    Args:
        stored: the bytes of its id; of a segment of a clip, the file counts.
        metadata: what is said of it, as a JSON object.
    """
    said = json.loads(metadata) if metadata else {}
    texts = chain.from_iterable(_texts(said[key]) for key in TEXT_KEYS if key in said)
    whole = "\n".join((file_of(stored.decode("utf-8", "replace")), *texts))
    return _apart(whole.encode("utf-8", "replace").decode())


def phrases_of(text: str) -> dict[str, str]:
    """Return the words of a query, each with the phrase of FTS5 that finds it: its parts beside each other.

    Examples:
        >>> phrases_of('IMG_2041 "dog')
        {'IMG_2041': '"img_2041"', 'dog': '"dog"'}
        >>> phrases_of("IMG2041 & AND")
        {'IMG2041': '"img 2041"', 'AND': '"and"'}
    """
    plain = text.encode("utf-8", "replace").decode()
    words = dict.fromkeys(plain.replace('"', " ").replace("\0", " ").split())
    real = [word for word in words if any(map(str.isalnum, word))][:MOST_WORDS]
    return {word: f'"{_apart(word)}"' for word in real}


def _apart(text: str) -> str:
    return _APART.sub(" ", folded(text))


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            yield from chain.from_iterable(map(_texts, value))
        case {"raw": str(text)}:
            yield text
