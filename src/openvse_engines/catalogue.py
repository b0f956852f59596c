"""A store that is searched without the folder of its index."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError, IndexFormatError, MissingItemError
from openvse.files import whole_characters
from openvse.indexing.conditions import Condition, condition_warnings
from openvse.indexing.database import encode_id
from openvse.search.catalogue import MOST_OF_STORE, Catalogue, database_of, fulfilling, values_in
from openvse.search.exact import EmbeddedQueries, ExactSearch, ItemComparison
from openvse.search.hits import ReadText
from openvse.search.proposing import LARGEST_SEARCH, SPARE
from openvse.stores import EngineAddress, ItemFacts, Within, open_vector_store, store_kind
from openvse.stores.base import CatalogueStore, Note, told_as
from openvse.stores.choice import PLACE, URL_VARIABLE, is_clean, named_by, public_url, shown_url

_FACTS_OF = 500  # items whose metadata are looked at
_REMEMBERED = 50_000  # items
_COUNTED_S = 10.0
_COUNTS = 1000
_SHOWN = 5


class StoreCatalogue(Catalogue):
    """The items of a store, searched without their index.

    The store proposes items, which are scored again with its embeddings. Scores are exact, and only recall depends on
    the store. Conditions are checked again on the facts that it holds. Several threads may use it, one call at a time.
    """

    def __init__(
        self, address: EngineAddress, compare: ItemComparison, fingerprint: str, *, images: Path | None = None
    ) -> None:
        self.place, self.is_complete, self.hub_range, self._compare = str(address), True, 0.0, compare
        self._lock = threading.Lock()
        self._known: dict[int, ItemFacts] = {}
        self._keys: dict[str, int] = {}
        self._counts: dict[tuple[Condition, ...], tuple[float, int]] = {}
        with closing(_opened(address, (1, 1))) as first:
            note = Note.read(first.note(), self.place)
        if note.model != fingerprint:
            raise IndexFormatError(f"{self.place} was filled by model {note.model:.80}, not by {fingerprint}: use that")
        self.note = note.moved(images)
        self._store = _opened(address, (note.embeddings, note.dim))

    def close(self) -> None:
        """Close the store, after the call in progress."""
        with self._opened() as store:
            store.close()

    @contextmanager
    def _opened(self) -> Iterator[CatalogueStore]:
        """Yield the store to one thread at a time, as its connection requires. What it answers may be anything."""
        odd = f"{self.place} answers what openvse did not put there"
        with self._lock, told_as(lambda said: f"{odd} ({said:.400}): run 'openvse index' again with its index"):
            yield self._store

    def _vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        with self._opened() as store:
            held, shape = store.vectors(keys), (self.note.embeddings, self.note.dim)
            if any(each.shape != shape for each in held.values()) or not np.isfinite([*held.values()]).all():
                raise ValueError(f"an embedding is not {shape[0]} x {shape[1]} finite numbers")
            return held

    def __len__(self) -> int:
        return self.count(())

    def count(self, where: Sequence[Condition]) -> int:
        """Return the store's estimate of how many items fulfil conditions, cached for some seconds."""
        now, conditions = time.monotonic(), tuple(where)
        counted, number = self._counts.get(conditions, (-math.inf, 0))
        if now - counted < _COUNTED_S:
            return number
        with self._opened() as store:
            points = store.count(Within(conditions)) if conditions else store.num_points()
        if len(self._counts) >= _COUNTS:
            self._counts.clear()
        self._counts[conditions] = now, points // self.note.embeddings
        return points // self.note.embeddings

    def warnings(self, where: Sequence[Condition]) -> tuple[str, ...]:
        """Return a warning for each condition on values that none of a sample of items has."""
        if not any(condition.key for condition in where):
            return ()
        items = self._some()
        with database_of(items) as read:
            warnings = condition_warnings(where, read)
        return tuple(f"of {len(items):,} items that were looked at, {warning}" for warning in warnings)

    def _some(self) -> dict[int, ItemFacts]:
        """Return the facts of some items. The keys have no meaning."""
        with self._opened() as store:
            return dict(enumerate({each.path: each for each in store.some(_FACTS_OF)}.values()))

    def words(self, text: str, where: Sequence[Condition]) -> None:
        """Return None, as a store does not index words."""
        return

    def texts_of(self, positions: Sequence[int]) -> list[ReadText]:
        """Return no text, as a store holds none."""
        return [([], "")] * len(positions)

    def nearest(
        self, queries: EmbeddedQueries, count: int, where: Sequence[Condition], *, hubs_out: bool = False
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores and positions of the best of the items that the store proposes."""
        wanted = min(MOST_OF_STORE, count)
        is_linear = self._compare.is_inner and self.note.embeddings == 1
        searches = queries.searches(is_linear=is_linear)
        known = self._candidates(queries.liked() if searches is None else searches, wanted, where)
        held = self._vectors(np.array(sorted(known), np.int64)) if known else {}
        if not (order := sorted(held, key=lambda key: encode_id(known[key].path))):
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        names = [known[key].path for key in order]
        exact = ExactSearch(np.stack([held[key] for key in order]), self._compare, names=names)
        scores, places = exact.search(queries, wanted)
        return scores, np.array(order, np.int64)[places]

    def _candidates(
        self, searches: Sequence[Float[np.ndarray, "_ D"]], wanted: int, where: Sequence[Condition]
    ) -> dict[int, ItemFacts]:
        """Return the items that the store proposes for the best ``wanted`` of each query, by their keys."""
        asked = np.concatenate(searches).astype(np.float32)
        owners = np.repeat(np.arange(len(searches)), [len(each) for each in searches]).tolist()
        count, known = (wanted + SPARE) * self.note.embeddings, dict[int, ItemFacts]()
        within = Within(tuple(where))
        while True:
            with self._opened() as store:
                answers = store.nearest(asked, count, within)
                new = np.setdiff1d(np.concatenate(answers), np.fromiter(known, np.int64))
                known |= store.facts(new) if len(new) else {}
            self._remember(known)
            good = fulfilling(known, where)
            chosen = [[key for key in dict.fromkeys(each.tolist()) if key in good] for each in answers]
            of_query: dict[int, set[int]] = {owner: set() for owner in owners}
            for owner, keys in zip(owners, chosen, strict=True):
                of_query[owner].update(keys)
            is_all = all(len(each) < count for each in answers)
            if is_all or count >= LARGEST_SEARCH or all(len(keys) >= wanted for keys in of_query.values()):
                return {key: known[key] for keys in chosen for key in keys[: wanted + SPARE]}
            count = min(LARGEST_SEARCH, count * 8)

    def vectors(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n K D"]:
        held = self._vectors(np.unique(positions))
        for key in positions.tolist():
            if key not in held:
                raise MissingItemError(f"the engine holds no item {key}: it may have been removed since")
        return np.stack([held[key] for key in positions.tolist()])

    def position(self, item_id: str) -> int:
        if (key := self._keys.get(item_id)) is None:
            with self._opened() as store:
                key = store.key_of(whole_characters(item_id))  # the path of no item has half of one
                np.int64(key or 0)
        if key is None:
            raise MissingItemError(f"the engine holds no item {item_id}: give the path below the indexed folder")
        return key

    def at(self, key: int) -> int:
        self.facts(key)
        return key

    def key_of(self, position: int) -> int:
        return position

    def id_of(self, position: int) -> str:
        return self.facts(position).path

    def version(self, position: int) -> str:
        facts = self.facts(position)
        return f"{facts.modified_ns:x}-{facts.size:x}"

    def facts(self, position: int) -> ItemFacts:
        if (known := self._known.get(position)) is None:
            with self._opened() as store:
                facts = store.facts(np.array([position], np.int64))
            self._remember(facts)
            known = facts.get(position)
        if known is None:
            raise MissingItemError(f"the engine holds no item {position}: it may have been removed since")
        return known

    def path_of(self, position: int) -> Path:
        """Return the path of an item's file when it was indexed, or below its folder's new place."""
        return self.note.file_of(self.facts(position).path)

    def metadata_of(self, positions: Sequence[int]) -> list[Mapping[str, object]]:
        return [self.facts(each).metadata for each in positions]

    def metadata_values(self) -> list[tuple[str, str]]:
        with database_of(self._some()) as read:
            return values_in(read)

    def _remember(self, items: Mapping[int, ItemFacts]) -> None:
        """Keep the facts of items that a reply names, for soon. All are dropped when they are many."""
        if len(self._known) > _REMEMBERED:
            self._known, self._keys = {}, {}
        self._known |= items
        self._keys |= {facts.path: key for key, facts in items.items()}


def _opened(address: EngineAddress, shape: tuple[int, int]) -> CatalogueStore:
    store = open_vector_store(address, shape)
    if not isinstance(store, CatalogueStore):
        raise EngineError(f"the engine {address.engine} is part of the folder of an index: give that folder")
    return store


def read_address(word: str) -> EngineAddress:
    """Return the address of the store that a word names.

    It is a URL, such as ``qdrant://HOST[:PORT][/COLLECTION]`` or ``postgresql://[USER@]HOST/DATABASE[?table=TABLE]``.
    Without a collection or table, the only one of openvse there is used.
    """
    if not is_clean(word):
        raise EngineError(
            f"{shown_url(word)} is no URL: check its host and port, and write / ? # @ in a password as %2F %3F %23 %40"
        )
    name = named_by(word)
    kind = store_kind(name)
    store = kind.store
    if not issubclass(store, CatalogueStore):
        raise EngineError(f"{shown_url(word)}: the engine {name} cannot be searched without its index: give the index")
    url, place = store.split(word)
    if place and not PLACE.fullmatch(place):
        raise EngineError(f"{place} is none of openvse's {kind.container}s: give one that is called openvse_...")
    variable = os.environ.get(URL_VARIABLE, "")
    url = variable if variable and shown_url(variable) == url else url
    if not place:  # the only one there
        places, what = store.places(url), kind.container
        if not places:
            raise EngineError(f"{public_url(url)} has no {what} of openvse: run 'openvse index ... --engine URL'")
        if len(places) > 1:
            more = ", ..." if len(places) > _SHOWN else ""
            raise EngineError(
                f"{public_url(url)} has {len(places)} {what}s of openvse ({', '.join(places[:_SHOWN])}{more}): name "
                f"one in the URL (index.json names the one of an index)"
            )
        (place,) = places
    return EngineAddress(name, place, public_url(url), given=url)
