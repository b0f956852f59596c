"""The query bank of an index, and the order of a search with it, against loops written from the formula."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import DIM, engine_of, write

from openvse.errors import DataError, IndexFormatError
from openvse.indexing import Index
from openvse.indexing.writer import IndexFolder
from openvse.runtime.arrays import ArraySet
from openvse.scoring.hubs import BANK, BankQueries, QueryBank
from openvse.search import Page, Query, SearchEngine
from openvse.search import bank as bank_of_index
from openvse.search.updating import IndexSettings
from tests.naming import names, refusal

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
    query_bank: QueryBank | None = None

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> ArraySet:
        self.embedded += len(captions)
        return ArraySet.full(np.concatenate([drawn(1, sum(map(ord, each)) * 131 + len(each)) for each in captions]))

    def encode_image(self, images: object) -> ArraySet:
        raise NotImplementedError


def vectors_of(index: Index) -> np.ndarray:
    return index.gather(np.arange(len(index)))[:, 0].astype(np.float64)


def kept_bank(model: str = "random-1", seed: int = 3) -> QueryBank:
    """Return a bank that a model keeps."""
    side = [
        BankQueries(drawn(30, seed + each).astype(np.float16), np.ones((30, 1), bool), 15, beta)
        for each, beta in enumerate((BETA, 9.0))
    ]
    return QueryBank(model, *side)


def slow_order(index: Index, sentences: Sequence[str], bank: np.ndarray, beta: float = BETA) -> list[list[str]]:
    """Return the ids in the order of the scores less what is reliable of the attraction."""
    items = vectors_of(index)
    middle = len(bank) // 2

    def soft_mean(item: np.ndarray, queries: np.ndarray) -> float:
        return math.log(sum(math.exp(beta * float(item @ query)) for query in queries) / len(queries)) / beta

    one, two, whole = (
        np.array([soft_mean(item, part) for item in items]) for part in (bank[:middle], bank[middle:], bank)
    )
    c = math.tanh(math.atanh(float(np.corrcoef(one, two)[0, 1])) - 1 / math.sqrt(len(items) - 3))
    assert c > 0
    orders = []
    for query in HashModel().encode_text(sentences).vectors[:, 0].astype(np.float64):
        scores = items @ query - 2 * c / (1 + c) * whole
        orders.append([index.table.ids[place] for place in np.argsort(-scores)])
    return orders


def banked() -> np.ndarray:
    return HashModel().encode_text(BANKED).vectors[:, 0].astype(np.float16).astype(np.float64)


def of_kept(bank: QueryBank) -> np.ndarray:
    return bank.texts.vectors[:, 0].astype(np.float64)


def held(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / BANK) as file:
        return dict(file)


def update_bank(
    folder: Path, model: HashModel, sentences: Sequence[str] | None = None
) -> Mapping[str, int | float | str] | None:
    with IndexFolder(folder) as opened:
        index = opened.find()
        assert index is not None
        return bank_of_index.update_bank(index, model, sentences)


def found(folder: Path, sentences: Sequence[str] = ASKED, top_k: int = 60) -> list[list[str]]:
    with SearchEngine(HashModel(), Index.open(folder)) as engine:
        return [[hit.id for hit in each.hits] for each in engine.answer(sentences, Page(top_k, only="similarity"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "index", range(60), drawn(60, 0))
    return tmp_path / "index"


def test_a_search_takes_hubs_out_by_the_bank_of_the_model(folder: Path) -> None:
    plain, bank = found(folder), kept_bank()
    told = update_bank(folder, HashModel(query_bank=bank))
    assert told is not None and (told["queries"], told["source"]) == (30, "model")
    assert 0 < float(told["reliability"]) < 1
    index = Index.open(folder)
    assert found(folder) == slow_order(index, ASKED, of_kept(bank)) != plain
    assert found(folder, top_k=3) == [order[:3] for order in slow_order(index, ASKED, of_kept(bank))]
    with SearchEngine(HashModel(), index) as engine:
        (answer,) = engine.answer(ASKED[0], Page(top_k=60, only="similarity"))
        (likes,) = engine.search([Query(like=index.table.ids[3])], 60)
        (some,) = engine.answer(ASKED[0], Page(top_k=60, where=("kind = clip",), only="similarity"))
    by_id = dict(
        zip(index.table.ids, vectors_of(index) @ HashModel().encode_text(ASKED[:1]).vectors[0, 0], strict=True)
    )
    assert [hit.score for hit in answer.hits] == pytest.approx([by_id[hit.id] for hit in answer.hits], abs=1e-6)
    assert [hit.score for hit in likes] == sorted((hit.score for hit in likes), reverse=True)
    assert len(some.hits) == 20


@pytest.mark.medium
def test_pages_above_a_score_are_parts_of_the_whole_order(folder: Path) -> None:
    update_bank(folder, HashModel(query_bank=kept_bank()))
    with SearchEngine(HashModel(), Index.open(folder)) as engine:
        for sentence in ASKED[:8]:
            whole = engine.answer(sentence, Page(top_k=60))[0].hits
            scores = sorted((hit.score for hit in whole), reverse=True)
            assert [hit.score for hit in whole] != scores  # hubs stand further behind than their scores say
            for many in (6, 15, 40):
                least = scores[many - 1]
                good = [hit.id for hit in whole if hit.score >= least]
                for skip in range(0, many + 5, 5):
                    answer = engine.answer(sentence, Page(top_k=5, skip=skip, min_score=least))[0]
                    assert [hit.id for hit in answer.hits] == good[skip : skip + 5]
                    assert answer.more is (len(good) > skip + 5)


def test_none_is_remembered_and_named_sentences_are_kept(folder: Path) -> None:
    plain, model = found(folder), HashModel(query_bank=kept_bank())
    update_bank(folder, model)
    assert found(folder) != plain
    assert update_bank(folder, model, []) is None
    assert update_bank(folder, model) is None
    assert found(folder) == plain
    told = update_bank(folder, model, BANKED)
    assert told is not None and (told["queries"], told["source"]) == (len(BANKED), "given")
    assert update_bank(folder, model) == told
    assert update_bank(folder, model, BANKED) == told
    assert model.embedded == len(BANKED)
    assert found(folder) == slow_order(Index.open(folder), ASKED, banked())  # at the beta of the model


@pytest.mark.medium
def test_an_index_that_grows_equals_one_that_is_made_at_once(folder: Path, tmp_path: Path) -> None:
    model = HashModel(query_bank=kept_bank())
    update_bank(folder, model)
    write(folder, range(55, 75), drawn(20, 5), [3, 9])
    by_search = found(folder, top_k=80)  # which compares what is new
    assert by_search == slow_order(Index.open(folder), ASKED, of_kept(kept_bank()))
    update_bank(folder, model)
    grown = held(folder)
    (folder / BANK).unlink()
    update_bank(folder, model)
    at_once = held(folder)
    assert np.array_equal(grown["keys"], at_once["keys"])
    assert np.array_equal(grown["halves"], at_once["halves"]) and grown["halves"].dtype == np.float32
    assert grown["beta"] == at_once["beta"] == BETA
    assert found(folder, top_k=80) == by_search


def test_without_the_bank_of_a_model_beta_is_measured_once(folder: Path) -> None:
    update_bank(folder, HashModel(), BANKED)
    index = Index.open(folder)
    beta = 2 / (vectors_of(index) @ banked().T).std(axis=0).mean()
    assert held(folder)["beta"] == pytest.approx(beta, rel=1e-5)
    assert found(folder) == slow_order(index, ASKED, banked(), beta)
    write(folder, range(60, 90), drawn(30, 5))
    update_bank(folder, HashModel())
    assert held(folder)["beta"] == pytest.approx(beta, rel=1e-5)


@pytest.mark.medium
def test_the_bank_of_another_model_is_replaced(folder: Path) -> None:
    update_bank(folder, HashModel(query_bank=kept_bank()))
    for path in folder.glob("*"):
        if "bank" not in path.name:
            path.unlink()
    other = HashModel("random-2", query_bank=kept_bank("random-2", 8))
    _write_by(folder, "random-2")
    with SearchEngine(other, Index.open(folder)) as engine:
        hits = engine.answer(ASKED[0], Page(9, only="similarity"))[0].hits  # the bank is of the other model
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert update_bank(folder, other) is not None
    assert held(folder)["model"] == "random-2"
    assert np.array_equal(held(folder)["vectors"], kept_bank("random-2", 8).texts.vectors)
    for path in folder.glob("*"):
        if "bank" not in path.name:
            path.unlink()
    _write_by(folder, "random-3")
    assert update_bank(folder, HashModel("random-3")) is None
    assert not (folder / BANK).exists()


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
    update_bank(folder, HashModel(query_bank=kept_bank()))
    engine_of(folder, "int8")
    with SearchEngine(HashModel(), Index.open(folder), engine="exact") as engine:
        exact = [[hit.id for hit in hits] for hits in engine.search(ASKED, 5)]
    by_store = found(folder, top_k=5)
    assert sum(len(set(one) & set(two)) for one, two in zip(by_store, exact, strict=True)) > 0.8 * 5 * len(ASKED)


@pytest.mark.medium
def test_what_is_refused(folder: Path) -> None:
    refusal(DataError, IndexSettings, query_bank=["one sentence"])
    update_bank(folder, HashModel(), BANKED)
    (folder / BANK).write_bytes((folder / BANK).read_bytes()[:200])
    assert names(refusal(IndexFormatError, found, folder), "query_bank.npz", "--query-bank")
    refusal(IndexFormatError, lambda: update_bank(folder, HashModel()))
    assert update_bank(folder, HashModel(query_bank=kept_bank())) is not None  # from the model
    assert found(folder) == slow_order(Index.open(folder), ASKED, of_kept(kept_bank()))
