"""Search in what an engine holds, without the folder of the index that filled it."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from openvse.encoders.vocabulary import UnknownWord
from openvse.errors import DataError, EngineError, IndexFormatError
from openvse.index.conditions import Condition, parse_conditions
from openvse.index.database import encode_id
from openvse.index.segments import Segment
from openvse.media.segments import file_of, span_of
from openvse.runtime.arrays import ArraySet, Kind
from openvse.search.array_backend import ArrayBackend
from openvse.search.engine import Calibrated, QueryEmbedder, WordChecker, is_inner_product
from openvse.search.hits import Chances, Hit
from openvse.search.query import EmbeddedQueries, Query, embed_queries
from openvse.stores import open_store
from openvse.stores.engine_address import EngineAddress
from openvse.stores.points import Facts, Within
from openvse.stores.served_store import Note, ServedStore

MOST = 2000
"""So many hits of a query can be had at most, as each is scored with its embedding, which comes from the engine."""

_SPARE = 10  # items more than wanted: their order by the store may differ a little from the exact one
_LARGEST_SEARCH = 10_000  # points
_REMEMBERED = 50_000  # items
_COUNTED_S = 10.0
_COUNTS = 1000

_TABLE = (
    "CREATE TABLE items (key INTEGER, id TEXT, kind TEXT, modified_ns INTEGER, size INTEGER, metadata TEXT)"
)

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class _Candidates:
    """Items that may be among the best, in the order of their ids."""

    facts: list[Facts]
    vectors: Float[np.ndarray, "n K D"]


class StoreEngine:
    """Finds items by the points of an engine, which are all that it needs.

    The store proposes items, and they are scored once more with the embeddings that it holds; scores are those of the
    exact search, and which items are compared at all is the store's choice. Conditions are checked again on what the
    store says of each item.

    Args:
        model: the model that made the embeddings.
        address: the engine and its place.
        kind: how an exported model compares embeddings; None for a model of PyTorch.
        images: where the first of the indexed folders is now; None leaves it where it was.

    Attributes:
        note: what the place says of itself.
        calibration: the model's curve from score to probability; None where it keeps none.

    Raises:
        EngineError: the engine cannot be reached, or its place does not say which model made it.
        IndexFormatError: another model made it.
    """

    def __init__(
        self,
        model: QueryEmbedder,
        address: EngineAddress,
        *,
        kind: Kind | None = None,
        images: Path | None = None,
    ) -> None:
        self._model, self._kind = model, kind
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Facts] = OrderedDict()
        self._keys: dict[str, int] = {}
        self._counts: dict[tuple[Condition, ...], tuple[float, int]] = {}
        self._store, note = _open(model, address)
        self.note = note.moved(images)
        self.calibration = model.calibration if isinstance(model, Calibrated) else None

    def close(self) -> None:
        """Let go of the engine; what is being asked is answered first."""
        with self._lock:
            self._store.close()

    def ask(self, work: Callable[[ServedStore], AnswerT]) -> AnswerT:
        """Ask the store for something; one thing at a time, as connections want it.

        Raises:
            EngineError: it cannot be reached any more.
        """
        with self._lock:
            return work(self._store)

    def __len__(self) -> int:
        """Return how many items it holds, or held a moment ago."""
        return self._num_items(())

    def _num_items(self, where: tuple[Condition, ...]) -> int:
        """Return how many items the store would let pass; counting is not done each time."""
        now = time.monotonic()
        counted, number = self._counts.get(where, (-math.inf, 0))
        if now - counted < _COUNTED_S:
            return number
        points = self.ask(lambda store: store.count(Within(where)) if where else store.num_points())
        if len(self._counts) >= _COUNTS:
            self._counts.clear()
        self._counts[where] = now, points // self.note.embeddings
        return points // self.note.embeddings

    def chances(
        self,
        where: Sequence[Condition | str] = (),
        expected: float | None = None,
        min_precision: float | None = None,
    ) -> Chances:
        """Return what gives the hits of a sentence their probabilities.

        With conditions, the items searched are those that the store itself would let pass, of which a few may fail.
        """
        count = max(1, self._num_items(tuple(parse_conditions(where))))
        return Chances(self.calibration, count, expected, min_precision)

    def find(
        self,
        queries: Sequence[Query],
        top_k: int = 10,
        *,
        where: Sequence[Condition | str] = (),
        expected: float | None = None,
    ) -> list[list[Hit]]:
        """Return the best items for queries of several parts; ``SearchEngine.find`` has the same arguments.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: the engine holds no item of an id, or a condition cannot be understood.
            EngineError: it cannot be reached any more.
        """
        chances = self.chances(where, expected)
        embedded = embed_queries(queries, self._model.encode_text, self._model.encode_image, self._stored)
        wanted = min(MOST, top_k + any(query.like is not None for query in queries))
        found = self._candidates(self._searches(embedded), wanted, parse_conditions(where))
        if not found.facts:
            return [[] for _ in queries]
        scores, places = self._backend(found).search_some(embedded.parts, wanted, weights=_weights(embedded))
        rows = zip(queries, self._unknown_words(queries), scores.tolist(), places.tolist(), strict=True)
        pages = []
        for query, unknown, best, where_found in rows:
            pairs = zip(best, where_found, strict=True)
            hits = [self._hit(found.facts[place], score, unknown) for score, place in pairs]
            pages.append(_page(query, hits, chances, top_k))
        return pages

    def _unknown_words(self, queries: Sequence[Query]) -> list[list[UnknownWord]]:
        texts = [query.text for query in queries]
        known = self._model.unknown_words(texts) if isinstance(self._model, WordChecker) else []
        return known or [[] for _ in texts]

    def _hit(self, facts: Facts, score: float, words: Sequence[UnknownWord]) -> Hit:
        span = span_of(facts.path) or (None, None)
        return Hit(0, score, facts.path, self.note.file_of(facts.path), tuple(words), None, *span)

    def _searches(self, queries: EmbeddedQueries) -> list[Float[np.ndarray, "_ D"]]:
        """Return what to search for each query: its weighted sum, or, where there is none, every part that it likes."""
        vectors, mask = (np.asarray(each) for each in (queries.parts.vectors, queries.parts.mask))
        is_inner = self._kind == "inner" if self._kind is not None else is_inner_product(self._model)
        if queries.weights is None:
            return [some[exists] for some, exists in zip(vectors, mask, strict=True)]
        if is_inner and mask.shape[1] == 1 and self.note.embeddings == 1:
            return list((queries.weights @ vectors[:, 0])[:, np.newaxis])
        return [vectors[row > 0][mask[row > 0]] for row in queries.weights]

    def _candidates(
        self, searches: Sequence[Float[np.ndarray, "_ D"]], wanted: int, where: Sequence[Condition]
    ) -> _Candidates:
        """Return items among which the best so many of each query are, as far as the store knows."""
        asked = np.concatenate(searches).astype(np.float32)
        owners = np.repeat(np.arange(len(searches)), [len(each) for each in searches]).tolist()
        count, known = (wanted + _SPARE) * self.note.embeddings, dict[int, Facts]()
        within = Within(tuple(where))
        while True:
            answers = self.ask(partial(_nearest, asked, count, within))
            new = np.setdiff1d(np.concatenate(answers), np.fromiter(known, np.int64))
            known |= self.ask(partial(_facts, new)) if len(new) else {}
            self._remember(known)
            good = fulfilling(known, where)
            chosen = [[key for key in dict.fromkeys(each.tolist()) if key in good] for each in answers]
            of_query: dict[int, set[int]] = {owner: set() for owner in owners}
            for owner, keys in zip(owners, chosen, strict=True):
                of_query[owner].update(keys)
            is_all = all(len(each) < count for each in answers)
            if is_all or count >= _LARGEST_SEARCH or all(len(keys) >= wanted for keys in of_query.values()):
                return self._read({key for keys in chosen for key in keys[: wanted + _SPARE]}, known)
            count = min(_LARGEST_SEARCH, count * 8)

    def _read(self, keys: set[int], known: Mapping[int, Facts]) -> _Candidates:
        vectors = self.ask(lambda store: store.vectors(np.array(sorted(keys), np.int64))) if keys else {}
        order = sorted(vectors, key=lambda key: encode_id(known[key].path))
        shape = 0, self.note.embeddings, self.note.dim
        stacked = np.stack([vectors[key] for key in order]) if order else np.empty(shape, np.float32)
        return _Candidates([known[key] for key in order], stacked)

    def _backend(self, found: _Candidates) -> Any:
        """Return the exact search in the candidates."""
        segments = [Segment(found.vectors, np.arange(len(found.facts), dtype=np.int32))]
        names = [each.path for each in found.facts]
        if self._kind is not None:
            return ArrayBackend(segments, kind=self._kind, names=names)
        from openvse.search.exact import ExactBackend

        return ExactBackend(
            segments, score=self._model.score, names=names, inner=is_inner_product(self._model)
        )

    def _stored(self, ids: Sequence[str]) -> Any:
        """Return the embeddings of items by their ids."""
        keys = [self.key_of(each) for each in ids]
        held = self.ask(lambda store: store.vectors(np.array(keys, np.int64)))
        for key, item_id in zip(keys, ids, strict=True):
            if key not in held:
                raise DataError(f"the engine holds no item {item_id}: it may have been removed since")
        vectors = np.stack([held[key] for key in keys])
        if self._kind is not None:
            return ArraySet.full(vectors)
        import torch

        from openvse.types import EmbeddingSet

        return EmbeddingSet(torch.from_numpy(vectors), torch.ones(vectors.shape[:2], dtype=torch.bool))

    def key_of(self, item_id: str) -> int:
        """Return the key of an item.

        Raises:
            DataError: the engine holds none of this id.
        """
        with self._lock:
            known = self._keys.get(item_id)
        key = self.ask(lambda store: store.key_of(item_id)) if known is None else known
        if key is None:
            raise DataError(f"the engine holds no item {item_id}: give the path below the indexed folder")
        return key

    def facts_of(self, key: int) -> Facts | None:
        """Return what is known of an item, as it was when it was last asked for; None where it is gone."""
        with self._lock:
            known = self._known.get(key)
        if known is None:
            self._remember(self.ask(lambda store: store.facts(np.array([key], np.int64))))
            with self._lock:
                known = self._known.get(key)
        return known

    def _remember(self, items: Mapping[int, Facts]) -> None:
        with self._lock:
            for key, facts in items.items():
                self._known[key] = facts
                self._known.move_to_end(key)
                self._keys[facts.path] = key
            while len(self._known) > _REMEMBERED:
                _, gone = self._known.popitem(last=False)
                self._keys.pop(gone.path, None)


def fulfilling(items: Mapping[int, Facts], where: Sequence[Condition]) -> set[int]:
    """Return the keys of the items that fulfil conditions, by the database's own words for them."""
    if not where:
        return set(items)
    clauses = [condition.sql() for condition in where]
    rows = [
        (
            key,
            each.path,
            each.kind,
            each.modified_ns,
            each.size,
            json.dumps(each.metadata) if each.metadata else None,
        )
        for key, each in items.items()
    ]
    with closing(sqlite3.connect(":memory:")) as database:
        database.create_function("file_of", 1, lambda name: file_of(name.decode()), deterministic=True)
        database.execute(_TABLE)
        database.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", rows)
        text = "SELECT key FROM items WHERE " + " AND ".join(f"({clause})" for clause, _ in clauses)
        return {
            int(row[0])
            for row in database.execute(text, [value for _, values in clauses for value in values])
        }


def _open(model: QueryEmbedder, address: EngineAddress) -> tuple[ServedStore, Note]:
    """Open a store by what its place says of itself."""
    width = int(model.encode_text(["a photo"]).vectors.shape[-1])
    first = _served(address, (1, width))
    try:
        note = Note.read(first.note(), address.name)
        if note.model != model.fingerprint:
            raise IndexFormatError(
                f"{address.name} was filled by model {note.model}, not by {model.fingerprint}: use that model"
            )
        return _served(address, (note.embeddings, note.dim)), note
    finally:
        first.close()


def _served(address: EngineAddress, shape: tuple[int, int]) -> ServedStore:
    store = open_store(address.choice, address.folder, shape, url=address.url or None)
    if not isinstance(store, ServedStore):
        raise EngineError(
            f"the engine {address.choice.name} is part of the folder of an index: give that folder"
        )
    return store


def _nearest(
    queries: Float[np.ndarray, "M D"], count: int, within: Within, store: ServedStore
) -> list[Int[np.ndarray, "_"]]:
    return store.nearest(queries, count, within)


def _facts(keys: Int[np.ndarray, "n"], store: ServedStore) -> dict[int, Facts]:
    return store.facts(keys)


def _weights(queries: EmbeddedQueries) -> Any:
    """Return the weights in the form of the embeddings."""
    if queries.weights is None or isinstance(queries.parts, ArraySet):
        return queries.weights
    import torch

    return torch.from_numpy(queries.weights)


def _page(query: Query, hits: Sequence[Hit], chances: Chances, top_k: int) -> list[Hit]:
    others = [hit for hit in hits if hit.id != query.like][:top_k]
    ranked = [replace(hit, rank=rank) for rank, hit in enumerate(others, start=1)]
    return chances.of(ranked) if query.is_sentence else ranked
