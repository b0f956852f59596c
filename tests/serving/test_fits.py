"""Judged hits: kept line by line, first or left out in their own search, a moved curve, and data for an evaluation."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from openvse.datasets import open_corpus
from openvse.errors import DataError, DiskError
from openvse.evaluation.places import Places
from openvse.indexing import Index
from openvse.model.two_tower import TwoTower
from openvse.scoring.calibration import Calibration, CalibrationData, moved_by
from openvse.search import Page, Query, SearchEngine
from openvse.search.hits import JUDGEMENTS, Judgements
from openvse.serving.served import Source
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from tests.serving.conftest import Place, client_of

SENTENCE = "a red dog runs there"
CURVE = Calibration("", CalibrationData("drawn", 60, 60, 60), (-1.0, 1.0), (0.0, 4.0), (1.0, 0.0))


def test_every_line_stays_and_the_last_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, other = (Judgements(tmp_path / JUDGEMENTS) for _ in range(2))
    assert (said.state, said.every()) == (None, {})
    said.add("A  Dog", "b.jpg", True)
    other.add("a dog", "é.jpg", False)
    assert said.of("a DOG ") == {"b.jpg": True, "é.jpg": False}
    with said.path.open("ab") as file:
        file.write(b'{"query": "a dog", "item": "b.jpg", "fi')  # a process was killed here
    other.add("a dog", "b.jpg", None)
    other.add("snow", "c.jpg", True)
    assert said.every() == {"a dog": {"é.jpg": False}, "snow": {"c.jpg": True}}
    assert said.path.read_bytes().count(b"\n") == 5 and said.path.read_bytes().endswith(b"}\n")
    with pytest.raises(DataError, match="sentence"):
        said.add(" ", "b.jpg", True)
    monkeypatch.setattr("os.fsync", lambda _: Path("/dev/full").write_bytes(b"x"))
    with pytest.raises(DiskError, match="stay"):
        said.add("a dog", "b.jpg", True)


def test_few_judgements_move_the_curve_little() -> None:
    judged = np.array([[0.9, 0], [0.8, 0], [0.3, 1], [0.7, 0]])
    moved = moved_by(judged)
    odds = np.log(judged[:, 0] / (1 - judged[:, 0])) + moved
    assert math.isclose((judged[:, 1] - 1 / (1 + np.exp(-odds))).sum(), moved, abs_tol=1e-4)
    assert moved_by(np.empty((0, 2))) == 0 and -1 < moved_by(judged[:1]) < 0 < moved_by(judged[2:3]) < 1
    assert CURVE.moved(0.5).probabilities(np.array(0.0)) == pytest.approx(1 / (1 + math.exp(-2.5) * 59))


def test_judged_hits_come_first_or_not_at_all_in_their_own_search(own_place: Place, model: TwoTower) -> None:
    with SearchEngine(model, own_place.index) as engine:
        engine.judgements = said = Judgements(own_place.index / JUDGEMENTS)
        before = [hit.id for hit in engine.search(SENTENCE, 8)]
        said.add(SENTENCE.upper(), before[-1], True)
        said.add(SENTENCE, before[0], False)
        said.add(SENTENCE, "gone.jpg", True)
        wanted = [before[-1], *before[1:-1]]
        assert [hit.id for hit in engine.search(SENTENCE, 8)] == wanted
        pages = [engine.answer(SENTENCE, Page(3, skip))[0] for skip in (0, 3, 6)]
        assert [[hit.id for hit in page.hits] for page in pages] == [wanted[:3], wanted[3:6], wanted[6:]]
        assert [page.more for page in pages] == [True, True, False]
        where = [f"path != {before[-1]}"]
        assert [hit.id for hit in engine.search(SENTENCE, 8, where=where)] == wanted[1:]
        assert len(engine.search("the green cat sleeps now", 8)) == 8
        assert len(engine.search(Query(SENTENCE, avoid=["grass"]), 8)) == 8
        said.add(SENTENCE, before[0], None)
        said.add(SENTENCE, before[-1], None)
        assert [hit.id for hit in engine.search(SENTENCE, 8)] == before


def test_all_judgements_move_probabilities(own_place: Place, model: TwoTower) -> None:
    with SearchEngine(model, own_place.index) as engine:
        engine.calibration = CURVE
        stated = {hit.id: hit.probability for hit in engine.search(SENTENCE, 8)}
        engine.judgements = said = Judgements(own_place.index / JUDGEMENTS)
        first, *_, last = stated
        said.add(SENTENCE, first, False)
        said.add(SENTENCE, last, False)
        moved = moved_by(np.array([[stated[first], 0], [stated[last], 0]]))
        assert moved < 0 and engine.moved_by_judgements() == (pytest.approx(moved, abs=1e-4), 2)
        (hit,) = engine.search(SENTENCE, 1)
        odds = math.log(stated[hit.id] / (1 - stated[hit.id])) + moved
        assert hit.probability == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-4)


@pytest.fixture
def learning(own_place: Place, model: TwoTower) -> Iterator[TestClient]:
    with client_of(Service(Source(own_place.index, judged=True), model, Settings())) as client:
        yield client


@pytest.mark.medium
def test_hits_are_judged_over_http_and_only_if_asked_for(
    learning: TestClient, client: TestClient, own_place: Place, model: TwoTower
) -> None:
    assert client.get("/api/judgements", params={"text": SENTENCE}).status_code == 404
    assert (client.get("/api/info").json()["judges"], learning.get("/api/info").json()["judges"]) == (False, True)
    hits = learning.get("/api/search", params={"text": SENTENCE, "top_k": 8}).json()["hits"]
    said = {"text": SENTENCE, "key": hits[3]["key"], "fits": True}
    shown = {"items": [{"key": hits[3]["key"], "id": hits[3]["id"], "fits": True}], "moving": 0, "half_is_now": 0.5}
    assert learning.post("/api/judgements", json=said).json() == shown
    again = learning.get("/api/search", params={"text": SENTENCE, "top_k": 1}).json()["hits"]
    assert again[0]["id"] == hits[3]["id"]
    assert learning.post("/api/judgements", json={**said, "fits": None}).json()["items"] == []
    assert learning.post("/api/judgements", json={**said, "key": 10**6}).status_code == 404
    assert learning.post("/api/judgements", json={**said, "fits": 3}).status_code == 422
    foreign = {"origin": "https://elsewhere.example"}
    assert learning.post("/api/judgements", json=said, headers=foreign).status_code == 403
    assert (own_place.index / JUDGEMENTS).read_text().count("\n") == 2
    open_to_all = Settings(host="0.0.0.0", allow_public=True)
    assert not Service(Source(own_place.index, judged=True), model, open_to_all).judges


def test_judgements_are_data_for_an_evaluation(own_place: Place) -> None:
    with pytest.raises(DataError, match="judged"):
        open_corpus(f"judged:{own_place.index}")
    said, ids = Judgements(own_place.index / JUDGEMENTS), Index.open(own_place.index).table.ids
    for item, fits in ((ids[2], True), (ids[0], False), (ids[5], True)):
        said.add("a dog", item, fits)
    said.add("snow", ids[1], False)
    said.add("a cat", ids[2], True)
    corpus = open_corpus(f"judged:{own_place.index}")
    assert (len(corpus), corpus.captions, set(corpus.splits)) == (8, ("a dog", "a cat"), {"test"})
    assert (corpus.relevance.images.tolist(), corpus.relevance.texts.tolist()) == ([2, 5, 2], [0, 0, 1])
    places = Places(np.array([0, 0, 1, 2]), np.array([1, 10, 11, 3]), 50)
    assert places.precision().tolist() == [0.2, 0.0, 0.1]
    assert replace(places, num_candidates=5).precision().tolist() == [0.4, 0.0, 0.2]
