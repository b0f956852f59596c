"""Searches over HTTP: what comes back is what the engine finds."""

import io
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from openvse.indexing import build_index
from openvse.indexing.readings import read_texts
from openvse.model.two_tower import TwoTower
from openvse.retrieval.hit_reranker import HitReranker
from openvse.search import Page, Query, SearchEngine
from openvse.serving.assistants import _compact
from openvse.serving.schemas import FOUND_EXAMPLE, HIT_EXAMPLE
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.conftest import draw_photo
from tests.serving.conftest import BOX, SIGN, WORDS, Place, Signs, client_of, png, write_pages

DOG = "a red dog runs"


@pytest.fixture(scope="module")
def engine(service: Service, model: TwoTower) -> SearchEngine:
    return SearchEngine(model, service.served.engine.catalogue.index)


def ids(reply: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in reply["hits"]]


@pytest.mark.medium
def test_a_sentence_finds_what_the_engine_finds(client: TestClient, engine: SearchEngine) -> None:
    reply = client.get("/api/search", params={"q": DOG, "top_k": 7}).json()
    expected = engine.search(DOG, top_k=7)
    assert ids(reply) == [hit.id for hit in expected]
    assert [hit["score"] for hit in reply["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert [hit["rank"] for hit in reply["hits"]] == list(range(1, 8))
    assert {*reply} == {*FOUND_EXAMPLE}  # docs/reference/rest.md lists these
    assert {*reply["hits"][0]} == {*HIT_EXAMPLE}
    assert reply["searched"] == 60 and reply["more"]


def test_pages_follow_each_other_and_end(client: TestClient, engine: SearchEngine) -> None:
    expected = [hit.id for hit in engine.search(DOG, top_k=60)]
    first = client.get("/api/search", params={"q": DOG, "top_k": 40}).json()
    last = client.get("/api/search", params={"q": DOG, "top_k": 40, "skip": 40}).json()
    assert ids(first) + ids(last) == expected
    assert last["hits"][0]["rank"] == 41
    assert first["more"] and not last["more"]


def test_several_queries_with_images_items_and_what_to_avoid(client: TestClient, engine: SearchEngine) -> None:
    key = client.get("/api/items", params={"id": "001.jpg"}).json()["key"]
    queries = [
        {"q": DOG},
        {"q": DOG, "like": key, "image_weight": 0.3},
        {"like_id": "trips/004.jpg"},
        {"q": DOG, "avoid": ["grass"], "avoid_weight": 0.7},
    ]
    reply = client.post("/api/search", json={"queries": queries, "top_k": 5}).json()
    expected = engine.search(
        [
            Query(DOG),
            Query(DOG, like="001.jpg", image_weight=0.3),
            Query(like="trips/004.jpg"),
            Query(DOG, avoid=("grass",), avoid_weight=0.7),
        ],
        5,
    )
    assert [ids(each) for each in reply["results"]] == [[hit.id for hit in hits] for hits in expected]


@pytest.mark.medium
def test_an_uploaded_image_alone_and_with_words(client: TestClient, engine: SearchEngine) -> None:
    content = png()
    sent = {"image": ("any name.png", content, "image/png")}
    alone = client.post("/api/search/image", params={"top_k": 5}, files=sent).json()
    assert ids(alone) == [hit.id for hit in engine.search(Query(image=content), top_k=5)]
    mixed = {"top_k": 5, "q": DOG, "image_weight": 0.2}
    both = client.post("/api/search/image", params=mixed, files=sent).json()
    expected = engine.search(Query(DOG, image=content, image_weight=0.2), 5)
    assert ids(both) == [hit.id for hit in expected]


@pytest.mark.medium
def test_an_image_is_sent_once_and_named_afterwards(client: TestClient, engine: SearchEngine) -> None:
    content = png()
    name = client.post("/api/images", files={"image": ("x", content, "")}).json()["image"]
    found = client.get("/api/search", params={"image": name, "top_k": 5}).json()
    assert ids(found) == [hit.id for hit in engine.search(Query(image=content), top_k=5)]
    asked = {"queries": [{"image": name}, {"q": DOG, "image": name}], "top_k": 5}
    alone, both = client.post("/api/search", json=asked).json()["results"]
    assert ids(alone) == ids(found)
    assert ids(both) == [hit.id for hit in engine.search(Query(DOG, image=content), 5)]
    shown = client.get(f"/api/images/{name}")
    assert shown.headers["content-type"] == "image/png" and shown.content.startswith(b"\x89PNG")
    large = draw_photo(3, (3000, 2000))
    again = client.post("/api/images", files={"image": ("x", png(large), "")}).json()["image"]
    with Image.open(io.BytesIO(client.get(f"/api/images/{again}").content)) as small:
        assert (small.format, small.size) == ("JPEG", (800, 533))
    two = client.post("/api/search/image", params={"image": name}, files={"image": png()})
    assert two.status_code == 422 and "image" in two.json()["error"]
    assert client.post("/api/images", files={"image": b"no image"}).status_code == 422


def test_hits_have_titles(client: TestClient) -> None:
    hits = client.get("/api/search", params={"q": DOG, "top_k": 3}).json()["hits"]
    assert {hit["title"] for hit in hits} <= set(WORDS)


def test_conditions_and_the_lowest_score(client: TestClient, engine: SearchEngine) -> None:
    where = ["year >= 2003", "path ~ trips/*"]
    reply = client.get("/api/search", params={"q": DOG, "where": where, "top_k": 50}).json()
    assert ids(reply) == [hit.id for hit in engine.answer(DOG, Page(top_k=50, where=tuple(where)))[0].hits]
    assert reply["searched"] == len(reply["hits"]) < 60
    middle = reply["hits"][2]["score"] - 1e-4
    assert reply["warnings"] == []
    unknown = client.get("/api/search", params={"q": DOG, "where": "yaer = 2003"}).json()
    assert (unknown["hits"], unknown["searched"]) == ([], 0) and "yaer" in unknown["warnings"][0]
    limited = client.get("/api/search", params={"q": DOG, "where": where, "min_score": middle}).json()
    assert ids(limited) == [hit["id"] for hit in reply["hits"] if hit["score"] >= middle]
    assert len(limited["hits"]) < len(reply["hits"]) and not limited["more"]


def test_text_that_was_read_and_one_hit_a_scene(own_place: Place, model: TwoTower) -> None:
    for name in ("bar.png", "again.png"):
        draw_photo(7, SIGN).save(own_place.photos / name)
    build_index(model, own_place.photos, own_place.index)
    read_texts(own_place.index, Signs())
    line = {"text": "Beach bar", "confidence": 0.98, "box": [*map(list, BOX)], "page": None}
    with client_of(Service(own_place.index, model, Settings())) as client:

        def hits(**asked: Any) -> list[dict[str, Any]]:
            return [*client.get("/api/search", params={"q": "the beach bar", **asked}).json()["hits"]]

        first, second, *others = hits()
        assert {first["id"], second["id"]} == {"bar.png", "again.png"} and len(others) == 8
        assert (first["text"], first["alike"], others[0]["text"]) == ([line], 0, [])
        assert client.get(f"/api/items/{first['key']}").json()["text"] == [line]
        (first, *others) = hits(one_per="scene")
        assert first["alike"] >= 1 and not {"bar.png", "again.png"} & {hit["id"] for hit in others}
        assert [hit["id"] for hit in hits(only="words", where="text ~ beach*")] == ["again.png", "bar.png"]


def test_the_page_of_a_text_is_named_and_shown(own_place: Place, model: TwoTower) -> None:
    write_pages(own_place, model)
    with client_of(Service(own_place.index, model, Settings())) as client:
        hit, *_ = client.get("/api/search", params={"q": "the beach bar"}).json()["hits"]
        assert (hit["id"], hit["text"][0]["page"]) == ("two.tif", 2)
        assert _compact(hit)["text"] == ["page 2: Beach bar"]
        shown = [client.get(f"{hit['thumbnail']}&page={page}") for page in range(4)]
        assert [each.status_code for each in shown] == [422, 200, 200, 404]
        assert [Image.open(io.BytesIO(each.content)).size for each in shown[1:3]] == [(40, 30), SIGN]


def test_similar_leaves_out_the_item(client: TestClient, engine: SearchEngine) -> None:
    key = client.get("/api/items", params={"id": "002.jpg"}).json()["key"]
    reply = client.get(f"/api/items/{key}/similar", params={"top_k": 5}).json()
    assert ids(reply) == [hit.id for hit in engine.search(Query(like="002.jpg"), 5)]
    assert "002.jpg" not in ids(reply)


@pytest.mark.medium
def test_the_second_model_moves_the_first_hits(client: TestClient, engine: SearchEngine, second: TwoTower) -> None:
    reply = client.get("/api/search", params={"q": DOG, "top_k": 8, "rerank": True}).json()
    first = engine.search(DOG, top_k=8)
    again = engine.answer(DOG, Page(top_k=8), HitReranker(second, top=5))[0].hits
    assert ids(reply) == [hit.id for hit in again]
    before = {hit.id: hit.rank for hit in first[:5]}
    assert [hit["was"] for hit in reply["hits"]] == [before.get(hit.id) for hit in again]
    later = client.get("/api/search", params={"q": DOG, "top_k": 8, "skip": 8, "rerank": True}).json()
    assert ids(later) == [hit.id for hit in engine.search(DOG, top_k=16)[8:]]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"q": " "}, 422, ""),
        ({"q": DOG, "top_k": 0}, 422, "top_k"),
        ({"q": DOG, "top_k": 201}, 422, "top_k"),
        ({"q": DOG, "sort": "x"}, 422, "sort"),
        ({"q": DOG, "where": "nonsense"}, 422, "nonsense"),
        ({"q": DOG, "where": "size > 99999999999999999999"}, 422, "99999999999999999999"),
        ({"q": DOG, "where": "date > 9999"}, 422, "9999"),
        ({"q": DOG, "where": "path ~ " + "*a" * 9}, 422, " 8 "),
        ({"q": DOG, "min_score": "nan"}, 422, "min_score"),
        ({"q": DOG, "min_precision": 0.5}, 422, "--calibrate"),
        ({"q": "x" * 1001}, 422, "1000"),
        ({"like": 999999}, 404, "999999"),
        ({"like_id": "../../etc/passwd"}, 404, "passwd"),
    ],
)
def test_what_cannot_be_answered_is_told_in_one_line(
    client: TestClient, given: dict[str, Any], status: int, words: str
) -> None:
    reply = client.get("/api/search", params=given)
    assert reply.status_code == status
    assert words in reply.json()["error"] and "\n" not in reply.json()["error"]


def test_unknown_words_are_told(client: TestClient) -> None:
    reply = client.get("/api/search", params={"q": "a red zeppelin"}).json()
    assert [each["word"] for each in reply["unknown_words"]] == ["zeppelin"]


def test_info_offers_what_the_page_needs(client: TestClient) -> None:
    info = client.get("/api/info").json()
    assert info["items"] == 60 and info["rerank"] == "second" and info["answer"] == "answerer"
    assert {"name": "year", "values": ["2000", "2001", "2002", "2003", "2004"]} in [
        {**each, "values": sorted(each["values"])} for each in info["fields"]
    ]
    assert "a red dog runs" in info["examples"]


def test_what_may_be_asked_is_described_with_examples(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    paths = described["paths"]
    assert {"/api/search", "/api/search/image", "/api/items/{key}/ask", "/health", "/metrics"} <= set(paths)
    assert "a dog on a beach" in str(paths["/api/search"]["get"]["parameters"])
    assert "holiday/0001.jpg" in str(paths["/api/search"]["get"]["responses"]["200"])
    assert all(each.get("description") for path in paths.values() for each in path.values())


@pytest.mark.medium
def test_uploads_of_phones_and_of_odd_shapes(client: TestClient) -> None:
    """A phone's 48 megapixels are accepted, and more in a JPEG, which is halved."""
    assert 8064 * 6048 <= Limits().upload_pixels < 9000 * 6000
    for kind, size in (("HEIF", (600, 300)), ("TIFF", (90, 60)), ("JPEG", (9000, 6000)), ("PNG", (1, 65_000))):
        content = io.BytesIO()
        if kind == "HEIF":
            pytest.importorskip("pillow_heif").register_heif_opener()
        Image.new("RGB", size, (200, 30, 30)).save(content, kind)
        reply = client.post("/api/search/image", files={"image": content.getvalue()})
        assert reply.status_code == 200 and reply.json()["hits"], (kind, reply.text)
