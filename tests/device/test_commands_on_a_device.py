"""Every command that has `--device` runs on an emulated one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from starlette.testclient import TestClient
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.serving.service import Service
from tests.cli.album import answering_recipe, write_album, write_pictured_questions, write_recipe
from tests.device.emulated_device import Waits, emulated_device
from tests.leaf_commands import leaf_commands

pytestmark = pytest.mark.medium

SMALL = (
    "image.encoder={name: resnet, blocks: [1, 1, 1, 1], stem_dim: 2, inner_dim: 2, image_size: 32, fine_tune: false}"
)
"""An encoder of few weights, each of which an emulated device takes long to move and to compare."""

ONE = "training.phases=[{epochs: 1}]"
ON = ("--on", "{album}", "--split", "validation")
COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze answers": ("analyze", "answers", "{answers}", "--on", "{questions}", "--out", "{out}"),
    "analyze attention": ("analyze", "attention", "{run}", *ON, "--count", "1", "--out", "{out}"),
    "analyze embeddings": ("analyze", "embeddings", "{run}", *ON, "--out", "{out}"),
    "analyze hits": ("analyze", "hits", "{run}", *ON, "--out", "{out}"),
    "analyze views": ("analyze", "views", "{views}", *ON, "--out", "{out}"),
    "ask": ("ask", "{answers}/best", "{album}/00.png", "what colour is it"),
    "blend": (
        *("blend", "{run}/best", "{other}/best", "--on", "{album}", "--out", "{out}"),
        *("--features", "{run}/features"),
    ),
    "compare": ("compare", "{run}", "--on", "{album}"),
    "encode": ("encode", "{run}/best", "{album}", "--out", "{out}"),
    "evaluate": ("evaluate", "{run}", *ON),
    "evaluate answers": ("evaluate", "{answers}", "--on", "{questions}"),
    "evaluate, re-ranked": ("evaluate", "{run}", "--rerank", "{run}", *ON),
    "extract": ("extract", "efficientnet_lite0", "{album}", "{out}", "pretrained=false", "image_size=64"),
    "index": ("index", "{run}/best", "{album}", "--out", "{out}"),
    "serve": (
        *("serve", "{index}", "--model", "{run}/best", "--rerank", "{run}"),
        *("--answer", "{answers}", "--port", "0"),
    ),
    "search": ("search", "{index}", "a photo", "--model", "{run}/best"),
}

ELSEWHERE = {"train", "demo"}
"""What prepares the others, and what is made of it: the demo trains, evaluates and indexes."""


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def write_places(root: Path) -> dict[str, Path]:
    """Train and index on the device; return the folders that commands name."""
    places = {name: root / name for name in ("album", "answers", "index", "other", "questions", "run", "views")}
    recipe = write_recipe(root / "tiny.yaml", write_album(places["album"]))
    answers = root / "answers.yaml"
    answers.write_text(yaml.safe_dump(answering_recipe(write_pictured_questions(places["questions"]))))
    views = ("image.aggregator={name: pie_net, num_embeddings: 2}", "image.encoder.global_vector=mean")
    for words in (
        ("train", recipe, ONE, SMALL, "--out", places["run"]),
        ("train", recipe, ONE, SMALL, "--start", places["run"], "--out", places["other"]),
        ("train", recipe, ONE, SMALL, *views, "--out", places["views"]),
        ("train", answers, ONE, "--out", places["answers"]),
        ("index", places["run"] / "best", places["album"], "--out", places["index"]),
    ):
        result = invoke(*words, "--device", "cuda")
        assert result.exit_code == 0, result.output
    return places | {"questions": Path(f"question_folder:{places['questions']}")}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    with_device = {name for name, each in leaf_commands() if any("--device" in option.opts for option in each.params)}
    assert with_device <= {each.partition(",")[0] for each in COMMANDS} | ELSEWHERE
    with emulated_device():
        return write_places(tmp_path_factory.mktemp("device"))


def ask_server(service: Service, opened: socket.socket, on_start: Callable[[], None]) -> None:
    """Take the place of a running server: each of its models answers once."""
    from openvse.serving.server import create_app

    with TestClient(create_app(service), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        found = client.get("/api/search", params={"q": "a photo", "rerank": True}).json()
        photo = {"image": ("a.png", client.get("/api/items/1/file").content)}
        similar = client.post("/api/search/image", files=photo).json()
        answer = client.post("/api/ask", files=photo, params={"question": "what is it"}).json()
    assert similar.get("hits") and answer.get("answers"), (found, similar, answer)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_runs(name: str, places: dict[str, Path], tmp_path: Path, waits: Waits, monkeypatch) -> None:
    monkeypatch.setattr("openvse.serving.server.run", ask_server)
    words = [word.format(**places, out=tmp_path / "out") for word in COMMANDS[name]]
    result = invoke(*words, "--device", "cuda")
    assert result.exit_code == 0, result.output
