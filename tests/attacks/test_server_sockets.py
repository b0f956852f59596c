"""Clients that break HTTP, or take places and do not go on, against a server on a port."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest

from openvse.model.two_tower import TwoTower
from openvse.search.provided import EXPLAINER
from openvse.serving.decoding import Decoders
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.serving.conftest import Place, Running, wait_for

pytestmark = pytest.mark.medium

Start = Callable[[Service], Running]
Connect = Callable[[int, int, bytes], list[socket.socket]]
POST = b"POST /session HTTP/1.1\r\nHost: localhost\r\n"
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def answer(port: int, sent: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes or waits."""
    received = b""
    with socket.create_connection(("127.0.0.1", port)) as client, suppress(TimeoutError, ConnectionError):
        client.settimeout(0.5)
        client.sendall(sent)
        while part := client.recv(65536):
            received += part
    return received


ODD = {
    "two lengths": HEAD + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nGET /",
    "a space before the colon": HEAD + b"Content-Length : 5\r\n\r\nGET /",
    "an unknown encoding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two encodings": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two hosts": HEAD + b"Host: evil.example\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length that is no number": HEAD + b"Content-Length: 0x5\r\n\r\nabcde",
    "a folded header": HEAD + b"X: a\r\n Content-Length: 5\r\n\r\n",
    "a zero": HEAD + b"X: a\0b\r\n\r\n",
    "a bad chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "a long head": HEAD + b"X: " + b"y" * 1_000_000,
    "many headers": HEAD + b"X: y\r\n" * 200_000,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "a method without end": b"A" * 100_000,
}


def test_what_is_no_http_is_refused_and_nothing_behind_it_is_read(
    place: Place, model: TwoTower, running: Start
) -> None:
    port = running(Service(place.index, model, Settings())).port
    for name, sent in ODD.items():
        received = answer(port, sent)
        assert received.count(b"HTTP/1.1 ") <= 1, (name, received[:200])
        assert b" 200 " not in received[:20] or name == "a folded header", (name, received[:200])
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\n\r\n"
    assert answer(port, chunked).count(b"HTTP/1.1 ") == 1
    upgrade = HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert b" 101 " not in answer(port, upgrade)
    for line in (
        b"CONNECT evil.example:443 HTTP/1.1",
        b"TRACE /health HTTP/1.1",
        b"GET http://evil.example/api HTTP/1.1",
    ):
        received = answer(port, line + b"\r\nHost: localhost\r\nX: secret\r\n\r\n")
        assert b" 200 " not in received[:20] and b"secret" not in received
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


@pytest.fixture
def waiting() -> Iterator[Connect]:
    """Return a function that opens connections, each of which sends some bytes and no more."""
    with ExitStack() as opened:

        def connect(port: int, count: int, sent: bytes) -> list[socket.socket]:
            clients = []
            for _ in range(count):
                clients.append(opened.enter_context(socket.create_connection(("127.0.0.1", port))))
                clients[-1].settimeout(20)
                with suppress(ConnectionError):
                    clients[-1].sendall(sent)
            return clients

        yield connect


STOPPED = {
    "nothing": b"",
    "half a head": HEAD + b"X: ",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "half a second head": HEAD + b"\r\n" + HEAD + b"X: ",
}


@pytest.mark.parametrize("sent", STOPPED.values(), ids=STOPPED)
def test_clients_that_stop_make_room_for_others(
    place: Place, model: TwoTower, running: Start, waiting: Connect, sent: bytes
) -> None:
    """Far more of them than there are places lock nobody out, from the first moment on."""
    server = running(Service(place.index, model, Settings(limits=Limits(connections=400))))
    with httpx.Client(base_url=server.url) as kept:
        for _ in range(5):
            waiting(server.port, 150, sent)
            assert kept.get("/api/search", params={"q": "grass"}).status_code == 200
            assert httpx.get(f"{server.url}/api/info").status_code == 200
    assert len(server.server.server_state.connections) <= 400


@pytest.mark.parametrize("sent", [b"", HEAD + b"X: ", HEAD + b"\r\n" + HEAD + b"X: "])
def test_a_head_that_does_not_end_is_closed_in_time(
    place: Place, model: TwoTower, running: Start, waiting: Connect, sent: bytes
) -> None:
    server = running(Service(place.index, model, Settings(limits=Limits(head_s=0.5))))
    (client,) = waiting(server.port, 1, sent)
    began, received = time.monotonic(), b""
    with suppress(ConnectionError):
        while part := client.recv(65536):
            received += part
            client.sendall(b"y")  # a byte now and then gives no more time
    assert 0.2 < time.monotonic() - began < 10 and received.count(b" 200 ") == sent.count(b"\r\n\r\n")


def test_a_client_that_is_quick_between_pauses_is_not_closed(place: Place, model: TwoTower, running: Start) -> None:
    server = running(Service(place.index, model, Settings(limits=Limits(head_s=0.4))))
    with httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(retries=0)) as client:
        for _ in range(6):
            assert client.get("/health").status_code == 200
            time.sleep(0.1)


def test_the_first_requests_of_a_server_may_come_at_once(place: Place, model: TwoTower, running: Start) -> None:
    """What checks their parameters is made before; requests that made it at a time failed."""
    for _ in range(2):
        url = running(Service(place.index, model, Settings())).url
        with ThreadPoolExecutor(16) as threads:
            asked = [threads.submit(httpx.get, f"{url}/api/search", params={"q": "grass"}) for _ in range(16)]
        assert {each.result().status_code for each in asked} == {200}


def post(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def call(text: str) -> dict[str, object]:
    params = {"name": "search", "arguments": {"q": text}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


LEFT: dict[str, Callable[[int], bytes]] = {
    "get": lambda number: HEAD.replace(b"/health", b"/api/search?q=a%d" % number) + b"\r\n",
    "post": lambda number: post("/api/search", {"queries": [{"q": f"b{number}"}]}),
    "mcp": lambda number: post("/mcp", call(f"c{number}")),
    "looked": lambda number: HEAD.replace(b"/health", b"/api/items/1/looked?q=d%d" % number) + b"\r\n",
    "thumbnail": lambda number: HEAD.replace(b"/health", b"/api/items/%d/thumbnail" % (number + 1)) + b"\r\n",
}


def test_a_question_whose_client_has_left_is_not_computed(
    place: Place, model: TwoTower, running: Start, waiting: Connect, monkeypatch
) -> None:
    """In every queue. What has begun goes on, and the places of those that left are free at once."""
    monkeypatch.setattr("openvse.serving.service._FOR_FILES", 1)
    service, asked, free = Service(place.index, model, Settings()), list[object](), threading.Event()
    server, answers = running(service), service._gatherer._answer
    tasks = server.server.server_state.tasks

    def begun(what: object) -> dict[str, object]:
        asked.append(what)
        free.wait(20)
        return {}

    async def decoded(*what: object) -> tuple[dict[str, object], bytes]:
        return await asyncio.to_thread(begun, what), b"small"

    monkeypatch.setattr(service._gatherer, "_answer", lambda some: (begun(some), answers(some))[1])
    monkeypatch.setattr(EXPLAINER, "get", lambda: lambda *what: begun(what))
    monkeypatch.setattr(Decoders, "_decoded", decoded)
    for name, request in LEFT.items():
        asked.clear()
        free.clear()
        (stays,) = waiting(server.port, 1, request(0))
        wait_for(lambda: len(asked) == 1, seconds=20)
        leaves = [each for number in range(1, 7) for each in waiting(server.port, 1, request(number))]
        wait_for(lambda: len(tasks) == 7, seconds=20)
        for each in leaves:
            each.close()
        wait_for(lambda: len(tasks) == 1, seconds=20)
        held = service._places._held.total() + service._slow_places._held.total()
        assert service._gatherer.waiting == 0 and held == (name != "thumbnail"), name
        free.set()
        assert stays.recv(65536).startswith(b"HTTP/1.1 200 "), name
        assert len(asked) == 1, name
    assert b'status="499"' in httpx.get(f"{server.url}/metrics").content
