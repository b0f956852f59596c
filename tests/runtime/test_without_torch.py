"""Index and search with an exported model where PyTorch cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from colour_export import COLOURS, write_export
from PIL import Image

import openvse

ROOT = Path(__file__).parents[2]
BLOCKED = ("torch", "transformers", "accelerate", "safetensors", "yaml", "huggingface_hub")
START = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not here")
sys.meta_path.insert(0, Blocked())
from openvse.cli.program import main
sys.argv[0] = "openvse"
main()
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (12, 9), colour).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the runtime distribution, as its wheel holds them."""
    folder = tmp_path_factory.mktemp("runtime")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT / "runtime", capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(place), "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", START, *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=place.parent,
    )


@pytest.mark.slow
def test_the_runtime_indexes_and_searches(installed: Path, photos: Path, tmp_path: Path) -> None:
    export, index = write_export(tmp_path / "exported"), tmp_path / "index"
    made = run(installed, "index", str(export), str(photos), "--out", str(index))
    assert (made.returncode, "3 images" in made.stdout) == (0, True), made.stderr
    found = run(installed, "search", str(index), "red", "a green thing", "--model", str(export), "--json")
    assert found.returncode == 0, found.stderr
    queries = json.loads(found.stdout)["result"]["queries"]
    assert [query["hits"][0]["id"] for query in queries] == ["red.png", "green.png"]
    assert queries[1]["unknown_words"] == [{"word": "a", "read_as": None}, {"word": "thing", "read_as": None}]
    like = run(
        installed,
        "search",
        str(index),
        "--like",
        "blue.png",
        "--avoid",
        "red",
        "--output",
        "paths",
        "-k",
        "1",
    )
    assert (like.returncode, Path(like.stdout.strip()).name) == (0, "green.png"), like.stderr
    page = tmp_path / "hits.html"
    shown = run(installed, "search", str(index), "red", "--where", "path ~ *.png", "--html", str(page), "-q")
    assert (shown.returncode, page.is_file()) == (0, True), shown.stderr
    refused = run(installed, "search", str(index), "red", "--model", str(tmp_path / "photos"))
    assert refused.returncode == 2
    assert "only these run in this installation" in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_every_file_of_the_runtime_imports(installed: Path) -> None:
    names = [
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(installed.glob("openvse/**/*.py"))
    ]
    code = START[: START.index("from openvse.cli")] + "import importlib\n"
    code += f"for name in {names!r}:\n    importlib.import_module(name)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {"openvse.runtime.model", "openvse.search.engine", "openvse.cli.commands.search"} <= set(names)


def test_the_runtime_is_of_this_version(installed: Path) -> None:
    (facts,) = installed.glob("openvse_runtime-*.dist-info")
    assert facts.name == f"openvse_runtime-{openvse.__version__}.dist-info"
    project = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["dependencies"]) <= {*whole["project"]["dependencies"], "tokenizers>=0.20"}
