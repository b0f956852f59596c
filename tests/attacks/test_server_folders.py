"""What a served folder or an index of somebody else makes a server show, say, or stop doing."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from openvse.cli.commands.serve import announce
from openvse.errors import MissingItemError, ModelError
from openvse.indexing import Index, build_index
from openvse.indexing.database import Database
from openvse.indexing.vector_files import row_checksum
from openvse.media.names import escaped
from openvse.model.two_tower import TwoTower
from openvse.retrieval.hit_reranker import HitReranker
from openvse.search import Page, Query, SearchEngine, contact_sheet
from openvse.search.sheets import captions_beside
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from tests.conftest import draw_photo
from tests.serving.conftest import Place, client_of, wait_for

pytestmark = pytest.mark.medium

SECRET = "a secret line of another file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A text of the server that is no text of the data."""
    file = tmp_path / "private" / "secret.txt"
    file.parent.mkdir()
    file.write_text(f"{SECRET}\nroot:x:0:0\n")
    return file


def everything(client: TestClient) -> str:
    """Return all that a client can read of an index."""
    pages = [client.get("/api/info").text, client.get("/api/search?q=grass&top_k=200").text]
    for hit in client.get("/api/search?q=grass&top_k=200").json()["hits"]:
        pages += [client.get(f"/api/items/{hit['key']}{end}").text for end in ("", "/file")]
    return "\n".join(pages)


def items_of(client: TestClient) -> int:
    items: int = client.get("/api/info").json()["items"]
    return items


def linked_text(photos: Path, secret: Path) -> None:
    (photos / "metadata.jsonl").unlink()
    (photos / "001.txt").symlink_to(secret)


def linked_caption(photos: Path, secret: Path) -> None:
    (photos / "metadata.jsonl").unlink()
    (photos / "002.txt").write_text("grass")
    (photos / "001.caption").symlink_to(secret)


def linked_metadata(photos: Path, secret: Path) -> None:
    secret.write_text(json.dumps({"file_name": "001.jpg", "captions": [SECRET], "title": SECRET}) + "\n")
    (photos / "metadata.jsonl").unlink()
    (photos / "metadata.jsonl").symlink_to(secret)


def linked_table(photos: Path, secret: Path) -> None:
    secret.write_text(f"file_name,text\n001.jpg,{SECRET}\n")
    (photos / "metadata.jsonl").unlink()
    (photos / "metadata.csv").symlink_to(secret)


def linked_folder(photos: Path, secret: Path) -> None:
    (photos / "metadata.jsonl").unlink()
    draw_photo(1).save(secret.parent / "secret.jpg")
    (photos / "more").symlink_to(secret.parent, target_is_directory=True)


def linked_image(photos: Path, secret: Path) -> None:
    (photos / "005.jpg").unlink()
    (photos / "005.jpg").symlink_to(secret)


LINKS = [linked_text, linked_caption, linked_metadata, linked_table, linked_folder, linked_image]


@pytest.mark.parametrize("link", LINKS, ids=lambda each: each.__name__)
def test_no_link_in_a_served_folder_shows_another_file(
    own_place: Place, model: TwoTower, secret: Path, link: Callable[[Path, Path], None]
) -> None:
    link(own_place.photos, secret)
    build_index(model, own_place.photos, own_place.index)
    with client_of(Service(own_place.index, model, Settings())) as client:
        shown = everything(client)
    assert SECRET not in shown
    assert "root:x" not in shown


def rename(place: Path, names: list[str]) -> list[int]:
    """Let the root of an index be /, and its first items have other ids; return the keys of these."""
    index = Index.open(place)
    (file,) = place.glob("vectors-*.npy")
    stored, keys = np.load(file), [int(key) for key in index.table.keys[: len(names)]]
    with Database(place / index.manifest.items, write=True) as database, database.transaction():
        database._connection.execute("UPDATE roots SET path = '/'")
        for position, (key, name) in enumerate(zip(keys, names, strict=True)):
            row = stored[int(index.table.rows[position])]
            sql = "UPDATE items SET id = ?, checksum = ? WHERE key = ?"
            checksum = row_checksum(replace(index.items[position], id=name), row)
            database._connection.execute(sql, (name, checksum, key))
    return keys


def test_an_index_of_somebody_else_gives_away_no_file_that_is_no_picture(
    own_place: Place, model: TwoTower, secret: Path, capsys
) -> None:
    """Its roots and ids are what its author wrote: pictures below them are shown, and the start says where they are."""
    draw_photo(1).save(secret.parent / "seen.jpg")
    named = [secret, Path("/etc/passwd"), Path("/proc/self/environ"), secret.parent, Path("/dev/zero")]
    ids = [str(each).lstrip("/") for each in named] + [f"data/../..{secret}", str(secret.parent / "seen.jpg")[1:]]
    keys = rename(own_place.index, ids)
    service = Service(own_place.index, model, Settings())
    announce(service)
    assert "below /:" in capsys.readouterr().err
    with client_of(service) as client:
        replies = [client.get(f"/api/items/{key}/file") for key in keys[: len(ids)]]
        small = [client.get(f"/api/items/{key}/thumbnail").status_code for key in keys[: len(ids) - 1]]
    assert [reply.status_code for reply in replies] == [404] * (len(ids) - 1) + [200]
    assert not [reply for reply in replies if b"root:" in reply.content or SECRET.encode() in reply.content]
    assert small == [404] * (len(ids) - 1)


def test_pages_and_re_ranking_read_no_file_that_is_no_picture_of_the_index(
    own_place: Place, model: TwoTower, second: TwoTower, secret: Path
) -> None:
    """Hits name what the index says, and nothing of it is read."""
    draw_photo(1).save(secret.parent / "hidden", "PNG")
    (secret.parent / "a.jpg").symlink_to(secret.parent / "hidden")
    named = [secret, secret.parent / "hidden", secret.parent / "a.jpg"]
    rename(own_place.index, [*(str(each)[1:] for each in named), f"data/../..{named[1]}"])
    engine = SearchEngine(model, Index.open(own_place.index))
    (answer,) = engine.answer([Query("grass")], Page(99))
    page = contact_sheet({"grass": answer.hits})
    assert page.count("<figure>") == len(answer.hits) == 8
    assert "data:image" not in page and "file://" not in page
    for hit in answer.hits:
        with pytest.raises(MissingItemError):
            hit.source  # noqa: B018 - it is checked when it is asked for
    (ranked,) = HitReranker(second).rerank([Query("grass")], [answer], [Page(99)])
    assert [hit.score for hit in ranked.hits] == [hit.score for hit in answer.hits]
    assert engine.note.far_roots(own_place.index) == [Path("/")] and captions_beside(engine.root) == {}


def test_the_pictures_of_an_honest_index_are_read_through_its_rule(own_place: Place, model: TwoTower) -> None:
    engine = SearchEngine(model, Index.open(own_place.index))
    (answer,) = engine.answer([Query("grass")], Page(99))
    assert [hit.source for hit in answer.hits] == [hit.path.resolve() for hit in answer.hits]
    assert contact_sheet({"grass": answer.hits}).count("data:image") == 8
    assert engine.note.far_roots(own_place.index) == []


DEEP = '{"file_name": "001.jpg", "captions": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
HUGE = '{"file_name": "001.jpg", "year": ' + "9" * 100_000 + "}\n"


@pytest.mark.parametrize(
    "line", [DEEP, HUGE, "\0\n", "{\n", '{"file_name": 5}\n'], ids=["deep", "huge", "zero", "half", "number"]
)
def test_a_bad_line_ends_neither_a_start_nor_an_update(own_place: Place, model: TwoTower, line: str) -> None:
    lines = own_place.photos / "metadata.jsonl"
    whole = lines.read_text()
    lines.write_text(whole + line)
    service = Service(own_place.index, model, Settings(reload_s=0.01))
    with client_of(service) as client:
        draw_photo(50).save(own_place.photos / "new.jpg")
        build_index(model, own_place.photos, own_place.index)
        wait_for(lambda: items_of(client) == 9, seconds=20)
        lines.write_text(whole)
        draw_photo(51).save(own_place.photos / "newer.jpg")
        build_index(model, own_place.photos, own_place.index)
        wait_for(lambda: items_of(client) == 10, seconds=20)
        assert client.get("/api/search?q=grass").status_code == 200


def test_the_watcher_goes_on_whatever_an_update_or_the_system_raises(
    own_place: Place, model: TwoTower, monkeypatch, caplog
) -> None:
    from openvse.serving import service as watching

    for name in ("_RETRY_S", "_SCAN_S"):
        monkeypatch.setattr(watching, name, 0.01)
    update, calls = watching.index, list[str]()

    def fails(*given: object, **options: object) -> object:
        calls.append("update")
        if len(calls) < 4:
            raise RecursionError("too deep")
        return update(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(watching, "index", fails)
    monkeypatch.setattr("watchfiles.watch", lambda *_, **__: iter_fails())

    def iter_fails() -> object:
        raise RuntimeError("the system watches nothing")

    draw_photo(50).save(own_place.photos / "new.jpg")
    with (own_place.photos / "metadata.jsonl").open("a") as lines:
        lines.write(DEEP)
    with (
        caplog.at_level(logging.WARNING),
        client_of(Service(own_place.index, model, Settings(reload_s=0.01), watch=True)) as client,
    ):
        wait_for(lambda: items_of(client) == 9, seconds=30)
        wait_for(lambda: "metadata.jsonl" in caplog.text, seconds=30)
    said = " ".join(record.message for record in caplog.records)
    assert "too deep" in said and "watches nothing" in said  # as they were raised above


def test_neither_replies_nor_conditions_tell_where_folders_are(own_place: Place, model: TwoTower) -> None:
    photos = own_place.photos.resolve()
    lines = [
        {
            "file_name": f"00{n}.jpg",
            "abs": f"{photos}/00{n}.jpg",
            "two": f"file://{photos}/a.jpg;{photos}/b.jpg",
            "year": n,
        }
        for n in (1, 2, 3)
    ]
    (photos / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_index(model, photos, own_place.index)
    with client_of(Service(own_place.index, model, Settings())) as client:
        assert str(photos) not in everything(client)
        for field in ("abs", "two", "meta.abs"):
            for pattern in (
                f"{field} ~ {photos}/*",
                f"{field} ~ /home/*",
                f"{field} contains {photos.name}",
                f"{field} = x",
            ):
                replies = [client.get("/api/search", params={"q": "grass", "where": pattern})]
                replies.append(client.post("/api/search", json={"queries": [{"q": "a"}], "where": [pattern]}))
                assert {reply.status_code for reply in replies} == {422}
        named = [each["name"] for each in client.get("/api/info").json()["fields"]]
        assert "year" in named and "abs" not in named
        assert client.get("/api/search", params={"q": "grass", "where": "year >= 2"}).json()["hits"]


def test_what_is_wrong_with_a_model_is_in_the_log_alone(own_place: Place, model: TwoTower, monkeypatch, caplog) -> None:
    service, secret = Service(own_place.index, model, Settings()), "/data/private/model"

    def gone(*_: object, **__: object) -> None:
        raise ModelError(f"the model of index leak/idx is no longer at {secret}")

    monkeypatch.setattr(service.model, "encode_image", gone)
    with caplog.at_level(logging.WARNING), client_of(service) as client:
        encoded = (own_place.photos / "001.jpg").read_bytes()
        reply = client.post("/api/search/image", files={"image": encoded})
        assert reply.status_code == 503 and secret not in reply.text and "leak" not in reply.text
        assert client.get("/api/search?q=grass").status_code == 200
    assert any(secret in record.message for record in caplog.records)


def test_names_that_break_pages_and_terminals_are_spelled(own_place: Place, model: TwoTower) -> None:
    for name in ("<script>alert(1)</script>", "a\x1b[31mred", "new\nline", "right\u202eleft"):
        draw_photo(1).save(own_place.photos / f"{name.replace('/', '_')}.png", "PNG")
    build_index(model, own_place.photos, own_place.index)
    with client_of(Service(own_place.index, model, Settings())) as client:
        reply = client.get("/api/search?q=grass&top_k=200")
        assert reply.headers["content-type"] == "application/json"
        hits = reply.json()["hits"]
        assert len(hits) >= 11
        for hit in hits:
            assert escaped(hit["id"]) == hit["id"] and "\x1b" not in hit["title"] and "\n" not in hit["title"]
            file = client.get(f"/api/items/{hit['key']}/file")
            assert file.status_code == 200 and "sandbox" in file.headers["content-security-policy"]
            assert file.headers["content-type"].startswith("image/")


def test_a_text_that_is_called_a_picture_is_sent_as_nothing_that_runs(own_place: Place, model: TwoTower) -> None:
    page = b"<html><script>alert(document.cookie)</script></html>"
    (own_place.photos / "001.jpg").write_bytes(page)
    shutil.copy(own_place.photos / "002.jpg", own_place.photos / "page.svg")
    with client_of(Service(own_place.index, model, Settings())) as client:
        key = client.get("/api/items", params={"id": "001.jpg"}).json()["key"]
        reply = client.get(f"/api/items/{key}/file")
        assert reply.headers["content-type"] == "image/jpeg" and "sandbox" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert client.get(f"/api/items/{key}/thumbnail").status_code == 404
