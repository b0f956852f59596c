"""The parts of the page "Add a part" in a file of one's own: a command loads them, and says why it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openvse.aggregators import AGGREGATORS
from openvse.objectives import MINERS
from tests.naming import names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_a_part.md").read_text()


def block(word: str) -> str:
    """Return the only Python block of the page that holds a word."""
    (found,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if word in each)
    return found


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch) -> Path:
    """Write the page's part to a file; what it registers is forgotten after the test."""
    monkeypatch.setattr(AGGREGATORS, "_parts", dict(AGGREGATORS._parts))
    monkeypatch.setitem(sys.modules, "soft_max", None)
    path = tmp_path / "soft_max.py"
    path.write_text(block("AGGREGATORS.add("))
    return path


@pytest.mark.medium
def test_a_part_of_ones_own_trains_and_is_used_again(
    plugin: Path, recipe: Path, tmp_path: Path, works, monkeypatch
) -> None:
    def with_plugin(*words: object) -> str:
        monkeypatch.setattr(AGGREGATORS, "_parts", {"gpo": AGGREGATORS.get("gpo")})  # a command is a process
        return works("--plugin", plugin, *words).stdout

    chosen = ("image.aggregator=soft_max", "image.aggregator.temperature=0.1")
    run = tmp_path / "run"
    assert with_plugin("train", recipe, *chosen, "--out", run) == f"{run / 'best'}\n"
    assert "name: soft_max\n    temperature: 0.1\n" in (run / "recipe.yaml").read_text()
    assert "# Retrieval on album/test" in with_plugin("evaluate", run / "best", "--on", tmp_path / "album")
    listed = with_plugin("list", "parts").splitlines()
    assert any(line.startswith("aggregator: ") and "soft_max" in line for line in listed)


@pytest.mark.medium
def test_a_package_adds_a_part_and_commands(tmp_path: Path) -> None:
    """A part, a command, and one below a group, which are imported when they are used."""
    lines = (
        "aggregator.soft_max = my_package.pools:SoftMax",
        "command.tidy = my_package.commands",
        "command.data.tidy = my_package.below",
    )
    info, package = tmp_path / "mine-1.dist-info", tmp_path / "my_package"
    info.mkdir()
    package.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join(["[openvse.plugins]", *lines]))
    (package / "__init__.py").write_text("print('my_package is imported')")
    (package / "pools.py").write_text(block("AGGREGATORS.add(").partition("AGGREGATORS.add(")[0])
    (package / "commands.py").write_text(
        "from openvse.cli.app import app\n@app.command(rich_help_panel='Data')\ndef tidy(): print('tidied')\n"
    )
    (package / "below.py").write_text(
        "from openvse.train_cli.commands.data import data\n@data.command()\ndef tidy(): print('tidied data')\n"
    )

    def run(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "80"}
        command = [sys.executable, "-m", "openvse", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert run("tidy") == "my_package is imported\ntidied\n"
    assert run("data", "tidy") == "my_package is imported\ntidied data\n"
    assert re.search(r"│ tidy ", run("--help"))
    listed = run("list", "recipes", "gpo_adopt")
    assert listed and "imported" not in listed
    assert "temperature" in run("list", "parts", "soft_max")


@pytest.mark.medium
def test_without_its_plugin_a_part_is_unknown(recipe: Path, tmp_path: Path, refused) -> None:
    line = refused("train", recipe, "image.aggregator=soft_max", "--out", tmp_path / "run")
    assert names(line, "image.aggregator", "'soft_max'", "--plugin FILE")


def test_the_miner_takes_the_harder_half(monkeypatch) -> None:
    monkeypatch.setattr(MINERS, "_parts", dict(MINERS._parts))
    exec(block("MINERS.add("), {})
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.9]])
    assert MINERS.get("harder_half")()(scores, scores == 0.9).tolist() == [[False, True, True, False]]


@pytest.mark.medium
def test_plugins_that_are_none(tmp_path: Path, refused) -> None:
    plugin = tmp_path / "broken.py"
    assert names(refused("--plugin", plugin, "list", "recipes"), plugin)
    for code, error in (("import nothing_of_this_name\n", "ModuleNotFoundError"), ("def (:\n", "SyntaxError")):
        plugin.write_text(code)
        assert names(refused("--plugin", plugin, "list", "recipes"), plugin, error)
