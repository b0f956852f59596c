"""Catalogues: the items that a search covers, their facts and their nearest neighbours.

``IndexCatalogue`` is an index in a folder, with the exact search or a store that proposes.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import EngineError, MissingItemError
from openvse.indexing.conditions import Condition, Read, all_of, allowed_items, condition_warnings
from openvse.indexing.database import Database, Forms, WordTable, add_functions, add_readings, any_of, encode_id
from openvse.indexing.index import Index
from openvse.indexing.words import FUNCTION_WORDS, misread_as, query_words, stemmer, widened
from openvse.media.segments import file_of
from openvse.media.text_reading import as_read, lines_in
from openvse.search.bank import read_penalties
from openvse.search.exact import MOST, EmbeddedQueries, ExactSearch, Found, ItemComparison, WordHits
from openvse.search.hits import LOOKED_AT, ReadText, beside_each_other, joined_words
from openvse.search.proposing import Searcher, StoreSearch
from openvse.stores import EngineAddress, ItemFacts, open_vector_store, store_kind
from openvse.stores.base import CatalogueStore, Note, check_payloads, read_metadata
from openvse.stores.choice import split_engine
from openvse.stores.following import EngineState, check_served, state_file

MOST_OF_STORE = 2000
"""The largest number of hits of a query without an index, as each is scored with an embedding that the store sends."""

COMMON = 0.1
"""A word that more than this share of the searched items have, and more than ``FEW``, is common."""

FEW = 10

_MISREAD = 2  # words of a query up to which misread ones are looked up
_ROWS = 50_000  # items with words of a sentence that are looked up in any index, and a third of a larger one
_KNOWN = 10_000  # words whose other forms are kept in memory
_FIELDS_FROM = 2000  # items whose metadata are looked at for the names of fields


_logger = logging.getLogger(__name__)


@runtime_checkable
class Catalogue(Protocol):
    """The items that a search covers, each at a position: its place in an index, or its key in a store without one.

    An item has an id, and a key: a number that is never used again.

    Attributes:
        place: the address of a store without index, or "".
        hub_range: the spread of the penalties by which a query bank lowers the scores of items.
    """

    note: Note
    place: str
    is_complete: bool
    hub_range: float

    def __len__(self) -> int: ...

    def count(self, where: Sequence[Condition]) -> int:
        """Return the number of items that fulfil conditions."""

    def warnings(self, where: Sequence[Condition]) -> tuple[str, ...]:
        """Return a warning for each condition on a key, or on a type of values, that no item has."""

    def nearest(
        self, queries: EmbeddedQueries, count: int, where: Sequence[Condition], *, hubs_out: bool = False
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores and positions of the best items that fulfil conditions, equal scores in the order of their ids.

        If ``hubs_out``, the order is by the query bank of an index. The scores are still the model's.
        """

    def words(self, text: str, where: Sequence[Condition]) -> WordHits | None:
        """Return the items that have words of a sentence, or None if words cannot be looked up."""

    def texts_of(self, positions: Sequence[int]) -> list[ReadText]:
        """Return the text that was read in each of some items, if any."""

    def vectors(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n K D"]:
        """Return the embeddings of items, in single precision."""

    def position(self, item_id: str) -> int:
        """Return the position of an item. Raise MissingItemError if its id is unknown."""

    def at(self, key: int) -> int:
        """Return the position of an item. Raise MissingItemError if its key is unknown."""

    def key_of(self, position: int) -> int:
        """Return the key of an item."""

    def id_of(self, position: int) -> str:
        """Return the id of an item."""

    def version(self, position: int) -> str:
        """Return a text that changes when an item is embedded anew."""

    def facts(self, position: int) -> ItemFacts:
        """Return the facts of an item."""

    def path_of(self, position: int) -> Path:
        """Return the path of an item's file when it was indexed."""

    def metadata_of(self, positions: Sequence[int]) -> list[Mapping[str, object]]:
        """Return the user's metadata of items, which may be empty."""

    def metadata_values(self) -> list[tuple[str, str]]:
        """Return keys and values of the metadata of some items, the most frequent first."""

    def close(self) -> None:
        """Close files and connections. The catalogue cannot be used afterwards."""


class IndexCatalogue(Catalogue):
    """An open index, in its state when it was opened."""

    def __init__(
        self, index: Index, compare: ItemComparison, *, model: object = None, engine: str | None = None
    ) -> None:
        self.index, self.note, self.is_complete = index, Note.of(index), index.is_complete
        self.place = ""  # a store without its index has an address
        exact = ExactSearch(index.vector_files, compare, names=index.table.ids)
        self.searcher = open_searcher(index, exact, engine=engine, model=model)
        self._penalties = read_penalties(index, compare)
        self.hub_range = 0.0 if self._penalties is None or not len(index) else float(np.ptp(self._penalties))
        with index.database() as database:
            self._reads_text = database.has("readings")
        self._stem: Callable[[str], str] | None = None
        self._forms_of = lru_cache(_KNOWN)(database.forms_of)
        self._looked_up: tuple[tuple[Condition, ...], Bool[np.ndarray, "count"] | None] = (), None

    def __len__(self) -> int:
        return len(self.index)

    def allowed(self, where: Sequence[Condition]) -> Bool[np.ndarray, "count"] | None:
        """Return which items fulfil conditions. The last result is cached, as an answer needs it twice."""
        if not (conditions := tuple(where)):
            return None
        known, allowed = self._looked_up
        if known != conditions:
            allowed = allowed_items(self.index, conditions)
            self._looked_up = conditions, allowed
        return allowed

    def count(self, where: Sequence[Condition]) -> int:
        allowed = self.allowed(where)
        return len(self.index) if allowed is None else int(allowed.sum())

    def warnings(self, where: Sequence[Condition]) -> tuple[str, ...]:
        with self.index.database() as database:
            return condition_warnings(where, database.read)

    def nearest(
        self, queries: EmbeddedQueries, count: int, where: Sequence[Condition], *, hubs_out: bool = False
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        allowed, less = self.allowed(where), self._penalties if hubs_out else None
        scores, positions = self.searcher.search(queries, count, allowed=allowed, where=where, less=less)
        return scores if less is None else scores + less[positions], positions

    def words(self, text: str, where: Sequence[Condition]) -> WordHits:
        """Return the items that have words of a sentence, looked up from the rarest on.

        A word that more than ``COMMON`` of the searched items have is left out if a rarer one finds something, and so
        is one that would take too long then. It only orders items that are equal otherwise.
        """
        forms, searched = self._forms(text), self.count(where)
        with self.index.database() as database:
            named, counts, inexact = self._having(database, forms, where)
            hits = WordHits.of(named, searched, len(self), inexact=inexact)
            if len(forms) == 1 and not where:
                whole = sum(counts.values())
            else:  # a common word that was not looked up is spread evenly
                common = (min(1.0, counts.get(each, 0) / max(1, searched)) for each in forms if each not in named)
                whole = round(int((hits.bits == (1 << len(named)) - 1).sum()) * math.prod(common))
            hits = replace(hits, whole=whole)
            if self._reads_text:
                read, read_forms = self._read(database, text, where, nothing_else=not hits)
                hits = replace(joined_words(hits, read) if read else hits, forms=read_forms, whole=whole)
            ties, found = np.zeros(len(hits), np.int64), any_of(*(form for word in named for form in forms[word]))
            for word in counts.keys() - named.keys() if named else ():
                having = np.zeros(len(self), bool)
                having[self.index.of_keys(database.matching(f"{found} AND {any_of(*forms[word])}", -1))] = True
                ties += having[hits.positions]
            return replace(hits, ties=ties)

    def _forms(self, text: str, table: WordTable = "words") -> dict[str, list[list[str]]]:
        """Return the words of a query, with the words of a table that stand for them, too."""
        forms = {word: [parts] for word, parts in query_words(text).items()}
        with self.index.database() as database:
            self._stem = self._stem or stemmer(database.known(FUNCTION_WORDS))
            for word, begins in widened(text).items():
                forms[word] += self._forms_of(forms[word][0][0], None if begins else self._stem, table)
        return forms

    def _read(
        self, database: Database, text: str, where: Sequence[Condition], *, nothing_else: bool
    ) -> tuple[WordHits, Forms]:
        """Return the items in which words were read, and the parts of words that represent each word.

        If nothing has a word of a short query exactly, possible misreadings of its words are looked up.
        """
        forms, searched = self._forms(text, "texts"), self.count(where)
        words = query_words(text)
        found, counts, _ = self._having(database, forms, where, "texts")

        def look_up(others: Mapping[str, list[list[str]]]) -> None:
            for word, parts in others.items():
                forms[word] += parts
                some, *_ = self._having(database, {" ".join(each): [each] for each in parts}, where, "texts")
                held = [*some.values(), *([found[word]] if word in found else ())]
                found.update({word: np.unique(np.concatenate(held))} if some else {})

        look_up({word: [*query_words(as_read(word)).values()] for word in words if as_read(word) != word})
        if not found and nothing_else and len(words) <= _MISREAD:
            known = {word: database.known(misread_as(parts), "texts") for word, parts in words.items()}
            look_up({word: [[each] for each in parts] for word, parts in known.items()})
        absent = (math.log1p(searched / counts.get(word, 1)) for word in words if word not in found)
        hits = WordHits.of(found, searched, len(self), sum(absent, 0.0))
        if len(found) < 2:
            return hits, forms
        looked_at = hits.positions[:LOOKED_AT].tolist()
        texts = [text for _, text in self.texts_of(looked_at)]
        return beside_each_other(hits, dict(zip(looked_at, texts, strict=True)), forms), forms

    def texts_of(self, positions: Sequence[int]) -> list[ReadText]:
        if not self._reads_text:
            return [([], "")] * len(positions)
        stored = self._rows("lines, words_in(lines) FROM readings", positions, ("[]", ""))
        return [(lines_in(str(lines or "[]")), str(words)) for lines, words in stored]

    def _rows(self, what: str, positions: Sequence[int], missing: Sequence[object]) -> list[Sequence[object]]:
        """Return what a table has for each of some items."""
        keys = [self.key_of(each) for each in positions]
        sql = f"SELECT key, {what} WHERE key IN (SELECT value FROM json_each(?))"
        with self.index.database() as database:
            known = {row[0]: row[1:] for row in database.read(sql, (json.dumps(keys),))}
        return [known.get(key, missing) for key in keys]

    def _having(
        self, database: Database, forms: Forms, where: Sequence[Condition], table: WordTable = "words"
    ) -> tuple[dict[str, np.ndarray], dict[str, int], Found]:
        """Return the items that have a form of each word in a table, counts, and those without the word itself."""
        allowed, searched = self.allowed(where), self.count(where)
        room = max(_ROWS, len(self) // 3)
        outside, most = len(self) - searched, max(FEW, int(COMMON * searched))
        positions_of, inexact = dict[str, np.ndarray](), dict[str, np.ndarray]()
        limit, is_rare = (room if allowed is None else -1), False
        if allowed is None and len(forms) == 1:
            limit = MOST
        counts = database.rarest_first(forms, table)
        for word, count in [*counts.items()]:
            if positions_of and (count > room or (is_rare and count - outside > most)):
                break
            own, *others = forms[word]
            positions = self.index.of_keys(database.having(own, limit, table))
            if others:
                keys = database.matching(f"{any_of(*others)} NOT {any_of(own)}", limit, table)
                positions = np.concatenate([positions, inexact.setdefault(word, self.index.of_keys(keys))])
                counts[word] = len(positions) if count < limit else count
            room -= count
            if allowed is not None:
                positions = positions[allowed[positions]]
            if len(positions):
                positions_of[word], is_rare = positions, is_rare or len(positions) <= most
        chosen = {
            word: positions_of[word]
            for word in forms
            if word in positions_of and (len(positions_of[word]) <= most or not is_rare)
        }
        return chosen, counts, {word: each for word, each in inexact.items() if word in chosen}

    def vectors(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n K D"]:
        return self.index.gather(positions).astype(np.float32, copy=False)

    def position(self, item_id: str) -> int:
        if (position := self.index.position(item_id)) is None:
            first = next((name for name in self.index.table.ids if file_of(name) == item_id), "")
            cut = f"the clip is cut into segments; give one of them, such as {first}"
            remedy = cut if first else "give the path below the indexed folder"
            raise MissingItemError(f"the index holds no item {item_id}: {remedy}")
        return position

    def at(self, key: int) -> int:
        held = self.index.of_keys(np.array([key]))
        if not len(held):
            raise MissingItemError(f"the index holds no item {key}: it may have been removed since")
        return int(held[0])

    def key_of(self, position: int) -> int:
        return int(self.index.table.keys[position])

    def id_of(self, position: int) -> str:
        return self.index.table.ids[position]

    def version(self, position: int) -> str:
        return f"{int(self.index.table.checksums[position]):x}"

    def facts(self, position: int) -> ItemFacts:
        table = self.index.table
        ((kind, metadata),) = self._rows("kind, metadata FROM items", [position], ("image", None))
        times = int(table.modified_ns[position]), int(table.sizes[position])
        return ItemFacts(table.ids[position], str(kind), *times, read_metadata(metadata))

    def path_of(self, position: int) -> Path:
        return self.index.image_path(position)

    def metadata_of(self, positions: Sequence[int]) -> list[Mapping[str, object]]:
        return [read_metadata(text) for (text,) in self._rows("metadata FROM items", positions, (None,))]

    def metadata_values(self) -> list[tuple[str, str]]:
        with self.index.database() as database:
            return values_in(database.read)

    def close(self) -> None:
        self.searcher.close()


def open_searcher(index: Index, exact: ExactSearch, *, engine: str | None = None, model: object = None) -> Searcher:
    """Open the engine of an index. See ``SearchEngine`` for ``engine``."""
    name, url = split_engine(engine)
    noted = None if name == "exact" else index.manifest.engine
    address = EngineAddress.of(index.path, noted, url if noted and noted.get("name") == name else None)
    if name is not None and name != address.engine:
        store_kind(name)  # there is such an engine
        raise EngineError(
            f"index {index.path} has the engine {address.engine}, not {name}: leave --engine out, give exact, or run "
            f"'openvse index ... --engine {name if url is None else 'URL'}'"
        )
    if address.engine == "exact":
        return exact
    check_served(address.engine, model)
    shape = index.manifest.num_embeddings, index.manifest.dim
    state = EngineState.read(state_file(address))
    try:
        store = open_vector_store(address, shape)
        if isinstance(store, CatalogueStore):
            check_payloads(store.note(), address)
        if not address.url and store.num_points() < state.num_items * shape[0]:
            raise EngineError(f"the engine's folder {address.path} is damaged")
    except (EngineError, OSError) as error:
        if address.url:
            raise
        _logger.warning("%s; the search is exact: run 'openvse index' again, which mends it", error)
        return exact
    return StoreSearch(address.engine, index, store, state, exact, is_linear=exact.is_inner)


def values_in(read: Read) -> list[tuple[str, str]]:
    """Return keys and values of the metadata of the first items that have any. Each value of a list counts."""
    sql = (
        "SELECT said.key, CASE WHEN one.type IN ('true', 'false') THEN one.type ELSE CAST(one.value AS TEXT) END, "
        "COUNT(*) AS uses FROM (SELECT metadata FROM items WHERE metadata IS NOT NULL LIMIT ?) AS some, "
        "json_each(some.metadata) AS said, json_each(some.metadata, said.fullkey) AS one WHERE said.type != "
        "'object' AND one.type IN ('text', 'integer', 'real', 'true', 'false') GROUP BY 1, 2 ORDER BY uses DESC"
    )
    return [(str(name), str(value)) for name, value, _ in read(sql, (_FIELDS_FROM,))]


_TABLE = "CREATE TABLE items (key INTEGER, id TEXT, kind TEXT, modified_ns INTEGER, size INTEGER, metadata TEXT)"


def fulfilling(items: Mapping[int, ItemFacts], where: Sequence[Condition]) -> set[int]:
    """Return the keys of the items that fulfil conditions, as the database of an index understands them."""
    if not where:
        return set(items)
    with database_of(items) as read:
        return {int(str(key)) for (key,) in read(*all_of(where))}


@contextmanager
def database_of(items: Mapping[int, ItemFacts]) -> Iterator[Read]:
    """Yield a reader of a database in memory that holds items as an index's database does."""
    rows = [
        (key, encode_id(each.path), each.kind, each.modified_ns, each.size, noted)
        for key, each in items.items()
        for noted in [json.dumps(each.metadata) if each.metadata else None]
    ]
    with closing(sqlite3.connect(":memory:")) as database:
        add_functions(database)
        add_readings(database)
        database.execute(_TABLE)
        database.executemany("INSERT INTO items VALUES (?, CAST(? AS TEXT), ?, ?, ?, ?)", rows)

        def read(sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
            return database.execute(sql, values).fetchall()

        yield read
