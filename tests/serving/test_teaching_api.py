"""A server that learns: its routes and its tool, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from openvse.errors import OpenVSEError
from openvse.model.two_tower import TwoTower
from openvse.serving.assistants import Assistants
from openvse.serving.served import Source
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse.teaching.teacher import Teacher
from tests.serving.conftest import client_of
from tests.teaching.folders import make_index

pytestmark = pytest.mark.medium

TOKEN = "a token of enough characters"


def service_of(place: Path, model: TwoTower, **settings: Any) -> Service:
    teacher = Teacher(place / "index", model)
    try:
        return Service(Source(place / "index", judged=True, teacher=teacher), model, Settings(**settings))
    except OpenVSEError:
        teacher.close()
        raise


@pytest.fixture
def taught(tmp_path: Path) -> Iterator[tuple[TestClient, Path]]:
    """A client of a server of 24 photos, 19 of which have a caption."""
    with client_of(service_of(tmp_path, make_index(tmp_path, 24, 19))) as client:
        yield client, tmp_path / "photos" / "metadata.jsonl"


def best(client: TestClient) -> list[tuple[str, float]]:
    hits = client.get("/api/search", params={"text": "a red dog runs", "only": "similarity"}).json()["hits"]
    return [(hit["id"], hit["score"]) for hit in hits]


def test_a_caption_changes_the_next_search_and_is_undone(taught: tuple[TestClient, Path]) -> None:
    client, file = taught
    before, lines = best(client), file.read_bytes()
    asked = client.get("/api/teach").json()
    assert [asked[name] for name in ("items", "captioned", "learns_from", "can_train")] == [24, 19, 20, False]
    assert "too few to train" in client.post("/api/teach/train").text
    first, second, third = (each["key"] for each in asked["next"])
    assert {each["id"] for each in asked["next"]} < {f"{number:02d}.jpg" for number in range(19, 24)}
    skipped = client.get("/api/teach", params={"passed": [first, second]}).json()
    assert third in [each["key"] for each in skipped["next"]] and first not in [each["key"] for each in skipped["next"]]
    reply = client.post(f"/api/items/{first}/captions", json={"captions": ["a red dog runs", "grass"]})
    assert reply.json() == {"captions": ["a red dog runs", "grass"]}
    assert file.read_bytes().startswith(lines) and len(file.read_bytes().splitlines()) == 20
    assert best(client) != before
    found = client.get("/api/search", params={"text": "grass", "only": "words"}).json()["hits"]
    assert first in [hit["key"] for hit in found]
    assert client.get("/api/teach").json()["captioned"] == 20
    assert client.post("/api/teach/undo").json() == {"key": first, "id": asked["next"][0]["id"]}
    assert client.post("/api/teach/undo").json() == {"key": None, "id": None}
    assert file.read_bytes() == lines and client.get("/api/info").json()["teaches"] is True
    assert "What does it show?" in client.get("/teach").text


def test_only_the_program_of_the_owner_has_the_tool(taught: tuple[TestClient, Path]) -> None:
    client, file = taught
    app: Any = client.app
    while not hasattr(app, "state"):
        app = getattr(app, "_app", None) or app.app
    assistants: Assistants = app.state.assistants
    assert set(assistants._tools) == {"search", "similar", "describe", "show"}
    assistants._is_own = True
    assert set(assistants._tools) == {"search", "similar", "describe", "show", "teach"}
    called = assistants._called("teach", {"key": 24, "captions": ["grass"]}, 10_000)
    assert asyncio.run(called).structured_content == {"captions": ["grass"]}
    assert file.read_text().splitlines()[-1] == '{"file_name": "23.jpg", "captions": ["grass"]}'


def test_a_server_that_others_reach_learns_with_a_token_alone(tmp_path: Path) -> None:
    model = make_index(tmp_path, 4, 1)
    with pytest.raises(OpenVSEError, match="--teach lets 0.0.0.0 write"):
        service_of(tmp_path, model, host="0.0.0.0", allow_public=True)
    with client_of(service_of(tmp_path, model, host="0.0.0.0", token=TOKEN)) as client:
        assert client.get("/api/teach").status_code == 401
        assert client.get("/api/teach", headers={"authorization": f"Bearer {TOKEN}"}).json()["captioned"] == 1
