"""Items over HTTP: what is known of them, their files and no others, and what the models say of them."""

import io
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from openvse.cli.commands.serve import announce
from openvse.errors import DataError, MissingItemError, ModelError
from openvse.functional import pad
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import IndexSettings, read_manifest
from openvse.model.two_tower import TwoTower
from openvse.serving.service import Service, open_file
from openvse.serving.settings import Settings
from openvse.tasks.looking import look
from tests.conftest import draw_photo
from tests.serving.conftest import Place, client_of, make_model, png


def key_of(client: TestClient, item_id: str) -> int:
    return int(client.get("/api/items", params={"id": item_id}).json()["key"])


@pytest.mark.medium
def test_an_item_is_described(client: TestClient, place: Place) -> None:
    item = client.get(f"/api/items/{key_of(client, 'trips/004.jpg')}").json()
    assert (item["id"], item["name"], item["kind"]) == ("trips/004.jpg", "004.jpg", "image")
    assert item["captions"] == ["the green cat sleeps"] and item["metadata"]["year"] == 2004
    assert item["size"] == (place.photos / "trips/004.jpg").stat().st_size


@pytest.mark.medium
def test_thumbnails_are_small_and_not_sent_twice(client: TestClient) -> None:
    hit = client.get("/api/search", params={"q": "grass", "top_k": 1}).json()["hits"][0]
    reply = client.get(hit["thumbnail"])
    assert reply.headers["content-type"] == "image/webp" and "immutable" in reply.headers["cache-control"]
    assert Image.open(io.BytesIO(reply.content)).size == (96, 72)
    again = client.get(hit["thumbnail"], headers={"if-none-match": reply.headers["etag"]})
    assert again.status_code == 304 and not again.content


def test_the_original_is_sent_as_it_is_and_cannot_run_anything(client: TestClient, place: Place) -> None:
    reply = client.get(f"/api/items/{key_of(client, '001.jpg')}/file")
    assert reply.content == (place.photos / "001.jpg").read_bytes()
    assert reply.headers["content-type"] == "image/jpeg"
    assert reply.headers["content-security-policy"] == ("default-src 'none'; img-src 'self'; media-src 'self'; sandbox")


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-99", 0, 99),
        ("bytes=100-", 100, -1),
        ("bytes=-50", -50, -1),
        ("bytes=10-999999999", 10, -1),
        ("bytes=-999999999", 0, -1),
    ],
)
def test_a_browser_gets_the_part_that_it_asks_for(
    client: TestClient, place: Place, asked: str, first: int, last: int
) -> None:
    whole = (place.photos / "001.jpg").read_bytes()
    address = f"/api/items/{key_of(client, '001.jpg')}/file"
    reply = client.get(address, headers={"range": asked})
    first, last = first % len(whole), last % len(whole)
    assert (reply.status_code, reply.content) == (206, whole[first : last + 1])
    assert reply.headers["content-range"] == f"bytes {first}-{last}/{len(whole)}"
    assert reply.headers["content-length"] == str(last + 1 - first)
    assert reply.headers["accept-ranges"] == "bytes" and "content-encoding" not in reply.headers
    tag = reply.headers["etag"]
    same = client.get(address, headers={"range": asked, "if-range": tag})
    changed = client.get(address, headers={"range": asked, "if-range": '"another"'})
    assert (same.status_code, changed.status_code, changed.content) == (206, 200, whole)


@pytest.mark.parametrize(
    ("asked", "status"), [("bytes=999999999-", 416), ("bytes=-0", 416), ("bytes=9-3", 400), ("lines=1-2", 400)]
)
def test_a_part_that_there_is_not(client: TestClient, place: Place, asked: str, status: int) -> None:
    size = (place.photos / "001.jpg").stat().st_size
    reply = client.get(f"/api/items/{key_of(client, '001.jpg')}/file", headers={"range": asked})
    assert reply.status_code == status
    assert reply.headers.get("content-range") == (f"bytes */{size}" if status == 416 else None)


def test_files_are_closed_whatever_is_asked(client: TestClient) -> None:
    address, files = f"/api/items/{key_of(client, '001.jpg')}/file", Path("/dev/fd")
    before = len([*files.iterdir()])
    for asked in ("", "bytes=0-9", "bytes=0-1,5-6", "bytes=999999999-", "nonsense"):
        client.get(address, headers={"range": asked} if asked else {})
    assert len([*files.iterdir()]) <= before


def test_a_file_that_is_swapped_after_the_check_stays_where_it_is(tmp_path: Path) -> None:
    for folder in ("photos", "secret"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jpg").write_bytes(folder.encode())
    checked = (tmp_path / "photos" / "a.jpg").resolve()
    with open_file(checked) as file:
        assert file.read() == b"photos"
    (tmp_path / "photos").rename(tmp_path / "before")
    (tmp_path / "photos").symlink_to(tmp_path / "secret")
    with pytest.raises(MissingItemError, match=r"a\.jpg"):
        open_file(checked)


@pytest.mark.medium
def test_only_files_below_the_folder_leave_it(own_place: Place, model: TwoTower, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    draw_photo(9).save(secret)
    with client_of(Service(own_place.index, model, Settings())) as client:
        key, linked = key_of(client, "001.jpg"), key_of(client, "002.jpg")
        (own_place.photos / "001.jpg").unlink()
        (own_place.photos / "001.jpg").symlink_to(secret)
        (own_place.photos / "002.jpg").unlink()
        (own_place.photos / "002.jpg").symlink_to(own_place.photos / "003.jpg")
        shutil.rmtree(own_place.photos / "trips")
        (own_place.photos / "trips").symlink_to("/etc")
        gone = client.get("/api/search", params={"q": "grass", "where": "path ~ trips/*"}).json()["hits"]
        for each in (key, gone[0]["key"]):
            for kind in ("file", "thumbnail", "looked?q=grass"):
                reply = client.get(f"/api/items/{each}/{kind}")
                assert reply.status_code == 404 and "secret" not in reply.text, kind
        inside = client.get(f"/api/items/{linked}/file")
        assert inside.content == (own_place.photos / "003.jpg").read_bytes()


@pytest.mark.medium
def test_items_behind_followed_links_are_shown(own_place: Place, model: TwoTower, tmp_path: Path) -> None:
    draw_photo(9).save(tmp_path / "far.jpg")
    (own_place.photos / "far.jpg").symlink_to(tmp_path / "far.jpg")
    for follows, status in ((False, 404), (True, 200)):
        build_index(model, own_place.photos, own_place.index, settings=IndexSettings(follow_links=follows))
        with client_of(Service(own_place.index, model, Settings())) as client:
            key = key_of(client, "far.jpg")
            for kind in ("file", "thumbnail"):
                assert client.get(f"/api/items/{key}/{kind}").status_code == status
            assert client.get("/api/items/999999/file").status_code == 404
    outside = own_place.photos / ".." / "far.jpg"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Index, "image_path", lambda index, position: outside)
        with client_of(Service(own_place.index, model, Settings())) as client:
            assert client.get(f"/api/items/{key}/file").status_code == 404


@pytest.mark.medium
def test_a_root_far_from_the_index_is_told_at_the_start(
    own_place: Place, model: TwoTower, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Service(own_place.index, model, Settings()).served.far_roots == []
    for root in ("/", "/elsewhere/of/another"):
        with closing(sqlite3.connect(own_place.index / read_manifest(own_place.index).items)) as database:
            database.execute("UPDATE roots SET path = ?", (root,))
            database.commit()
        service = Service(own_place.index, model, Settings())
        announce(service)
        assert service.served.far_roots == [Path(root)] and f"images below {root}" in capsys.readouterr().err


def test_shares_add_up_to_the_score(model: TwoTower) -> None:
    photo, sentence = draw_photo(4, (64, 64)), "the green cat sleeps"
    looked = look(model, photo, sentence)
    score = float(model.score(model.encode_image([photo]), model.encode_text([sentence])))
    assert float(looked.shares.sum()) == pytest.approx(score, abs=1e-4)
    assert float(looked.word_shares.sum()) == pytest.approx(score, abs=1e-4)
    assert looked.boxes.shape == (4, 4) and looked.tiled
    assert looked.words == ["<start>", "the", "green", "cat", "sleeps", "<end>"]


@pytest.mark.medium
def test_shares_belong_to_their_parts(model: TwoTower) -> None:
    """What a part adds is what the score loses, with lengths held, when the part says nothing (for a mean)."""
    mean = make_model(0, "mean")
    photo, sentence = draw_photo(5, (64, 64)), "a red dog runs"
    looked = look(mean, photo, sentence)
    with torch.no_grad():
        local = mean.image.encoder(mean.read_images([photo])).local[0]
        whole = local.mean(dim=0)
        text = mean.text(pad(mean.text.encoder.tokenize([sentence]))).vectors[0, 0]
        expected = (local / len(local)) @ text / whole.norm()
    torch.testing.assert_close(looked.shares, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.medium
def test_of_several_views_the_best_is_shown() -> None:
    views = make_model(0, {"name": "pie_net", "num_embeddings": 3}, {"global_vector": "mean"})
    looked = look(views, draw_photo(6, (64, 64)), "two blue birds in the water")
    assert looked.view[1] == 3 and 1 <= looked.view[0] <= 3 and looked.shares.isfinite().all()


def test_what_cannot_be_looked_at_is_told(model: TwoTower) -> None:
    with pytest.raises(DataError):
        look(model, draw_photo(1), " ")


def test_looking_over_http(client: TestClient) -> None:
    reply = client.get("/api/items/1/looked", params={"q": "grass"}).json()
    assert reply["of"] == "score" and len(reply["shares"]) == len(reply["boxes"]) == 4 and reply["views"] == 1


def test_answers_come_with_what_they_came_from(client: TestClient) -> None:
    reply = client.post("/api/items/1/ask", json={"question": "what colour is the dog"}).json()
    assert len(reply["answers"]) == 5 and reply["looked"]["of"] == "attention"
    assert sum(reply["looked"]["shares"]) == pytest.approx(1, abs=1e-3)
    sent = {"image": ("x.png", png(), "image/png")}
    of_upload = client.post("/api/ask", params={"question": "what colour is the dog"}, files=sent).json()
    assert of_upload["answers"]


@pytest.mark.medium
def test_without_the_models_the_reply_says_how_to_get_them(place: Place, model: TwoTower) -> None:
    with client_of(Service(place.index, model, Settings())) as client:
        asked = client.post("/api/items/1/ask", json={"question": "what"})
        again = client.get("/api/search", params={"q": "grass", "rerank": True})
    assert asked.status_code == 422 and "--answer MODEL" in asked.json()["error"]
    assert again.status_code == 422 and "--rerank MODEL" in again.json()["error"]


def test_a_second_model_that_reads_no_images_is_refused(place: Place, model: TwoTower) -> None:
    blind = make_blind()
    with pytest.raises(ModelError, match="--rerank"):
        Service(place.index, model, Settings(), reranker=blind)


def make_blind() -> TwoTower:
    from openvse.retrieval.build import build_model
    from openvse.tasks.recipes import parse_recipe
    from tests.tiny import tiny_tree

    return build_model(parse_recipe(tiny_tree(Path())), captions=["red"]).eval()
