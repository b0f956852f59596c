"""Bodies and questions that cost more than they may: JSON, forms, pictures, sentences and conditions."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from openvse.model.two_tower import TwoTower
from openvse.serving import decoding
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.attacks.conftest import KNOWN, below, send
from tests.serving.conftest import Place, client_of, png

JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
END = b"\r\n--b--\r\n"


def many(count: int) -> bytes:
    """An object of so many fields."""
    return json.dumps({str(number): 0 for number in range(count)}).encode()


BODIES = {
    "fields": b"{" + b'"0": 0,' * 4_000_000 + b'"1": 0}',
    "lists": b"[" + b"[]," * 6_600_000 + b"[]]",
    "depth": b"[" * 19_000_000,
}


@pytest.mark.medium
@pytest.mark.parametrize("path", ["/session", "/api/search", "/api/items/1/ask", "/api/images", "/health", "/nothing"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_large_body_is_refused_before_it_is_parsed(locked: TestClient, path: str, body: bytes, monkeypatch) -> None:
    monkeypatch.setattr("json.loads", lambda *_, **__: pytest.fail("it is parsed"))
    began = time.monotonic()
    reply = send(locked, "POST", path, {**JSON, **KNOWN}, body)
    assert reply.status in (404, 405, 413, 422) and time.monotonic() - began < 1.0
    assert len(reply.body) < 1000 and (reply.status != 422 or path == "/api/images")  # where no form is sent


SMALLER = {
    "fields": many(20_000),
    "lists": b"[" + b"[]," * 80_000 + b"[]]",
    "queries": b'{"queries": [' + b"{}," * 80_000 + b"{}]}",
    "avoid": b'{"queries": [{"q": "a", "avoid": [' + b'"",' * 80_000 + b'""]}]}',
    "unknown": json.dumps({"queries": [{str(n): 0 for n in range(60)}] * 64}).encode(),
    "depth": b"[" * 240_000,
    "integer": b'{"queries": [{"q": "a", "like": ' + b"9" * 240_000 + b"}]}",
    "number": b'{"queries": [{"q": "a"}], "min_score": 1' + b"0" * 4000 + b"." + b"1" * 200_000 + b"}",
    "text": b'{"queries": [{"q": "' + b"a" * 240_000 + b'"}]}',
}


def test_a_body_of_the_largest_size_costs_little(free: TestClient) -> None:
    failed = {}
    for name, body in SMALLER.items():
        began = time.monotonic()
        reply = send(free, "POST", "/api/search", JSON, body)
        seconds = time.monotonic() - began
        if reply.status not in (400, 422) or len(reply.body) >= 1000 or seconds >= 2.0:
            failed[name] = (reply.status, len(reply.body), seconds)
    assert failed == {}


@pytest.mark.parametrize("path", ["/session", "/api/search"])
def test_a_plain_text_or_a_packed_body_is_no_json(free: TestClient, path: str) -> None:
    body = json.dumps({"queries": [{"q": "a"}]} if "search" in path else {"token": "x" * 20}).encode()
    assert send(free, "POST", path, {"content-type": "text/plain"}, body).status == 422
    packed = gzip.compress(body)
    assert send(free, "POST", path, {**JSON, "content-encoding": "gzip"}, packed).status in (400, 422)


@pytest.mark.medium
def test_a_packed_bomb_is_not_unpacked(free: TestClient) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    reply = send(free, "POST", "/api/images", {**FORM, "content-encoding": "gzip"}, PART + bomb + END)
    assert reply.status == 422 and b"not an image" in reply.body


FORMS = {
    "other kind": ({"content-type": "application/x-www-form-urlencoded"}, b"a&" * 9_000_000, (413,)),
    "parts": (FORM, (PART + b"x\r\n") * 100_000 + b"--b--\r\n", (400,)),
    "fields": (FORM, b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n' * 100_000, (400,)),
    "long field": (FORM, b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + bytes(2_000_000) + END, (400,)),
    "long name": (FORM, b'--b\r\nContent-Disposition: form-data; name="' + b"x" * 2_000_000 + b'"\r\n\r\n', (400, 422)),
    "many headers": (FORM, b"--b\r\n" + b"x: y\r\n" * 100_000, (400, 422)),
    "no boundary": ({"content-type": "multipart/form-data"}, PART + b"x" + END, (400,)),
    "no end": (FORM, PART + b"x", (400, 422)),
    "nearly boundaries": (FORM, PART + b"\r\n-" * 1_000_000 + END, (422,)),
    "before it": (FORM, b"\r\n" * 1_000_000 + PART + b"x" + END, (400, 422)),
    "two": (FORM, (PART + b"x\r\n") * 2 + b"--b--\r\n", (422,)),
    "name with a path": (FORM, PART.replace(b'"x"', b'"../../x\\0.png"') + b"x" + END, (422,)),
    "a header in a name": (FORM, PART.replace(b'"x"', b'"x%0d%0aset-cookie: a=b"') + b"x" + END, (422,)),
    "address": (FORM, PART + b"http://127.0.0.1:1/a.png" + END, (422,)),
    "file": (FORM, PART + b"file:///etc/passwd" + END, (422,)),
}


@pytest.mark.medium
@pytest.mark.parametrize(("headers", "body", "allowed"), FORMS.values(), ids=FORMS)
def test_odd_forms_are_refused_soon(
    free: TestClient, headers: dict[str, str], body: bytes, allowed: tuple[int, ...]
) -> None:
    began = time.monotonic()
    reply = send(free, "POST", "/api/images", headers, body)
    assert reply.status in allowed and time.monotonic() - began < 10
    assert "set-cookie" not in (reply.headers or {}) and len(reply.body) < 1000


def scans(count: int, side: int = 7000) -> bytes:
    """A progressive JPEG of one grey, with so many scans in which nothing is."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    def table(kind: int, symbol: int) -> bytes:
        return segment(0xC4, bytes([kind << 4, 1]) + bytes(15) + bytes([symbol]))

    frame = struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"
    head = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, frame) + table(0, 0) + table(1, 0xE0)
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(((side + 7) // 8) ** 2 // 8 + 1)
    return head + first + (segment(0xDA, b"\1\1\0\1\x3f\0") + bytes(90)) * count + b"\xff\xd9"


@pytest.mark.medium
def test_a_picture_of_many_scans_is_refused_and_one_of_few_is_not(free: TestClient) -> None:
    began = time.monotonic()
    reply = send(free, "POST", "/api/images", FORM, PART + scans(30_000) + END)
    assert reply.status == 422 and b"scans" in reply.body and time.monotonic() - began < 10
    assert send(free, "POST", "/api/images", FORM, PART + scans(10, side=64) + END).status == 200


@pytest.fixture
def stuck(monkeypatch) -> Iterator[threading.Event]:
    """Decoders that do not answer as long as the event is not set, unless they are killed."""
    ask, freed = decoding._Decoder.ask, threading.Event()

    def slow(decoder: decoding._Decoder, task: object, content: bytes) -> object:
        while content.startswith(b"SLOW") and not freed.is_set():
            if decoder._process.poll() is not None:
                raise BrokenPipeError
            time.sleep(0.01)
        return ask(decoder, task, content)  # type: ignore[arg-type]

    monkeypatch.setattr(decoding._Decoder, "ask", slow)
    yield freed
    freed.set()


@pytest.mark.medium
def test_pictures_that_do_not_end_keep_nobody_waiting_and_stay_nowhere(
    place: Place, model: TwoTower, stuck: threading.Event
) -> None:
    """Uploads are ended in time; meanwhile thumbnails, facts, files, searches and updates go on."""
    limits = Limits(decode_s=1.0, timeout=4.0)
    service, statuses = Service(place.index, model, Settings(limits=limits)), list[int]()
    slow = PART + b"SLOW" + bytes(1_000_000) + END
    with client_of(service) as client:
        for each in (service.decoders, service.upload_decoders):
            each.begin()
            for one in each._idle:  # the start of a process would count as decoding
                one.ask({"kind": "query", "max_pixels": 10_000}, png())
        kept = {*service.decoders._idle}
        work = [
            threading.Thread(target=lambda: statuses.append(send(client, "POST", "/api/images", FORM, slow).status))
            for _ in range(12)
        ]
        for each in work:
            each.start()
        began = time.monotonic()
        for path in (
            *("/api/items/2/thumbnail", "/api/items/1", "/api/items/1/file", "/api/search?q=grass"),
            *("/health",),
        ):
            assert client.get(path).status_code == 200
        assert time.monotonic() - began < 5
        for each in work:
            each.join(30)
        assert set(statuses) <= {422, 503, 504} and len(statuses) == 12
        assert service._uploads._value == limits.uploads
        assert {*service.decoders._idle} == kept, "uploads take no process of the thumbnails"
        service.upload_decoders._seconds = 60.0
        assert client.post("/api/search/image", files={"image": png()}).status_code == 200


@pytest.mark.medium
def test_a_decoder_that_dies_fails_its_picture_alone(place: Place, model: TwoTower, monkeypatch) -> None:
    ask = decoding._Decoder.ask

    def dying(decoder: decoding._Decoder, task: object, content: bytes) -> object:
        if content.startswith(b"DIE"):
            decoder.kill()
        return ask(decoder, task, content)  # type: ignore[arg-type]

    monkeypatch.setattr(decoding._Decoder, "ask", dying)
    with client_of(Service(place.index, model, Settings())) as client:
        assert client.post("/api/images", files={"image": b"DIE" + bytes(200_000)}).status_code == 422
        assert client.post("/api/images", files={"image": png()}).status_code == 200


@pytest.mark.medium
def test_a_decoder_has_no_secrets_little_memory_and_imports_nothing_from_the_folder(
    tmp_path: Path, monkeypatch
) -> None:
    for name in ("PIL", "numpy", "openvse", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENVSE_TOKEN", "a secret of sixteen characters")
    decoder = decoding._Decoder()
    try:
        told, content = decoder.ask({"kind": "query", "max_pixels": 10_000}, png())
        assert told["bytes"] == len(content) and content.startswith(b"\x89PNG")
        process = Path(f"/proc/{decoder._process.pid}")
        if process.is_dir():
            assert b"a secret" not in (process / "environ").read_bytes()
            limits = (process / "limits").read_text()
            assert "Max address space" in limits and "unlimited" not in limits.partition("Max address space")[2][:40]
    finally:
        decoder.kill()
        decoder.end()


@pytest.mark.medium
def test_an_upload_has_no_name_on_the_disk(place: Place, model: TwoTower, tmp_path: Path, monkeypatch) -> None:
    """A large upload goes to a file that nobody else can open, name or put a link in place of."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "x").symlink_to(place.photos / "001.jpg")
    seen: list[object] = []
    read = tempfile.SpooledTemporaryFile.read

    def looked(file: tempfile.SpooledTemporaryFile[bytes], *size: int) -> bytes:
        stats = os.fstat(file.fileno())
        seen.append((stats.st_nlink, stats.st_mode & 0o777, [each.name for each in tmp_path.iterdir()]))
        return read(file, *size)

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "read", looked)
    with client_of(Service(place.index, model, Settings())) as client:
        content = PART.replace(b'"x"', b'"../x"') + png() + bytes(3_000_000) + END
        assert send(client, "POST", "/api/images", FORM, content).status == 200
    assert seen and {*map(str, seen)} == {str((0, 0o600, ["x"]))}
    assert below(tmp_path) == [tmp_path / "x"] and (tmp_path / "x").is_symlink()


def test_the_sentences_of_a_request_are_bounded_in_sum(free: TestClient) -> None:
    fits = {"queries": [{"q": "a" * 500, "avoid": ["b" * 500]}] * 10}
    assert free.post("/api/search", json=fits).status_code == 200
    fits["queries"] += [{"q": "c"}]  # type: ignore[list-item]
    reply = free.post("/api/search", json=fits)
    assert reply.status_code == 422 and "10,001" in reply.json()["error"]


CONDITIONS = [
    "path ~ *a*a*a*a*a*a*a*a*",
    "path ~ " + "*" * 8 + "b",
    "path ~ " + "[a-" * 300,
    "path ~ [" + "!" * 900 + "]",
    "year contains " + "a" * 980,
    "meta." + "a" * 980 + " = 1",
    "near = 0,0 within 1e308",
    "date >= 99999999999999",
    "size < 1e999",
    "year = ' OR 1=1 --",
    "year = '; DROP TABLE items; --",
    "' OR 1=1 -- = 1",
    'json_extract(metadata, "$") = 1',
    'a" OR "1" = 1',
    "path = \0",
]


def test_no_condition_is_slow_or_code(free: TestClient) -> None:
    failed = {}
    for where in CONDITIONS:
        began = time.monotonic()
        reply = free.get("/api/search", params={"q": "grass", "where": where})
        seconds = time.monotonic() - began
        few = reply.status_code == 422 or (reply.status_code == 200 and len(reply.json()["hits"]) < 8)
        if not few or seconds >= 2 or free.get("/api/info").json()["items"] != 8:
            failed[where] = (reply.status_code, reply.text, seconds)
    assert failed == {}


SENTENCES = ['"', "a OR b NOT", "NEAR(a b)", "text:a*", "^a", "'; DROP TABLE words; --", "(" * 400]


def test_no_sentence_is_a_language(free: TestClient) -> None:
    failed = {}
    for words in SENTENCES:
        statuses = [free.get("/api/search", params={"q": each}).status_code for each in (words, "grass")]
        if statuses not in ([200, 200], [422, 200]):
            failed[words] = statuses
    assert failed == {}


RANGES = [
    "bytes=" + ",".join(["0-1"] * 9000),
    "bytes=0-" + "9" * 400,
    "bytes=-" + "9" * 30,
    "lines=0-1",
    "bytes=5-1",
    "bytes=a-b",
]


def test_odd_ranges_of_a_file_send_no_more_than_the_file(free: TestClient) -> None:
    whole, failed = len(free.get("/api/items/1/file").content), {}
    for asked in RANGES:
        began = time.monotonic()
        reply = send(free, "GET", "/api/items/1/file", {"range": asked})
        seconds = time.monotonic() - began
        if reply.status not in (200, 206, 400, 416) or len(reply.body) > whole + 1000 or seconds >= 2:
            failed[asked[:40]] = (reply.status, len(reply.body), seconds)
    assert failed == {}


def test_a_picture_of_many_pixels_in_few_bytes_is_refused(free: TestClient) -> None:
    encoded = io.BytesIO()
    Image.new("L", (9000, 9000)).save(encoded, "PNG")
    reply = free.post("/api/images", files={"image": encoded.getvalue()})
    assert reply.status_code == 422 and "9000 x 9000" in reply.json()["error"]
