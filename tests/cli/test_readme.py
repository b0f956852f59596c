"""What the README and the page "Add a part" show runs: the Python blocks, and the part that a newcomer adds."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from openvse.aggregators import AGGREGATORS
from openvse.objectives import MINERS
from tests.naming import names

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text() for name in ("README.md", "docs/add_a_part.md")}


def block(word: str, page: str = "README.md") -> str:
    """Return the only Python block of a page that holds a word."""
    blocks = re.findall(r"```python\n(.*?)```", TEXTS[page], flags=re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found


@pytest.fixture
def workplace(trained: Path, tmp_path: Path, monkeypatch) -> Path:
    """Make a folder that looks as the README has it after its three commands, and go there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "run", tmp_path / "runs" / "mine")
    (tmp_path / "photos").mkdir()
    for number in (1, 2):
        shutil.copy(trained / "album" / f"0{number}.png", tmp_path / "photos" / f"000{number}.jpg")
    return tmp_path


@pytest.fixture(params=[name for name, text in TEXTS.items() if "AGGREGATORS.add(" in text])
def page(request: pytest.FixtureRequest) -> str:
    """Return the name of a page that shows how to add a part."""
    return request.param


@pytest.fixture
def plugin(page: str, tmp_path: Path, monkeypatch) -> Path:
    """Write the page's part to a file; what it registers is forgotten after the test."""
    monkeypatch.setattr(AGGREGATORS, "_parts", dict(AGGREGATORS._parts))
    monkeypatch.setitem(sys.modules, "soft_max", None)
    path = tmp_path / "soft_max.py"
    path.write_text(block("AGGREGATORS.add(", page))
    return path


@pytest.mark.medium
def test_a_model_in_python(workplace: Path, capsys) -> None:
    scope: dict[str, object] = {}
    exec(block("openvse.load("), scope)
    assert list(scope["scores"].shape) == [2, 2]
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [rank for rank, _, _ in printed] == ["1", "2"]
    assert all(Path(path).is_file() for _, _, path in printed)


@pytest.mark.medium
def test_a_part_of_ones_own_trains_and_is_used_again(
    plugin: Path, recipe: Path, tmp_path: Path, invoke, monkeypatch
) -> None:
    def with_plugin(*words: object) -> str:
        monkeypatch.setattr(AGGREGATORS, "_parts", {"gpo": AGGREGATORS.get("gpo")})  # a command is a process
        result = invoke("--plugin", plugin, *words)
        assert result.exit_code == 0, result.output
        return result.stdout

    chosen = ("image.aggregator=soft_max", "image.aggregator.temperature=0.1")
    run = tmp_path / "run"
    assert with_plugin("train", recipe, *chosen, "--out", run) == f"{run / 'best'}\n"
    assert "name: soft_max\n    temperature: 0.1\n" in (run / "recipe.yaml").read_text()
    assert "# Retrieval on album/test" in with_plugin("evaluate", run / "best", "--on", tmp_path / "album")
    assert "aggregator: gpo, soft_max\n" in with_plugin("list", "parts")


@pytest.mark.medium
def test_without_its_plugin_a_part_is_unknown(recipe: Path, tmp_path: Path, refused) -> None:
    line = refused("train", recipe, "image.aggregator=soft_max", "--out", tmp_path / "run")
    assert "unknown aggregator 'soft_max'" in line and "--plugin FILE" in line


def test_the_miner_takes_the_harder_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MINERS, "_parts", dict(MINERS._parts))
    exec(block("MINERS.add(", "docs/add_a_part.md"), {})
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.9]])
    assert MINERS.get("harder_half")()(scores, scores == 0.9).tolist() == [[False, True, True, False]]


@pytest.mark.medium
def test_plugins_that_are_none(tmp_path: Path, refused) -> None:
    assert "is not a Python file" in refused("--plugin", tmp_path / "none.py", "list", "recipes")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    assert names(refused("--plugin", broken, "list", "recipes"), broken, "ModuleNotFoundError")
    broken.write_text("def (:\n")
    assert names(refused("--plugin", broken, "list", "recipes"), broken, "SyntaxError")
