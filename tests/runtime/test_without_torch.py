"""Index and search with an exported model where PyTorch cannot be imported."""

import json
import subprocess
from pathlib import Path

import pytest
from colour_export import COLOURS, write_export
from PIL import Image

from openvse.halves import INSTALL
from tests import torchless


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (12, 9), colour).save(folder / f"{name}.png")
    return folder


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return torchless.run(torchless.COMMAND, *words)


@pytest.mark.slow
def test_an_exported_model_indexes_and_searches(photos: Path, tmp_path: Path) -> None:
    export, index = write_export(tmp_path / "exported"), tmp_path / "index"
    made = run("index", str(export), str(photos), "--out", str(index))
    assert (made.returncode, "3 images" in made.stdout) == (0, True), made.stderr
    found = run("search", str(index), "red", "a green thing", "--model", str(export), "--json")
    assert found.returncode == 0, found.stderr
    queries = json.loads(found.stdout)["result"]["queries"]
    assert [query["hits"][0]["id"] for query in queries] == ["red.png", "green.png"]
    assert queries[1]["unknown_words"] == [{"word": "a", "read_as": None}, {"word": "thing", "read_as": None}]
    like = run("search", str(index), "--like", "blue.png", "--avoid", "red", "--output", "paths", "-k", "1")
    assert (like.returncode, Path(like.stdout.strip()).name) == (0, "green.png"), like.stderr
    page = tmp_path / "hits.html"
    shown = run("search", str(index), "red", "--where", "path ~ *.png", "--html", str(page), "-q")
    assert (shown.returncode, page.is_file()) == (0, True), shown.stderr
    refused = run("search", str(index), "red", "--model", str(tmp_path / "photos"))
    assert refused.returncode == 2
    assert INSTALL in refused.stderr and refused.stderr.count("\n") == 1
    training = run("train", "folder", "data.root=photos")
    assert (training.returncode, INSTALL in training.stderr) == (2, True)
    assert INSTALL in run("--help").stdout
