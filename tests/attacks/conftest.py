"""A small index and its model, for attacks on a server of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from openvse.model.two_tower import TwoTower
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from tests.serving.conftest import Place, answerer, client_of, make_place, model, own_place, running, second

__all__ = ["answerer", "model", "own_place", "running", "second"]

TOKEN = "a token of enough characters"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def place(tmp_path_factory, model: TwoTower) -> Place:
    """An index of a few photos that no test changes."""
    return make_place(tmp_path_factory.mktemp("attacked"), model, 8)


@pytest.fixture(scope="session")
def free(place: Place, model: TwoTower) -> Iterator[TestClient]:
    """A client of a server without a token."""
    with client_of(Service(place.index, model, Settings())) as client:
        yield client


@pytest.fixture(scope="session")
def locked(place: Place, model: TwoTower) -> Iterator[TestClient]:
    """A client of a server with a token, which it does not send by itself."""
    with client_of(Service(place.index, model, Settings(token=TOKEN))) as client:
        yield client


@pytest.fixture(autouse=True)
def forgotten(request) -> Iterator[None]:
    """No test leaves a cookie to the next."""
    yield
    for name in {"free", "locked"} & {*request.fixturenames}:
        request.getfixturevalue(name).cookies.clear()


@dataclass
class Reply:
    """What the application sent."""

    status: int = 0
    headers: dict[str, str] | None = None
    body: bytes = b""


Send = Callable[..., Reply]


def send(
    client: TestClient,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    address: str = "127.0.0.1",
) -> Reply:
    """Send a request as it is: clients would mend its path, its headers and its body."""
    path, _, query = target.partition("?")
    named = {"host": "127.0.0.1", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
        "server": ("127.0.0.1", 8000),
        "client": (address, 50_000),
    }
    reply, parts = Reply(), [body]

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        reply.body += message.get("body", b"")

    async def ask() -> None:
        await client.app(scope, receive, keep)

    assert client.portal is not None
    client.portal.call(ask)
    return reply


def below(folder: Path) -> list[Path]:
    """Return the files below a folder."""
    return [each for each in folder.rglob("*") if each.is_file()]
