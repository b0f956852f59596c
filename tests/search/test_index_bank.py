"""The query bank of an index, and the order of a search with it, against loops written from the formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import DIM, engine_of, write

from openvse.errors import DataError, IndexFormatError
from openvse.indexing import Index
from openvse.runtime import ArraySet
from openvse.search import ExactSearch, Page, Query, SearchEngine
from openvse.search.bank import BANK, update_bank
from openvse.search.query import EmbeddedQueries

BANKED = [f"a sentence of the bank, number {number}" for number in range(40)]
ASKED = [f"a question, number {number}" for number in range(25)]
BETA = 12.0


def drawn(count: int, seed: int) -> np.ndarray:
    """Return random embeddings around one direction, so that some are near to all."""
    vectors = np.random.default_rng(seed).standard_normal((count, 1, DIM)) + 0.35
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class HashModel:
    """Embeds a sentence by its letters, always in the same way."""

    fingerprint: str = "random-1"
    kind: str = "inner"
    embedded: int = 0

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> ArraySet:
        self.embedded += len(captions)
        return ArraySet.full(
            np.concatenate([drawn(1, sum(map(ord, each)) * 131 + len(each)) for each in captions])
        )

    def encode_image(self, images: object) -> ArraySet:
        raise NotImplementedError


def vectors_of(index: Index) -> np.ndarray:
    return index.gather(np.arange(len(index)))[:, 0].astype(np.float64)


def slow_order(index: Index, sentences: Sequence[str], beta: float = BETA) -> list[list[str]]:
    """Return the ids in the order of the dynamic inverted softmax."""
    items, bank = vectors_of(index), HashModel().encode_text(BANKED).vectors[:, 0].astype(np.float64)
    hubs = {int((items @ query).argmax()) for query in bank}
    sums = [sum(math.exp(beta * float(item @ query)) for query in bank) for item in items]
    orders = []
    for query in HashModel().encode_text(sentences).vectors[:, 0].astype(np.float64):
        scores = items @ query
        if int(scores.argmax()) in hubs:
            scores = np.exp(beta * scores) / sums
        orders.append([index.table.ids[place] for place in np.argsort(-scores)])
    return orders


def held(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / BANK) as file:
        return dict(file)


def found(folder: Path, sentences: Sequence[str] = ASKED, top_k: int = 60) -> list[list[str]]:
    with SearchEngine(HashModel(), Index.open(folder)) as engine:
        return [[hit.id for hit in each.hits] for each in engine.answer(sentences, Page(top_k, only="looks"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "index", range(60), drawn(60, 0))
    return tmp_path / "index"


def test_a_search_orders_by_the_dynamic_inverted_softmax(folder: Path) -> None:
    plain = found(folder)
    assert update_bank(folder, HashModel(), BANKED, BETA) is not None
    index = Index.open(folder)
    assert found(folder) == slow_order(index, ASKED) != plain
    assert found(folder, top_k=3) == [order[:3] for order in slow_order(index, ASKED)]
    with SearchEngine(HashModel(), index) as engine:
        (answer,) = engine.answer(ASKED[0], Page(top_k=60, only="looks"))
        (likes,) = engine.search([Query(like=index.table.ids[3])], 60)
        (some,) = engine.answer(ASKED[0], Page(top_k=60, where=("kind = clip",), only="looks"))
    by_id = dict(
        zip(
            index.table.ids, vectors_of(index) @ HashModel().encode_text(ASKED[:1]).vectors[0, 0], strict=True
        )
    )
    assert [hit.score for hit in answer.hits] == pytest.approx(
        [by_id[hit.id] for hit in answer.hits], abs=1e-6
    )
    assert [hit.score for hit in likes] == sorted((hit.score for hit in likes), reverse=True)
    assert len(some.hits) == 20
    assert update_bank(folder, HashModel(), []) is None
    assert found(folder) == plain
    assert not [path for path in folder.iterdir() if "bank" in path.name]


@pytest.mark.medium
def test_it_follows_the_index_and_compares_only_what_is_new(folder: Path) -> None:
    update_bank(folder, HashModel(), BANKED, BETA)
    table, best_keys = Index.open(folder).table, held(folder)["best_keys"]
    gone = [int(table.ids[place][:5]) for place in np.flatnonzero(np.isin(table.keys, best_keys))[:4]]
    write(folder, range(55, 75), drawn(20, 5), gone)
    assert found(folder, top_k=80) == slow_order(Index.open(folder), ASKED)  # measured by the search
    model = HashModel()
    assert update_bank(folder, model) == {"sentences": len(BANKED), "beta": BETA}
    assert model.embedded == 0
    after = held(folder)
    update_bank(folder, model, BANKED, 5.0)
    update_bank(folder, model, BANKED, BETA)
    anew = held(folder)
    assert model.embedded == 0
    assert np.array_equal(after["keys"], anew["keys"])
    assert after["amounts"].dtype == np.float32
    assert after["amounts"] == pytest.approx(anew["amounts"], abs=1e-6)
    assert np.array_equal(after["best_keys"], anew["best_keys"])
    assert found(folder, top_k=80) == slow_order(Index.open(folder), ASKED)


@pytest.mark.medium
def test_sentences_are_embedded_once_and_again_by_another_model(folder: Path) -> None:
    model = HashModel()
    update_bank(folder, model, BANKED, BETA)
    update_bank(folder, model, BANKED, 5.0)
    assert model.embedded == len(BANKED)
    assert found(folder) == slow_order(Index.open(folder), ASKED, 5.0)
    for path in folder.glob("*"):
        if "bank" not in path.name:
            path.unlink()
    other = HashModel("random-2")
    _write_by(folder, "random-2")
    with SearchEngine(other, Index.open(folder)) as engine:
        engine.search(ASKED, 3)  # the bank is of the other model
    assert update_bank(folder, other) is not None
    assert other.embedded == len(ASKED) + len(BANKED)
    assert held(folder)["model"] == "random-2"


def _write_by(folder: Path, model: str) -> None:
    from openvse.indexing.database import Entry, Root
    from openvse.indexing.manifest import Item
    from openvse.indexing.writer import IndexWriter

    with IndexWriter(folder, model=model, roots=[Root(0, "/photos", "")]) as writer:
        writer.append([Entry(Item(f"{n}.jpg", n, n), 0, "image") for n in range(9)], drawn(9, 9))


@pytest.mark.medium
def test_a_store_proposes_for_the_exact_order(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    write(folder, range(6000), drawn(6000, 0))
    update_bank(folder, HashModel(), [f"another sentence {number}" for number in range(2000)], BETA)
    engine_of(folder, "int8")
    plain = ExactSearch(Index.open(folder).vector_files).search(
        EmbeddedQueries(HashModel().encode_text(ASKED), None), 1
    )[1]
    best_keys = held(folder)["best_keys"]
    assert np.isin(Index.open(folder).table.keys[plain[:, 0]], best_keys).sum() > 5  # so many are normalised
    with SearchEngine(HashModel(), Index.open(folder), engine="exact") as engine:
        exact = [[hit.id for hit in hits] for hits in engine.search(ASKED, 5)]
    by_store = found(folder, top_k=5)
    assert sum(len(set(one) & set(two)) for one, two in zip(by_store, exact, strict=True)) > 0.8 * 5 * len(
        ASKED
    )


@pytest.mark.medium
def test_what_is_refused(folder: Path) -> None:
    for beta in (0.0, math.inf, math.nan):
        with pytest.raises(DataError, match="beta"):
            update_bank(folder, HashModel(), BANKED, beta)
    with pytest.raises(IndexFormatError, match="random-1"):
        update_bank(folder, HashModel("other"), BANKED, BETA)
    update_bank(folder, HashModel(), BANKED, BETA)
    (folder / BANK).write_bytes((folder / BANK).read_bytes()[:200])
    with pytest.raises(IndexFormatError, match=r"--query-bank again"):
        found(folder)
    assert update_bank(folder, HashModel(), BANKED, BETA) is not None
    assert found(folder) == slow_order(Index.open(folder), ASKED)
