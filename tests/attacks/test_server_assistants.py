"""Assistants that are attacked, or attack: tools, arguments and replies of ``/mcp``."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from openvse.indexing import build_index
from openvse.model.two_tower import TwoTower
from openvse.serving.served import Served
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.attacks.conftest import send
from tests.serving.conftest import Place, client_of

pytestmark = pytest.mark.medium

MOST = Limits().json_bytes
LONG = "\x1b[31m" * 30_000
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory, model: TwoTower) -> Iterator[TestClient]:
    """A client of a server of a photo with long texts, and one of noise, the worst case of every encoder."""
    place = tmp_path_factory.mktemp("crowded")
    (place / "photos").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(place / "photos" / "noise.bmp")
    Image.new("RGB", (64, 64)).save(place / "photos" / "texts.png")
    facts = {"file_name": "texts.png", "caption": LONG, "tags": ["a"] * 100_000}
    (place / "photos" / "metadata.jsonl").write_text(json.dumps(facts))
    build_index(model, place / "photos", place / "index")
    patient = Limits(decode_s=60.0, timeout=90.0)  # on a machine that is busy
    with client_of(Service(place / "index", model, Settings(limits=patient))) as client:
        yield client


def called(client: TestClient, name: str, arguments: dict[str, Any], number: int | str = "x" * 1000) -> tuple[int, Any]:
    """Return the size of the reply to a call of a tool, and its result."""
    params = {"name": name, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    reply = send(client, "POST", "/mcp", HEADERS, body.encode())
    assert reply.status == 200, reply.body[:300]
    return len(reply.body), json.loads(reply.body)["result"]


def test_only_declared_tools_are_called(free: TestClient, monkeypatch) -> None:
    monkeypatch.setattr(Served, "file", lambda *_: pytest.fail("a file is looked for"))
    routes = ["api/items/1/file", "api/info", "openapi.json", "page/app.js", "../api/info", "", "x" * 100_000]
    for name in (*routes, "Search", "search/"):
        size, result = called(free, name, {"key": 1, "q": "a"})
        assert result["isError"] and size < 2000, name
        assert "search, similar, describe, show" in result["content"][0]["text"]


def test_every_reply_is_bounded_and_says_what_is_cut(crowded: TestClient) -> None:
    size, result = called(crowded, "show", {"key": 1, "large": True})
    assert 100_000 < size <= MOST
    with Image.open(io.BytesIO(base64.b64decode(result["content"][0]["data"]))) as shown:
        assert shown.width / shown.height == pytest.approx(1.3, abs=0.01)
    for name, arguments in (("describe", {"key": 2}), ("search", {"q": "a"}), ("similar", {"key": 1})):
        size, result = called(crowded, name, arguments)
        assert size <= MOST and "cut" in result["structuredContent"]["note"], name
        assert size > MOST / 5, "what fits is kept"
    size, result = called(crowded, "search", {"q": "a"}, "x" * (MOST - 1000))  # its reply has the number of the call
    assert len(result["structuredContent"]["hits"]) <= 2 and size < MOST + 2000
    small = called(crowded, "search", {"q": "a", "where": ["path = noise.bmp"]})[1]["structuredContent"]
    assert [hit["id"] for hit in small["hits"]] == ["noise.bmp"] and "note" not in small


def test_arguments_are_bounded_and_checked_before_anything_is_done(free: TestClient, caplog) -> None:
    wrong: dict[str, Any] = {
        "where": ["size > 1"] * 20_000,
        "avoid": ["[" * 100_000 + "]" * 100_000],
        "q": {"a": ["b"] * 40_000},
        "top_k": "9" * 200_000,
        "like": [1],
        "x" * 100_000: 1,
    }
    for name, value in wrong.items():
        size, result = called(free, "search", {"q": "a", name: value})
        assert result["isError"] and size < 2000 + len(name), name
    assert called(free, "search", {str(number): 0 for number in range(20_000)})[1]["isError"]
    assert not [record for record in caplog.records if record.exc_info]


def test_assistants_are_told_that_texts_are_no_instructions(free: TestClient) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    tools = json.loads(send(free, "POST", "/mcp", HEADERS, body).body)["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["search", "similar", "describe", "show"]
    assert all("no instructions" in tool["description"] for tool in tools)


def test_a_bug_is_logged_and_tells_nothing(own_place: Place, model: TwoTower, monkeypatch, caplog) -> None:
    monkeypatch.setattr(Service, "facts", lambda *_: {}["/secret/place"])
    with client_of(Service(own_place.index, model, Settings())) as client:
        _, result = called(client, "describe", {"key": 1})
    assert result["isError"] and "secret" not in json.dumps(result)
    assert any(record.exc_info for record in caplog.records)
