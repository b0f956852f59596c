"""A server on a port: its end, updates of its index, and clients that do nothing."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest

from openvse.indexing import build_index
from openvse.model.two_tower import TwoTower
from openvse.serving.server import listen
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.conftest import draw_photo
from tests.forking import command, forked
from tests.serving.conftest import Place, Running, wait_for

Start = Callable[[Service], Running]


@pytest.mark.medium
def test_others_are_served_beside_silent_and_slow_clients(place: Place, model: TwoTower, running: Start) -> None:
    server = running(Service(place.index, model, Settings()))
    address = ("127.0.0.1", server.port)
    silent = [socket.create_connection(address) for _ in range(120)]
    for each in silent[:20]:
        each.sendall(b"GET /health HT")
    assert httpx.get(f"{server.url}/api/search", params={"q": "grass"}).status_code == 200
    for each in silent:
        each.close()


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system does not close them")
def test_a_client_that_reads_nothing_is_disconnected() -> None:
    opened, settings = listen(Settings(port=0, limits=Limits(stall_s=0.5)))
    with opened:
        opened.listen(1)
        with socket.create_connection(("127.0.0.1", settings.port)) as stalled:
            stalled.settimeout(0.1)
            connection, _ = opened.accept()
            with connection, pytest.raises(TimeoutError, match="110|timed out"):
                connection.settimeout(20)
                connection.sendall(bytes(100_000_000))


def test_small_replies_are_not_held_back() -> None:
    """asyncio sets TCP_NODELAY on the connections of such a socket alone."""
    opened, _ = listen(Settings(port=0))
    with opened:
        assert opened.proto == socket.IPPROTO_TCP


@pytest.mark.medium
def test_requests_beside_more_work_than_allowed_are_refused(
    place: Place, model: TwoTower, running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = list[int](), threading.Event()

    def facts(_: Service, key: int) -> dict[str, object]:
        begun.append(key)
        may_end.wait(20)
        return {}

    monkeypatch.setattr(Service, "facts", facts)
    server = running(Service(place.index, model, Settings(limits=Limits(connections=5))))
    with ThreadPoolExecutor(4) as threads:
        busy = []
        for number in range(4):  # one after the other: one without its head would make room
            busy.append(threads.submit(httpx.get, f"{server.url}/api/items/1", timeout=30))
            wait_for(lambda number=number: len(begun) > number, seconds=20)
        refused = httpx.get(f"{server.url}/health").status_code
        may_end.set()
        assert [each.result().status_code for each in busy] == [200] * 4
    assert refused == 503
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.medium
def test_an_updated_index_is_served_without_losing_a_request(own_place: Place, model: TwoTower, running: Start) -> None:
    server = running(Service(own_place.index, model, Settings(reload_s=0.05)))
    stop, statuses = threading.Event(), list[int]()

    def ask() -> None:
        with httpx.Client(base_url=server.url) as client:
            while not stop.is_set():
                statuses.append(client.get("/api/search", params={"q": "grass"}).status_code)

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask) for _ in range(2)]
        for number in range(100, 103):
            draw_photo(number).save(own_place.photos / f"{number}.jpg")
            build_index(model, own_place.photos, own_place.index)
        (own_place.photos / "001.jpg").unlink()
        build_index(model, own_place.photos, own_place.index)
        wait_for(lambda: httpx.get(f"{server.url}/api/info").json()["items"] == 10)
        stop.set()
        for each in asking:
            each.result()
    assert len(statuses) > 10 and set(statuses) == {200}


@pytest.mark.medium
def test_images_that_are_added_while_serving_have_their_captions(own_place: Place, model: TwoTower) -> None:
    service = Service(own_place.index, model, Settings())
    draw_photo(100).save(own_place.photos / "100.jpg")
    with (own_place.photos / "metadata.jsonl").open("a") as lines:
        lines.write('{"file_name": "100.jpg", "captions": ["a late dog"]}\n')
    build_index(model, own_place.photos, own_place.index)
    assert service.reload()
    assert service.facts(service.served.key("100.jpg"))["captions"] == ["a late dog"]


@pytest.mark.medium
def test_an_index_that_is_gone_or_of_another_model_is_served_as_it_was(
    own_place: Place, model: TwoTower, second: TwoTower, running: Start
) -> None:
    server = running(Service(own_place.index, model, Settings(reload_s=0.05)))
    build_index(second, own_place.photos, own_place.index, overwrite=True)
    wait_for(lambda: bool(server.service.trouble))
    assert second.fingerprint in server.service.trouble
    reply = httpx.get(f"{server.url}/api/search", params={"q": "grass"})
    assert reply.status_code == 200 and len(reply.json()["hits"]) == 8


@contextmanager
def killed_in_the_end(process: BaseProcess) -> Iterator[None]:
    """Kill a process in the end, so that a failed test does not hang."""
    try:
        yield
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_in_order(
    own_place: Place, model: TwoTower, tmp_path: Path, number: signal.Signals
) -> None:
    words = ("serve", own_place.index, "--model", model.save(tmp_path / "model"), "--port", "0")
    told, end = os.pipe()

    def serve() -> None:
        signal.signal(number, signal.SIG_DFL)  # even under nohup
        command([*words, "--threads", "1", "--watch"], end)

    process = forked(serve, {"OPENVSE_TOKEN": "a token of enough characters"})
    os.close(end)
    with os.fdopen(told) as error, killed_in_the_end(process):
        line = error.readline()
        while "images at" not in line:
            assert line, "the server ended"
            line = error.readline()
        url = line.split(" at ")[1].split()[0]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if httpx.get(f"{url}ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        assert httpx.get(f"{url}api/info").status_code == 401
        os.kill(process.pid or 0, number)
        process.join(30)
        assert process.exitcode == 0
        assert "Traceback" not in error.read()
