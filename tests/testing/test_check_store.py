"""The contract of stores: our own keep it, and broken ones are named."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from colour_model import ColourModel
from local_qdrant import LOCAL, local_qdrant  # noqa: F401 - a fixture of all tests here
from openvse.errors import EngineError
from openvse.indexing import Index
from openvse.search import SearchEngine
from openvse.stores import STORES, EngineAddress, ItemFacts, StoreKind, VectorStore, Within
from openvse.stores.following import plan_engine, update_engine
from openvse_testing import BrokenContractError, check_store
from tests.search.engine_helpers import unit, write

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore:Local mode", "ignore:Payload indexes")]


class PlainStore(VectorStore):
    """A store of one's own: a dictionary that every place shares, in a few lines."""

    places: ClassVar[dict[str, dict[int, np.ndarray]]] = {}

    def __init__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None:
        if not create and str(address) not in self.places:
            raise EngineError(f"{address} is missing")
        self._name, self._num_embeddings = str(address), num_embeddings
        self.held = self.places.setdefault(self._name, {})

    def put(self, keys: np.ndarray, vectors: np.ndarray, facts: list[ItemFacts]) -> None:
        self.held.update(zip(keys.tolist(), vectors, strict=True))

    def remove(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            self.held.pop(key, None)

    def nearest(self, queries: np.ndarray, count: int, within: Within) -> list[np.ndarray]:
        keys = np.repeat(np.array([*self.held], np.int64), self._num_embeddings)
        points = np.concatenate([*self.held.values()])
        return [keys[np.argsort(-(points @ query))[:count]] for query in queries]

    def num_points(self) -> int:
        return len(self.held) * self._num_embeddings

    def finish(self) -> None: ...

    def drop(self) -> None:
        self.places.pop(self._name, None)

    def close(self) -> None: ...


@pytest.mark.parametrize("name", STORES.names())
def test_our_stores_keep_the_contract(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = ""
    if name in ("pgvector", "qdrant"):
        url = request.getfixturevalue("postgres") if name == "pgvector" else LOCAL
    check_store(STORES.get(name), EngineAddress(name, "openvse_0123456789ab", url, tmp_path, url))


def test_a_store_of_ones_own_is_one_class_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_store(PlainStore, EngineAddress("plain", "mine", folder=tmp_path))
    monkeypatch.setattr(STORES, "_parts", dict(STORES._parts))
    STORES.add("plain", StoreKind(PlainStore))
    write(tmp_path / "index", range(30), unit(30))
    plan_engine(tmp_path / "index", "plain").note(tmp_path / "index")
    assert update_engine(tmp_path / "index").put == 30
    model, index = ColourModel(fingerprint="random-1"), Index.open(tmp_path / "index")
    engine = SearchEngine(model, index)
    assert engine.catalogue.searcher.name == "plain"


@pytest.mark.parametrize(
    ("method", "broken", "promise"),
    [
        ("remove", lambda self, keys: None, "follows changes"),
        ("num_points", lambda self: 7, "opens what was made"),
        ("nearest", lambda self, queries, count, within: [np.empty(0, np.int64)] * len(queries), "finds the nearest"),
        ("drop", lambda self: None, "drops everything"),
    ],
)
def test_broken_stores_are_named(
    method: str, broken: object, promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainStore, method, broken)
    monkeypatch.setattr(PlainStore, "places", {})
    with pytest.raises(BrokenContractError, match=promise):
        check_store(PlainStore, EngineAddress("plain", "mine", folder=tmp_path))
