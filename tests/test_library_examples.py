"""The pages "The library by example" and "Add a part" run as they stand, and print what they say."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from openvse.aggregators import AGGREGATORS
from openvse.encoders import TEXT_ENCODERS
from openvse.features import FEATURE_FILES
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.similarities import SIMILARITIES
from openvse.stores import STORES
from tests.cli.album import answering_recipe, write_album, write_pictured_questions
from tests.vqa.tiny_wordnet import write_wordnet

DOCS = Path(__file__).parent.parent / "docs"
ADDED_TO = (AGGREGATORS, CRITERIA, FEATURE_FILES, MINERS, SIMILARITIES, STORES, TERMS, TEXT_ENCODERS)


def shown(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a module for the code of a page, in the folder that the pages describe. Registrations are forgotten."""
    write_album(tmp_path / "photos", 12)
    write_pictured_questions(tmp_path / "questions")
    (tmp_path / "small.yaml").write_text(shown("reference/examples.md", "yaml")[0])
    (tmp_path / "answers.yaml").write_text(yaml.safe_dump(answering_recipe(Path("questions"))))
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "wordnet")))
    monkeypatch.chdir(tmp_path)
    for registry in ADDED_TO:
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    module = ModuleType("soft_max")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # the first file of the page on parts
    return module


@pytest.mark.medium
@pytest.mark.parametrize("page", ["reference/examples.md", "add_a_part.md"])
def test_every_block_runs_and_prints_what_it_says(
    page: str, scope: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in shown(page, "python"):
        exec(block, vars(scope))
        said = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
        assert (block, said) == (block, capsys.readouterr().out.splitlines())
        assert [line for line in block.splitlines() if len(line) > 91] == []
    for name, test in inspect.getmembers(scope, inspect.isfunction):
        if name.startswith("test_"):
            test(*[tmp_path / "store"][: len(inspect.signature(test).parameters)])
