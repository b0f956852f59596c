"""The contract of a store of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from unicodedata import normalize

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import EngineError
from openvse.indexing.conditions import parse_condition
from openvse.search.catalogue import fulfilling
from openvse.stores import EngineAddress, ItemFacts, VectorStore, Within
from openvse.stores.base import CatalogueStore
from openvse_testing.contract import hold, part_name, require

OpenStore: TypeAlias = Callable[..., VectorStore]
"""A store's class, or its ``StoreKind``, called with an address, K, D, and ``create``."""

COUNT, DIM = 60, 8
CONDITIONS = (
    "kind = clip",
    "size >= 40",
    "date >= 2001-09-09T01:47",
    "year = 2003",
    "year < 2002",
    "tags = t1",
    "städte = Köln",  # composed, while half of the metadata are decomposed
    "städte < 3",
    "taken >= 2010",
    "date < 2005",
    "date = 2001-09-09",
    "near = 0,10,900km",
)


def check_store(opens: OpenStore, address: EngineAddress) -> None:
    """Check that a store keeps its items, finds the nearest of them, and follows every change.

    It opens an existing place, and refuses a missing one. Items are found, replaced and removed, also after it was
    closed and opened again. A change can be repeated. It finds the nearest items of one and of several embeddings.
    Conditions never hide an item that fulfils them. A store that can be searched without its index returns its facts
    and embeddings. ``drop`` leaves nothing.

    Args:
        opens: the store's class, or its ``StoreKind``.
        address: a place that does not exist yet. It is removed again.

    Raises:
        BrokenContractError: a promise is broken. The message names each.

    Examples:
        >>> check_store(MyStore, EngineAddress("mine", "points", folder=tmp_path))  # doctest: +SKIP
    """
    hold(_Place(opens, address), STORE_PROMISES, part_name(opens))


@dataclass(frozen=True)
class _Place:
    """A store under test, and the place for its data."""

    opens: OpenStore
    address: EngineAddress

    @contextmanager
    def filled(self, num_embeddings: int = 1) -> Iterator[VectorStore]:
        """Yield a store that holds items, and remove it afterwards."""
        store = self.opens(self.address, num_embeddings, DIM, create=True)
        try:
            store.put(KEYS, vectors_of(num_embeddings), FACTS)
            store.finish()
            yield store
        finally:
            store.drop()
            store.close()


KEYS = np.arange(3, 3 + COUNT, dtype=np.int64)
FACTS = [
    ItemFacts(
        f"{key:05d}.jpg",
        "clip" if key % 3 == 0 else "image",
        10**18 + key * 10**9,
        key,
        {
            "year": 2000 + key % 7,
            "tags": ["snow", f"t{key % 4}"],
            normalize(("NFC", "NFD")[key % 2], "städte"): [normalize(("NFC", "NFD")[key // 2 % 2], "Köln"), key % 5],
            **({"taken": f"20{key % 30:02}-03", "latitude": key - 30, "longitude": 10} if key % 2 else {}),
            **({"date": "2004-05" if key % 2 else 2004} if key % 5 == 0 else {}),
        },
    )
    for key in KEYS.tolist()
]


def vectors_of(num_embeddings: int, seed: int = 0) -> Float[np.ndarray, "n K D"]:
    """Return embeddings of unit length."""
    drawn = np.random.default_rng(seed).normal(size=(COUNT, num_embeddings, DIM)).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))


def _nearest(vectors: Float[np.ndarray, "n K D"], query: Float[np.ndarray, "D"]) -> list[int]:
    """Return the keys of all items, the nearest first."""
    return [int(KEYS[place]) for place in np.argsort(-(vectors @ query).max(axis=1))]


def _proposed(store: VectorStore, query: Float[np.ndarray, "D"], count: int, within: Within) -> list[int]:
    (keys,) = store.nearest(query[np.newaxis], count, within)
    return list(dict.fromkeys(np.asarray(keys).tolist()))


def _all(store: VectorStore) -> set[int]:
    return set(_proposed(store, QUERY, 10 * COUNT, Within()))


QUERY = vectors_of(1, seed=1)[0, 0]


def _is_refused(place: _Place) -> bool:
    """Return whether a place cannot be opened, because there is none."""
    try:
        place.opens(place.address, 1, DIM).close()
    except EngineError:
        return True
    return False


def _opens_what_was_made(place: _Place) -> None:
    require(_is_refused(place), "a place that was never made is opened: raise EngineError")
    with place.filled() as store:
        require(store.num_points() == COUNT, f"num_points is {store.num_points()} of {COUNT}")
        again = place.opens(place.address, 1, DIM)
        require(_all(again) == set(KEYS.tolist()), "items are missing when the store is opened again")
        again.close()


def _finds_the_nearest(place: _Place) -> None:
    for num_embeddings in (1, 3):
        with place.filled(num_embeddings) as store:
            count = 5 * num_embeddings
            nearest = _proposed(store, QUERY, count, Within())
            best = _nearest(vectors_of(num_embeddings), QUERY)[: len(nearest)]
            shared = len(set(nearest) & set(best)) / max(1, len(best))
            require(
                len(nearest) >= 2 and shared >= 0.6, f"of K = {num_embeddings}, {nearest} are found, and not {best}"
            )
            both = store.nearest(np.stack([QUERY, -QUERY]), count, Within())
            require(len(both) == 2 and set(both[0]) != set(both[1]), "several queries do not have answers of their own")


def _follows_changes(place: _Place) -> None:
    with place.filled(2) as store:
        some: Int[np.ndarray, "n"] = KEYS[:10]
        for _ in range(2):  # every change can be repeated
            store.remove(some)
            require(_all(store) == set(KEYS[10:].tolist()), "removed items are still found")
        other = vectors_of(2, seed=5)
        for _ in range(2):
            store.put(KEYS, other, FACTS)
            store.finish()
        require(store.num_points() == 2 * COUNT, "items that are put again are not replaced")
        first = _proposed(store, other[7, 0], 2, Within())[0]
        require(first == int(KEYS[7]), "the new embeddings of an item are not found")


def _hides_nothing(place: _Place) -> None:
    items = dict(zip(KEYS.tolist(), FACTS, strict=True))
    with place.filled() as store:
        for text in CONDITIONS:
            where = (parse_condition(text),)
            wanted = fulfilling(items, where)
            nearest = set(_proposed(store, QUERY, COUNT, Within(where, np.array(sorted(wanted), np.int64))))
            require(wanted <= nearest, f"{text} hides the items {sorted(wanted - nearest)}")


def _returns_what_it_was_given(place: _Place) -> None:
    with place.filled(2) as store:
        if not isinstance(store, CatalogueStore):
            return
        held, vectors = store.facts(KEYS[:5]), store.vectors(KEYS[:5])
        for number, key in enumerate(KEYS[:5].tolist()):
            require(held.get(key) == FACTS[number], f"facts of item {key} are {held.get(key)}")
            require(key in vectors, f"the embeddings of item {key} are missing")
            same = np.sort(vectors[key], axis=0) - np.sort(vectors_of(2)[number], axis=0)
            require(bool(np.abs(same).max() < 1e-3), f"the embeddings of item {key} have changed")
        require(store.key_of(FACTS[3].path) == int(KEYS[3]), "key_of does not find an item by its id")
        require(store.key_of("nothing") is None, "key_of finds an item that was never put")
        note = {"format": "openvse-engine", "model": "m"}
        store.write_note(note)
        require(store.note() == note, "the note differs from the written one")


def _drops_everything(place: _Place) -> None:
    with place.filled():
        pass
    require(_is_refused(place), "a dropped store is opened again: raise EngineError")


STORE_PROMISES = (
    _opens_what_was_made,
    _finds_the_nearest,
    _follows_changes,
    _hides_nothing,
    _returns_what_it_was_given,
    _drops_everything,
)
