"""Words of the items of an index, from their names and metadata, in a full-text table (SQLite's FTS5).

New items are added at the end of a transaction, and triggers follow changes of the others. So that the table stays
small, it holds neither texts (``content=''``) nor the places of words in them (``detail=none``). Words are folded
(``folded``), and split between letters and digits and around the characters of Chinese and Japanese, which are written
without spaces. Combining marks are part of their word. Other forms of a word are looked for among those of the table.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from string import ascii_lowercase

from openvse.files import parse_json
from openvse.media.segments import file_of

TITLE_KEYS = (
    *("caption", "captions", "title", "headline", "sentences"),
    *("sentence", "description", "label", "text", "alt"),
)
"""Keys of the metadata whose texts may represent an item, the best first."""

TEXT_KEYS = (*TITLE_KEYS, "keywords", "tags", "labels", "people", "place", "name", "names")
"""Keys of the metadata whose texts are words of an item, beside its name."""

MOST_WORDS = 64
"""The largest number of words of a query that are looked up."""

LAST = "(SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'words_to')"
"""The key up to which items are in the table."""

_OLD = "words_of(CAST(old.id AS BLOB), old.metadata)"
_NEW = "words_of(CAST(new.id AS BLOB), new.metadata)"
_TAKE = f"INSERT INTO words (words, rowid, text) VALUES ('delete', old.key, {_OLD});"

SCHEMA = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail=none, tokenize='ascii')",
    "CREATE VIRTUAL TABLE words_count USING fts5vocab(words, row)",
    f"CREATE TRIGGER words_gone AFTER DELETE ON items WHEN old.key <= {LAST} BEGIN {_TAKE} END",
    f"CREATE TRIGGER words_changed AFTER UPDATE OF metadata ON items WHEN old.key <= {LAST} AND "
    "old.metadata IS NOT new.metadata "
    f"BEGIN {_TAKE} INSERT INTO words (rowid, text) VALUES (new.key, {_NEW}); END",
    "INSERT INTO settings VALUES ('words_to', 0)",
)
"""Statements that make an empty table."""

FILL = (
    "INSERT INTO words (rowid, text) SELECT key, words_of(CAST(id AS BLOB), metadata) FROM items "
    f"WHERE key > {LAST} ORDER BY key",
    "INSERT OR REPLACE INTO settings SELECT 'words_to', ifnull(max(key), 0) FROM items",
)
"""Statements that add the items with higher keys than before, which take less room together than one by one."""

_LONG = 5
_EAST_ASIAN = "[\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_MARK = "\ufdd0"  # stands for any combining mark, as patterns have no class for these
_LETTER = rf"(?!{_EAST_ASIAN})[^\W\d_]"
_PART = re.compile(rf"{_EAST_ASIAN}|\d+|{_LETTER}(?:{_LETTER}|{_MARK})*")
_BETWEEN_WORDS = re.compile('[\\s",;/|\\\\\u060c\u3001\u3002\uff0c]+')
_LEFT_OUT = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"  # accents
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # points of Hebrew
    "\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"  # of Arabic
    "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # variation selectors
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0001\U000e0020-\U000e007f]"  # these and the line before are characters of format
)
_LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe", "\u0131": "i", "\u200b": " "})
_OF_LANGUAGES = {
    "english": "a an and are as at by for from in is it its of on or the their to with",
    "german": "am auf das dem den der die ein eine im in mit und von zu",
    "french": "au aux avec dans de des du en et la le les sur un une",
    "italian": "a con da del di e il in la le lo un una",
    "spanish": "a con de del el en la las los un una y",
}
FUNCTION_WORDS = frozenset(" ".join(_OF_LANGUAGES.values()).split())
"""Words that say little, of the languages whose stems are known."""

PLURALS = {"children": "child", "men": "man", "women": "woman", "people": "person", "feet": "foot", "teeth": "tooth"}
PLURALS |= {"geese": "goose", "mice": "mouse", "leaves": "leaf", "wolves": "wolf", "knives": "knife", "calves": "calf"}
"""English plurals that are no longer words."""

_SHORTEST = 3  # letters of a word with other forms, or of a beginning
_EXACT = re.compile('["“”„«»]([^"“”„«»]+)["“”„«»]')


def words_of(stored: bytes, metadata: str | None) -> str:
    """Return the words of an item by the bytes of its id, for the table. Each text is a line."""
    fields = parse_json(metadata) if metadata else {}
    texts = chain.from_iterable(_texts(fields[key]) for key in TEXT_KEYS if key in fields)
    return "\n".join(map(line_of, map(_parts, (file_of(stored.decode("utf-8", "replace")), *texts))))


def words_in(lines: str | None) -> str:
    """Return the words of a text that was read, for the table. Each of its lines is a line, with its broken words."""
    return "\n".join(line_of(_parts(" ".join((row[0], *row[4:])))) for row in parse_json(lines or "[]"))


def misread_as(parts: Sequence[str]) -> list[str]:
    """Return the possible misreadings of a word of one part: with one letter replaced, missing or more.

    Words of fewer than ``_LONG`` letters would be other words.

    Examples:
        >>> "lnvoice" in misread_as(["invoice"]), misread_as(["cat"])
        (True, [])
    """
    part = "".join(parts)
    if len(parts) > 1 or len(part) < _LONG or not part.isalpha():
        return []
    letters = sorted({*ascii_lowercase, *part})
    halves = [(part[:place], part[place:]) for place in range(len(part) + 1)]
    replaced = (f"{left}{each}{right[1:]}" for left, right in halves if right for each in letters)
    missing = (left + right[1:] for left, right in halves if right)
    more = (f"{left}{each}{right}" for left, right in halves for each in letters)
    return [*{*replaced, *missing, *more} - {part}]


def line_of(parts: Sequence[str]) -> str:
    """Return parts of words that are beside each other, as the words of an item have them in a line."""
    return f" {' '.join(parts)} "


def folded(text: str) -> str:
    """Return a text without case, accents, vowel points, other forms of letters and invisible characters.

    Examples:
        >>> [folded(text) for text in ("İZMİR", "Straße", "Łódź", "ＩＭＧ", "soft\u00adhyphen", "شَمْس")]
        ['izmir', 'strasse', 'lodz', 'img', 'softhyphen', 'شمس']
    """
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_LETTERS)
    return unicodedata.normalize("NFC", _LEFT_OUT.sub("", unicodedata.normalize("NFD", plain)))


def query_words(text: str) -> dict[str, list[str]]:
    """Return the words of a query once, each with its parts. Function words count only if there are no others.

    Examples:
        >>> query_words('IMG_2041 "dog & Zoë, dog/cat')
        {'IMG_2041': ['img', '2041'], 'dog': ['dog'], 'Zoë': ['zoe'], 'cat': ['cat']}
        >>> query_words("The boat"), query_words("The The")
        ({'boat': ['boat']}, {'The': ['the']})
    """
    words: dict[str, str] = {}
    for word in filter(None, map(_bare, _BETWEEN_WORDS.split(text))):
        if parts := _parts(word):
            words.setdefault(" ".join(parts), word)
    telling = {key: word for key, word in words.items() if key not in FUNCTION_WORDS}
    return {word: key.split() for key, word in islice((telling or words).items(), MOST_WORDS)}


def widened(text: str) -> dict[str, bool]:
    """Return the words of a query that stand for others, too: as their beginning (``sunfl*``), or by their stem.

    A word in quotation marks stands for itself.
    """
    begin = {_bare(word) for word in _BETWEEN_WORDS.split(text) if word.endswith("*")}
    exact = {word for quoted in _EXACT.findall(text) for word in query_words(quoted)}
    words = {word: "".join(parts) for word, parts in query_words(text).items() if len(parts) == 1}
    told = [word for word, part in words.items() if part.isalpha() and part not in FUNCTION_WORDS]
    return {word: word in begin for word in told if len(words[word]) >= _SHORTEST and word not in exact}


def stemmer(counts: Mapping[str, int]) -> Callable[[str], str]:
    """Return the function that reduces a word to its stem, in the language whose function words most items have.

    Without any, this is English. Without the package ``snowballstemmer``, every word is its stem.
    """
    language = max(_OF_LANGUAGES, key=lambda one: sum(counts.get(word, 0) for word in _OF_LANGUAGES[one].split()))
    try:
        from snowballstemmer import stemmer as snowball  # takes 15 ms
    except ImportError:
        return str
    stem: Callable[[str], str] = snowball(language).stemWord
    return (lambda word: stem(PLURALS.get(word, word))) if language == "english" else stem


def _bare(word: str) -> str:
    """Return a word without signs around it."""
    places = [place for place, each in enumerate(word) if unicodedata.category(each)[0] in "LMN"]
    return word[places[0] : places[-1] + 1] if places else ""


def _parts(text: str) -> list[str]:
    plain = folded(text)
    if plain.isascii():
        return _PART.findall(plain)
    marked = "".join(_MARK if unicodedata.category(each)[0] == "M" else each for each in plain)
    return [plain[match.start() : match.end()] for match in _PART.finditer(marked)]


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            yield from chain.from_iterable(map(_texts, value))
        case {"raw": str(text)}:
            yield text
