"""Whoever may not write, and what no caption may do: other web sites, no token, paths, sizes and characters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openvse.errors import DataError
from openvse.model.two_tower import TwoTower
from openvse.search.hits import Judgements
from openvse.serving.served import Source
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse.teaching.teacher import Teacher
from tests.attacks.conftest import KNOWN, TOKEN, send
from tests.serving.conftest import Place, client_of

pytestmark = pytest.mark.medium

SAVE, JSON = "/api/items/1/captions", {"content-type": "application/json"}
BODY = b'{"captions": ["a dog"]}'
STRANGERS = [
    {},
    {**KNOWN, "sec-fetch-site": "cross-site"},
    {**KNOWN, "origin": "http://elsewhere.example"},
    {"authorization": "Bearer of nothing"},
]
REFUSED = [
    b"",
    b"a dog",
    b'{"captions": []}',
    b'{"captions": [""]}',
    b'{"captions": ["a\\u0000b"]}',
    b'{"captions": ["\\u001b[31mred"]}',
    b'{"captions": ["\\ud800"]}',
    b'{"captions": ["a dog"], "file_name": "../../secret.jpg"}',
    json.dumps({"captions": ["x" * 1001]}).encode(),
    json.dumps({"captions": ["x"] * 21}).encode(),
    json.dumps({"captions": ["x" * 300_000]}).encode(),
]


def test_a_server_that_was_not_asked_to_learn_writes_nothing(own_place: Place, model: TwoTower) -> None:
    before = {path: path.read_bytes() for path in own_place.photos.rglob("*") if path.is_file()}
    with client_of(Service(own_place.index, model, Settings())) as client:
        for target in (SAVE, "/api/teach/undo", "/api/teach/train", "/api/judgements"):
            assert send(client, "POST", target, JSON, BODY).status in (404, 405)
        assert send(client, "GET", "/api/teach").status == 404
        assert b"What does it show?" not in send(client, "GET", "/teach").body
    assert before == {path: path.read_bytes() for path in own_place.photos.rglob("*") if path.is_file()}


def test_no_stranger_and_no_odd_caption_is_written(own_place: Place, model: TwoTower) -> None:
    file: Path = own_place.photos / "metadata.jsonl"
    before = file.read_bytes()
    source = Source(own_place.index, teacher=Teacher(own_place.index, model))
    with client_of(Service(source, model, Settings(token=TOKEN))) as client:
        for headers in STRANGERS:
            for target in (SAVE, "/api/teach/undo", "/api/teach/train"):
                assert send(client, "POST", target, {**JSON, **headers}, BODY).status in (401, 403)
        for body in REFUSED:
            assert send(client, "POST", SAVE, {**JSON, **KNOWN}, body).status in (413, 422), body[:80]
        for target in ("/api/items/999/captions", "/api/items/..%2F..%2Fsecret.jpg/captions", "/api/items/-1/captions"):
            assert send(client, "POST", target, {**JSON, **KNOWN}, BODY).status in (404, 422)
        assert file.read_bytes() == before
        odd = json.dumps({"captions": ['"}\n{"file_name": "../../secret.jpg", "captions": ["x"]}']}).encode()
        assert send(client, "POST", SAVE, {**JSON, **KNOWN}, odd).status == 200
    added = file.read_bytes().removeprefix(before)
    assert added.count(b"\n") == 1 and json.loads(added)["file_name"] != "../../secret.jpg"


def test_judgements_lead_nowhere_else(tmp_path: Path) -> None:
    """A stranger's index whose file of judgements is a link, a pipe or a folder is read nowhere else, nor written."""
    file, secret = tmp_path / "judgements.jsonl", tmp_path / "secret"
    secret.write_text("kept\n")
    for make in (lambda: file.symlink_to(secret), lambda: os.mkfifo(file), file.mkdir):
        make()
        with pytest.raises(DataError, match="remove it"):
            Judgements(file).every()
        with pytest.raises(DataError, match="remove it"):
            Judgements(file).add("a dog", "a.jpg", True)
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    assert secret.read_text() == "kept\n"
