"""Who is let in, how much is taken, and what every reply carries."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from openvse.errors import OpenVSEError
from openvse.indexing import build_index
from openvse.model.two_tower import TwoTower
from openvse.serving.layers import Bounds, RequestMetrics
from openvse.serving.server import listen
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from openvse_papers.vqa.explain import ServedAnswerer
from tests.serving.conftest import Place, client_of, png, wait_for

TOKEN = "a token of enough characters"
ASKED = {"q": "grass", "top_k": 1}


@pytest.fixture(scope="module")
def locked(place: Place, model: TwoTower) -> Iterator[TestClient]:
    settings = Settings(token=TOKEN, limits=Limits(max_upload=0.2, upload_pixels=100_000))
    with client_of(Service(place.index, model, settings)) as client:
        yield client


def test_the_page_and_the_state_are_open(locked: TestClient) -> None:
    assert [locked.get(path).status_code for path in ("/", "/page/app.js", "/health", "/ready")] == [200] * 4


def test_every_reply_carries_what_protects_its_reader(client: TestClient) -> None:
    for path in ("/", "/page/app.js", "/api/info", "/api/items/1/thumbnail", "/nothing", "/api/search?q="):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "server" not in headers


def test_the_page_holds_no_inline_code_and_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    assert " style=" not in page and "<style" not in page and " onclick" not in page
    assert page.count("<script") == page.count('<script src="page/')
    assert "http://" not in page and "https://" not in page


def test_a_port_that_is_taken_is_told() -> None:
    opened, settings = listen(Settings(port=0))
    with opened:
        opened.listen(1)
        with pytest.raises(OpenVSEError, match=f"127.0.0.1.*{settings.port}"):
            listen(settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png(Image.new("RGB", (400, 400))), "400 x 400"),
        (png()[:300], ""),
        (b"", ""),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "SVG"),
        (b"%PDF-1.7", "PDF"),
        (b"\x00" * 1000, ""),
        (b"GIF89a" + b"\xff" * 50, "56"),
    ],
    ids=["large", "truncated", "empty", "svg", "pdf", "zeros", "gif"],
)
def test_hostile_uploads_are_refused(locked: TestClient, content: bytes, words: str) -> None:
    known = {"authorization": f"Bearer {TOKEN}"}
    sent = {"image": ("../../x.png", content, "image/png")}
    reply = locked.post("/api/search/image", files=sent, headers=known)
    assert reply.status_code == 422 and words in reply.json()["error"]


def test_bodies_that_are_too_large_are_refused_before_and_while_they_arrive(locked: TestClient) -> None:
    known = {"authorization": f"Bearer {TOKEN}"}
    sent = {"image": ("x.png", bytes(300_000), "image/png")}
    announced = locked.post("/api/search/image", files=sent, headers=known)
    assert announced.status_code == 413 and "200 kB" in announced.json()["error"]

    def parts() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
        for _ in range(30):
            yield bytes(10_000)

    kind = {"content-type": "multipart/form-data; boundary=b", **known}
    streamed = locked.post("/api/search/image", content=parts(), headers=kind)
    assert streamed.status_code == 413


def test_metrics_count_what_was_done(client: TestClient) -> None:
    client.get("/api/search", params=ASKED)
    text = client.get("/metrics").text
    assert 'openvse_requests_total{method="GET",route="/api/search",status="200"}' in text
    assert "openvse_gathered_queries_bucket" in text and "openvse_items 60.0" in text


@pytest.mark.medium
def test_the_wait_for_a_body_and_the_sum_of_all_bodies_are_bounded() -> None:
    async def answers(limits: Limits, *bodies: bytes | None) -> tuple[list[int], int]:
        """Statuses of requests at the same time, whose bodies never end; None never begins."""
        statuses: list[int] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            while True:
                await receive()

        async def ask(body: bytes | None) -> None:
            parts = [{"type": "http.request", "body": body, "more_body": True}] if body else []

            async def receive() -> Message:
                return parts.pop() if parts else await asyncio.Event().wait()  # type: ignore[return-value]

            async def send(message: Message) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            await bounds({"type": "http", "headers": [], "method": "POST", "path": "/"}, receive, send)

        bounds = Bounds(app, limits, RequestMetrics())
        await asyncio.gather(*map(ask, bodies))
        return statuses, bounds.held

    began = time.monotonic()
    assert asyncio.run(answers(Limits(upload_s=0.05), None)) == ([408], 0)
    assert time.monotonic() - began < 5
    small = Limits(upload_s=0.05, max_upload=1e-4, bodies=2)
    assert asyncio.run(answers(small, bytes(90), bytes(90), bytes(90))) == ([503, 408, 408], 0)


@pytest.mark.medium
def test_uploads_beyond_the_places_wait(place: Place, model: TwoTower) -> None:
    async def most_at_once(service: Service) -> int:
        held, most = 0, 0

        async def send() -> None:
            nonlocal held, most
            async with service.uploaded(UploadFile(io.BytesIO(png()))):
                held, most = held + 1, max(most, held + 1)
                await asyncio.sleep(0.3)
                held -= 1

        await asyncio.gather(*(send() for _ in range(6)))
        return most

    assert asyncio.run(most_at_once(Service(place.index, model, Settings(limits=Limits(uploads=2))))) == 2


@pytest.mark.medium
def test_no_reply_says_where_files_are(own_place: Place, model: TwoTower, answerer: ServedAnswerer) -> None:
    """Neither an answer nor an error names a folder of the server, also where the metadata do."""
    photos = own_place.photos
    lines = [{"file_name": "001.jpg", "title": f"{photos}/001.jpg by hand", "places": [f"in {photos}", "/usr"]}]
    (photos / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_index(model, photos, own_place.index)
    with client_of(Service(own_place.index, model, Settings(), answerer=answerer)) as client:
        key = client.get("/api/items", params={"id": "001.jpg"}).json()["key"]
        assert client.get(f"/api/items/{key}").json()["metadata"]["places"] == ["in photos", "/usr"]
        (photos / "002.jpg").write_bytes(b"no image")
        (photos / "003.jpg").unlink()
        broken, gone = (client.get("/api/items", params={"id": f"00{n}.jpg"}).json()["key"] for n in (2, 3))
        replies = [
            client.get(f"/api/items/{each}{rest}")
            for each in (key, broken, gone, 10**6)
            for rest in ("", "/file", "/thumbnail", "/similar", "/looked?q=grass", "/nothing")
        ]
        replies += [client.post(f"/api/items/{each}/ask", json={"question": "what"}) for each in (broken, gone)]
        for path in ("/api/info", "/api/search?q=grass", "/openapi.json", "/metrics", "/", "/api/none"):
            replies.append(client.get(path))
        for name in client.get("/openapi.json").json()["paths"]:
            replies.append(client.post(name, content=b"{"))
    assert {reply.status_code for reply in replies} >= {200, 404, 405, 422}
    for reply in replies:
        if not reply.headers["content-type"].startswith("image/"):
            found = [*map(str, (own_place.photos, own_place.index, own_place.photos.parent))]
            assert not [place for place in found if place in reply.text], (reply.url, reply.text)


def test_head_is_answered_as_get_without_a_body(client: TestClient) -> None:
    for path in ("/", "/health", "/ready", "/api/info", "/api/items/1/file", "/api/items/1/thumbnail"):
        head, whole = client.head(path), client.get(path)
        assert head.status_code == whole.status_code == 200, path
        assert head.content == b"" and head.headers["content-type"] == whole.headers["content-type"]
    assert client.head("/api/nothing").status_code == 404


def test_a_client_that_has_the_file_gets_304(client: TestClient) -> None:
    for path in ("/api/items/1/file", "/api/items/1/thumbnail"):
        tag = client.get(path).headers["etag"]
        assert client.get(path, headers={"if-none-match": "*"}).status_code == 304
        same = client.get(path, headers={"if-none-match": tag})
        assert same.status_code == 304 and same.content == b"" and same.headers["etag"] == tag
        assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_a_client_that_knows_the_time_of_a_file_gets_304(client: TestClient) -> None:
    for path in ("/", "/page/app.js", "/api/items/1/file"):
        told = client.get(path).headers
        again = client.get(path, headers={"if-modified-since": told["last-modified"]})
        assert again.status_code == 304 and again.content == b"", path
        assert client.get(path, headers={"if-none-match": told["etag"]}).status_code == 304
        earlier = {"if-modified-since": "Sat, 01 Jan 2000 00:00:00 GMT"}
        assert client.get(path, headers=earlier).status_code == 200
        other = {"if-none-match": '"other"', "if-modified-since": told["last-modified"]}
        assert client.get(path, headers=other).status_code == 200  # the tag decides
    assert client.put("/health").headers["allow"] == "GET, HEAD"


def test_following_survives_any_error_and_says_so(
    place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, calls = Service(place.index, model, Settings(reload_s=0.01)), []

    def fails() -> bool:
        calls.append(1)
        raise RecursionError("too deep")

    monkeypatch.setattr(service, "reload", fails)
    with client_of(service):
        wait_for(lambda: len(calls) >= 3)
    assert any("too deep" in record.message for record in caplog.records)


def test_captions_are_read_again_only_when_texts_change(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr("openvse.serving.service.captions_beside", lambda root: read.append(root) or {})
    service = Service(own_place.index, model, Settings(reload_s=60.0))
    with client_of(service):
        for name in ("001.jpg", "002.jpg"):
            (own_place.photos / name).unlink()
            build_index(model, own_place.photos, own_place.index)
            assert service.reload()
        assert len(read) == 1
        (own_place.photos / "new.txt").write_text("a dog")
        (own_place.photos / "003.jpg").unlink()
        build_index(model, own_place.photos, own_place.index)
        assert service.reload() and len(read) == 2


def test_the_first_query_by_a_picture_loads_its_model_beside_the_searches(place: Place, model: TwoTower) -> None:
    threads: list[str] = []
    service = Service(place.index, model, Settings())
    encode = service.model.encode_image

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(model, name)

        def encode_image(self, images: object) -> object:
            threads.append(threading.current_thread().name)
            return encode(images)  # type: ignore[arg-type]

    service.model = Noting()
    with client_of(service) as client:
        for _ in range(2):
            assert client.post("/api/search/image", files={"image": png()}).status_code == 200
    assert [name.rpartition("_")[0] for name in threads] == ["openvse-slow"]
