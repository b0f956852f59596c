"""The packages of "Publish a method" and of ``packages/`` are built, installed, tested and trained from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.album import write_album

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples" / "plugin"
PACKAGES = [PLUGIN, *(ROOT / "packages" / f"openvse-{name}" for name in ("alignment", "sentences", "timm"))]
Run = Callable[..., str]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what runs Python with the packages installed, as from an index: built as wheels, without a network."""
    folder = tmp_path_factory.mktemp("installed")
    sources = [shutil.copytree(package, folder / package.name) for package in PACKAGES]
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", folder / "site", *sources]
    subprocess.run(list(map(str, pip)), check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(folder / "site"), "COLUMNS": "100"}

    def start(*words: object) -> str:
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


def test_their_own_tests_pass(run: Run) -> None:
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", *(package / "tests" for package in PACKAGES))


def test_its_recipe_is_listed_trained_and_its_model_used(run: Run, tmp_path: Path) -> None:
    album = write_album(tmp_path / "album")
    assert "rsum 410" in run("-m", "openvse", "list", "recipes", "boltzmann")
    assert re.search("Boltzmann operator.*Asadi", run("-m", "openvse", "list", "terms"))
    backbone = "{name: efficientnet_lite0, pretrained: false, image_size: 64}"
    words = (f"data.source={album}", f"image.encoder={backbone}", "embed_dim=16", "text.encoder.word_dim=8")
    best = tmp_path / "run" / "best"
    phases = "training.phases=[{epochs: 1}]"
    run("-m", "openvse", "train", "boltzmann/folder_cpu", *words, phases, "--out", tmp_path / "run")
    assert "name: boltzmann\n    temperature: 0.5\n" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert "# Retrieval on album/test" in run("-m", "openvse", "evaluate", best, "--on", album)


def test_the_page_shows_its_files() -> None:
    page = (ROOT / "docs" / "publish_a_method.md").read_text()
    assert len(page.splitlines()) <= 100
    for file in ("pyproject.toml", "boltzmann_pool/pooling.py", "boltzmann_pool/recipes/boltzmann/folder_cpu.yaml"):
        assert f"`{file}`" in page
        for block in re.findall(rf"`{file}`.*?\n```\w+\n(.*?)```", page, flags=re.DOTALL):
            assert block in (PLUGIN / file).read_text(), file
